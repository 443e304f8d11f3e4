-- pandoc: keep headings, paragraphs and the items of lists; plain words, without the marks that
-- its plain text has for emphasis.
local function nothing() return {} end
local function content(element) return element.content end
local function items(list)
  local blocks = {}
  for _, item in ipairs(list.content) do
    for _, block in ipairs(item) do table.insert(blocks, block) end
  end
  return blocks
end

return {{
  CodeBlock = nothing, RawBlock = nothing, RawInline = nothing, Table = nothing, Note = nothing,
  Image = nothing, HorizontalRule = nothing, BlockQuote = content,
  Figure = nothing, BulletList = items, OrderedList = items,
  Emph = content, Strong = content, Underline = content, SmallCaps = content, Strikeout = nothing,
  Math = function(math) if math.mathtype == "DisplayMath" then return {} end end,
}}
