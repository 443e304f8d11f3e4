"""Prose in formats that pandoc reads.

What is kept is headings, paragraphs and the items of lists. Code, tables, pictures, displayed
formulas and footnotes are left out.
"""

import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from albert_core.stage.errors import OutageError, killed
from pipelines.readers import record, web
from pipelines.readers.pandoc_input import PREPARATIONS

_PANDOC_NAMES: Final = {
    "latex": "latex+raw_tex",  # the argument of an unknown command is text
    # a dollar in prose is money more often than a formula
    "markdown": "gfm-tex_math_dollars+fenced_divs",
}
"""Our name of a format -> pandoc's, where they differ."""
_PACKED: Final = frozenset({"docx", "epub", "odt", "pptx"})
"""Formats that are archives, not text."""
_PROSE_FILTER: Final = """
local function nothing() return {} end
local function content(element) return element.content end
local function items(list)
  local blocks = {}
  for _, item in ipairs(list.content) do
    for _, block in ipairs(item) do table.insert(blocks, block) end
  end
  return blocks
end
local of_sphinx = {
  autoclass = true, autofunction = true, automodule = true, currentmodule = true,
  minigallery = true, moduleauthor = true, sectionauthor = true, toctree = true,
  ["toctree-wrapper"] = true,
}
local no_text = {
  "bib", "cite", "color", "comment", "delete", "font", "graphic", "include", "index", "input",
  "label", "length", "mark", "note", "page", "phantom", "ref", "rule", "set", "size", "skip",
  "space", "style", "thanks", "todo",
}
local prose = {}
local function of_latex(text)
  return pandoc.read(text, "latex"):walk(prose).blocks
end
local function argument(raw)  -- of a command that pandoc doesn't know; its last one is its text
  if raw.format == "html" and raw.text:match("^<[bB][rR][ />]") then return pandoc.LineBreak() end
  local name, rest = raw.text:match("^\\\\(%a+)%*?(.*)$")
  if raw.format ~= "latex" or not name then return {} end
  for _, part in ipairs(no_text) do
    if name:find(part) then return {} end
  end
  local last = rest:match("(%b{})%s*$")
  return last and pandoc.utils.blocks_to_inlines(of_latex(last:sub(2, -2))) or {}
end
local function block(raw)  -- of HTML, or an environment that pandoc doesn't know
  if raw.format == "html" then return pandoc.read(raw.text, "html"):walk(prose).blocks end
  return raw.format == "latex" and raw.text:match("^\\\\begin") and of_latex(raw.text) or {}
end
local function title_first(doc)
  local title, abstract = doc.meta.title, doc.meta.abstract
  if pandoc.utils.type(abstract) == "Blocks" then doc.blocks = abstract .. doc.blocks end
  if pandoc.utils.type(title) == "Inlines" then doc.blocks:insert(1, pandoc.Para(title)) end
  return doc
end
prose = {
  CodeBlock = nothing, RawBlock = block, RawInline = argument, Table = nothing,
  Note = nothing, Image = nothing, Figure = nothing, HorizontalRule = nothing, Strikeout = nothing,
  Div = function(div) if of_sphinx[div.classes[1]] then return {} end end,
  Para = function(para)  -- a session of Python in reStructuredText, or a chart on a slide
    local text = pandoc.utils.stringify(para)
    if text:match("^>>> ") or text:match("^%[Graphic: other: ") then return {} end
  end,
  Code = function(code)  -- a role of Sphinx, with its target or the mark that shortens it
    if code.attributes.role then return (code.text:gsub(" *<[^>]*>$", ""):gsub("^[~!]", "")) end
  end,
  Link = function(link)  -- a reference whose target has no words, or only a name in LaTeX
    if link.attributes["reference-type"] or pandoc.utils.stringify(link) == "???" then return {} end
  end,
  Header = function(head)  -- what pandoc calls a slide that has no heading
    if pandoc.utils.stringify(head):match("^Slide %d+$") then return {} end
  end,
  BlockQuote = content, BulletList = items, OrderedList = items,
  Emph = content, Strong = content, Underline = content, SmallCaps = content,
  Superscript = content, Subscript = content,
  Math = function(math) if math.mathtype == "DisplayMath" then return {} end end,
}
local marks = {
  Div = function(div)  -- what code in a notebook printed
    if div.classes:includes("output") then return div:walk({RawBlock = nothing}) end
  end,
  Link = function(link)  -- marks of notes, where a book does not say so
    if #link.content == 1 and link.content[1].t == "Superscript" then return {} end
  end,
  Superscript = function(mark)
    if #mark.content == 1 and mark.content[1].t == "Link" then return {} end
  end,
  Span = function(span)  -- the number of a printed page
    if span.classes:includes("pagebreak") or span.classes:includes("pagenum") then return {} end
  end,
}
return {marks, prose, {Pandoc = title_first}}
"""
"""For pandoc: it keeps headings, paragraphs and the items of lists, without marks for emphasis."""
_MAX_MEMORY: Final = "4G"
_MAX_SECONDS: Final = 900


def by_pandoc(format: str, content: bytes, encoding: str) -> str:  # noqa: A002
    """Return the prose of a file of a format, a key of `PANDOC_FORMATS`.

    Raises:
        UnreadableError: "not_decodable", or "not_extractable": it is broken, or takes more than 4
            GB or a quarter of an hour.
        OutageError: pandoc was killed, and the content may be sound.
    """
    import pypandoc  # type: ignore[import-untyped]

    if format not in _PACKED:
        content = web.decode_declared(content, encoding).encode()
    if prepare := PREPARATIONS.get(format):
        content = prepare(content)
    with tempfile.TemporaryFile() as prose_filter:  # unnamed, so a killed worker leaves no file
        prose_filter.write(_PROSE_FILTER.encode())
        prose_filter.seek(0)
        command = [
            str(Path(pypandoc.__file__).with_name("files") / "pandoc"),  # not one on the PATH
            *("+RTS", f"-M{_MAX_MEMORY}", "-RTS", "--sandbox"),
            *(f"--lua-filter=/dev/fd/{prose_filter.fileno()}", "--to", "plain"),
            *("--from", _PANDOC_NAMES.get(format, format), "--wrap", "none"),
        ]
        try:
            # Without environment variables it finds no settings of the worker's user.
            done = subprocess.run(
                command,
                check=False,
                input=content,
                capture_output=True,
                env={},
                pass_fds=[prose_filter.fileno()],
                timeout=_MAX_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise record.UnreadableError(record.NOT_EXTRACTABLE) from error
    if done.returncode in (-signal.SIGKILL, -signal.SIGTERM):
        raise OutageError(
            f"pandoc {killed(-done.returncode)}. It read {len(content):,} bytes of {format}."
        )
    if done.returncode:
        raise record.UnreadableError(record.NOT_EXTRACTABLE)
    return done.stdout.decode(errors="replace")
