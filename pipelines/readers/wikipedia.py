"""Wikipedia: MediaWiki's XML dumps, and the output of WikiExtractor.

A dump (pages-articles) gives a document for each article, without its markup. The file is a whole
dump, or a range of its bytes that begins at a ``<page>`` and ends before another one, perhaps with
the dump's header before it. Text in a dump is escaped, so that ``<page>`` and ``</page>`` are never
part of an article: the bytes are cut there, and a broken page does not harm the next one.

WikiExtractor writes ``<doc id="12" url="..." title="...">``, the article, ``</doc>``.

`plain_text` scans markup for the pairs of MediaWiki (templates, tables, links, elements). Its time
grows with the length of the text and not with its nesting, so that it can read whole dumps;
mwparserfromhell, which builds a tree, takes ten times as long. Only its own wiki knows the text of
a template. Templates are therefore removed, except those in `_INLINE`, which contain words of a
sentence.
"""

import codecs
import html
import re
from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from typing import BinaryIO
from xml.etree import ElementTree as ET

from pipelines.config import SourceSettings
from pipelines.readers import record
from pipelines.readers.record import Record

PAGE_LINE = re.compile(rb"[ \t]*<page>")
"""The beginning of a line where a page of a dump begins."""
FIRST_PAGE_LINE = re.compile(rb"[^\n]*?<page>")
"""The first line after a dump's header, in which a page begins somewhere."""
# Titles are not escaped and may hold quotes and angles, so the end of the tag cannot be found.
DOC_LINE = re.compile(rb'(?:\xef\xbb\xbf)?<doc\b[^\n]{0,4000}?\bid="([^"\n]{0,4000})"')
"""The beginning of a line where an article of WikiExtractor begins."""

_BEGIN = b"<page>"
_END = b"</page>"
_BLOCK_BYTES = 1 << 20
_BETWEEN = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:</mediawiki>\s*)?(?:<\?xml[^>]*>\s*)?"
    rb"(?:<mediawiki\b[^>]*>\s*(?:<siteinfo>.*?</siteinfo>\s*)?)?(?:</mediawiki>\s*)?",
    re.DOTALL,
)
"""The header and the end of dumps, which a file may contain besides pages."""
_NAMESPACE_NAME = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]+)</namespace>')
_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_MAX_NAMESPACE_DIGITS = 10
"""Python refuses to read numbers of thousands of digits."""
_ID = re.compile(rb"<id>\s*(\d+)\s*</id>")
_UNSEEN_NAMESPACES = (b"6", b"14")
"""Namespaces of files and categories, to which links show no text."""


def read_dump(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each article, and a reason for each page that is left out.

    What the settings or the page itself leave out is ``other_namespace``, ``redirect`` or
    ``not_wikitext``; what can't be read is ``broken_xml`` or ``too_large``. A page without
    ``<ns>``, as in dumps before 2012, counts as an article. Of a page's revisions the last counts,
    and of several dumps in a file the header of the first.

    Raises:
        Exception: whatever reading ``file`` raises, after the pages before.
    """
    hidden = HIDDEN_NAMESPACES
    for offset, piece in _pieces(file, settings.max_document_bytes):
        before, *pages = piece.split(_BEGIN)
        if offset == 0:  # a later header is not seen by a range after it
            hidden = HIDDEN_NAMESPACES | _unseen_names(before)
        position = offset + len(before)
        for page in pages:
            yield _article(_BEGIN + page, position, settings, hidden)
            position += len(_BEGIN + page)
        if not pages and not _BETWEEN.fullmatch(before):
            yield record.unreadable("broken_xml", offset, before)


def _pieces(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of ``file`` with their offsets, cut after each ``</page>``.

    Without one they are also cut where they exceed ``max_bytes`` and a block, which is room for a
    header, so that no more than that is held.
    """
    # In a broken archive, read() would lose what could be unpacked before the break.
    read_some = getattr(file, "read1", file.read)
    offset, size, parts, tail = 0, 0, [b""], b""
    while block := read_some(_BLOCK_BYTES):
        parts.append(block)
        size += len(block)
        if size > max_bytes + _BLOCK_BYTES or _END in tail + block:
            *whole, rest = b"".join(parts).split(_END)
            for piece in whole:
                yield offset, piece + _END
                offset += len(piece) + len(_END)
            if len(rest) > max_bytes + _BLOCK_BYTES:
                yield offset, rest[: -len(_END)]
                offset, rest = offset + len(rest) - len(_END), rest[-len(_END) :]
            parts, size = [rest], len(rest)
        tail = (tail + block)[1 - len(_END) :]
    yield offset, b"".join(parts)


def _unseen_names(header: bytes) -> frozenset[str]:
    """Return the names, in lower case, that a dump's header gives to files and categories."""
    return frozenset(
        html.unescape(name.decode(errors="replace")).lower()
        for number, name in _NAMESPACE_NAME.findall(header)
        if number in _UNSEEN_NAMESPACES
    )


def _article(page: bytes, offset: int, settings: SourceSettings, hidden: frozenset[str]) -> Record:
    """Return the article in ``page``, from ``<page>`` to ``</page>``, or why there is none."""
    head = page[: max(page.find(b"<revision>"), 0)] or page
    found_id, namespace = _ID.search(head), _NAMESPACE.search(head)
    key = found_id[1].decode() if found_id else ""
    digits = namespace[1] if namespace else b""
    if len(digits) > _MAX_NAMESPACE_DIGITS or (
        digits and int(digits) not in settings.wiki_namespaces
    ):
        return record.unreadable("other_namespace", offset, key=key)
    if b"<redirect" in head:
        return record.unreadable("redirect", offset, key=key)
    if len(page) > settings.max_document_bytes:
        return record.unreadable("too_large", offset, page, key)
    try:
        title, text, is_wikitext = _fields(ET.fromstring(page.rstrip()))  # noqa: S314
    except ET.ParseError:
        return record.unreadable("broken_xml", offset, page, key)
    if not is_wikitext:
        return record.unreadable("not_wikitext", offset, key=key)
    body = plain_text(text, hidden)
    return Record(text=f"{title}\n\n{body}" if body else "", key=key, offset=offset)


def _fields(page: ET.Element) -> tuple[str, str, bool]:
    """Return the title, the last text, and whether it is wiki markup."""
    revisions = page.findall("revision")
    last = revisions[-1] if revisions else page
    is_wikitext = (
        last.findtext("model", "wikitext") == "wikitext"
        and last.findtext("format", "text/x-wiki") == "text/x-wiki"
    )
    return page.findtext("title", "").strip(), last.findtext("text", ""), is_wikitext


# WikiExtractor

_CLOSING = b"</doc>"
_MARKED = (b"<doc", _CLOSING, codecs.BOM_UTF8)


def read_extracted(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each block; unclosed blocks and text outside blocks are unreadable."""
    max_bytes = settings.max_document_bytes
    key: str | None = None
    block: record.Block | None = None
    for offset, line in record.bounded_lines(file, max_bytes):
        if line.startswith(_MARKED):
            if opening := DOC_LINE.match(line):
                yield from _broken_off(block, key)
                key = opening.group(1).decode(errors="replace")
                block = record.Block(offset, max_bytes)
                continue
            if line.rstrip() == _CLOSING and block is not None and key is not None:
                yield record.text_record(block.content, settings, block.offset, key)
                key = block = None
                continue
        if block is None:
            if line.isspace():
                continue
            block = record.Block(offset, max_bytes)
        block.add(line)
    yield from _broken_off(block, key)


def _broken_off(block: record.Block | None, key: str | None) -> Iterator[Record]:
    """Yield the lines gathered before a block begins or the file ends, if there are any."""
    if block is not None:
        reason = "text_outside_doc" if key is None else "doc_not_closed"
        yield record.unreadable(reason, block.offset, block.content, key or "")


# Wiki markup to plain text, one paragraph, heading or list item a line

# In the languages of the large Wikipedias; the English names are valid on all of them.
_FILE_NAMES = (
    "file image lêer beeld ስዕል imachen imaxen ملف صورة ficheru imaxe fayl şəkil şakil файл "
    "изображение выява відео зображення рисунок датотека слика চিত্র ছবি restr skeudenn "
    "datoteka slika fitxer imatge payl وێنە پەڕگە soubor obrázek ӳкерчĕк delwedd billede fil "
    "bild datei αρχείο εικόνα dosiero archivo imagen pilt fail fitxategi irudi پرونده تصویر "
    "tiedosto kuva mynd fichier ofbyld íomhá faidhle dealbh ficheiro imagem arquivo קובץ "
    "תמונה चित्र wobraz dataja fájl kép պատկեր berkas gambar imajen immagine ファイル 画像 სურათი "
    "ფაილი сурет ಚಿತ್ರ ಫೈಲ್ 파일 그림 imago plicus fasciculus vaizdas പ്രമാണം ചിത്രം зураг imej "
    "ဖိုင် bestand afbeelding fichièr ଫାଇଲ ਤਸਵੀਰ plik grafika fișier fisier ගොනුව රූපය súbor "
    "obrázok skedari படிமம் దస్త్రం బొమ్మ ไฟล์ ภาพ talaksan dosya resim рәсем ھۆججەت زریعہ "
    "tasvir tập_tin טעקע בילד 文件 檔案 档案 图像 圖像 ფაილ"
)
_CATEGORY_NAMES = (
    "category kategorie መደብ categoría تصنيف kategoriya kateqoriya بؤلمه категория катэгорыя "
    "категорія категорија বিষয়শ্রেণী rummad kategorija категори پۆل categoria kategória "
    "kategori κατηγορία kategorio kategooria kategoria رده luokka bólkur catégorie kategory "
    "catagóir roinn-seòrsa קטגוריה श्रेणी वर्ग কেটেগৰি કેટેગરી શ્રેણી կատեգորիա flokkur カテゴリ "
    "კატეგორია санат ವರ್ಗ 분류 kategorî کاتێگۆری വർഗ്ഗം വിഭാഗം ангилал ကဏ္ဍ categorie ਸ਼੍ਰੇਣੀ "
    "ଶ୍ରେଣୀ categorìa catiguria ප්‍රවර්ගය பகுப்பு వర్గం หมวดหมู่ kategorya төркем زمرہ تۈر "
    "turkum thể_loại קאטעגאריע 分类 分類 kaarangay jamii"
)
HIDDEN_NAMESPACES = frozenset(
    name.replace("_", " ") for name in f"{_FILE_NAMES} {_CATEGORY_NAMES}".split()
)
"""Namespaces, in lower case, whose links show no words of the article: files and categories."""

Ends = tuple[re.Pattern[str], re.Pattern[str]]
_MAX_DEPTH = 3
"""How deep templates and links that show text are resolved; deeper ones are removed."""

_SILENT = (
    "ref|references|math|chem|ce|code|pre|syntaxhighlight|source|gallery|timeline|imagemap|score|"
    "hiero|graph|mapframe|maplink|templatedata|templatestyles|inputbox|categorytree|table|"
    "includeonly|indicator|dynamicpagelist|phonos"
)
"""Elements that are removed with their content."""
_BLOCKS = "br|p|div|hr|li|ul|ol|dl|dd|dt|center|blockquote|poem|h[1-6]|tr|td|th|caption"
_INLINES = (
    "abbr|b|bdi|bdo|big|cite|data|del|dfn|em|font|i|ins|kbd|mark|noinclude|nowiki|onlyinclude|q|rb|"
    "rp|rt|rtc|ruby|s|samp|section|small|span|strike|strong|sub|sup|time|tt|u|var|wbr|translate|"
    "tvar|languages|link|meta"
)
_COMMENT = re.compile(r"<!--[^-]*(?:-(?!->)[^-]*)*(?:-->|\Z)")
_ELEMENT = re.compile(rf"<(/?)({_SILENT}|nowiki)(?:\s[^<>]*?)?(/?)>", re.IGNORECASE)
_TAG = re.compile(rf"</?(?:({_BLOCKS})|{_INLINES}|{_SILENT})(?:[\s/:][^<>]*)?>", re.IGNORECASE)
# Two searches that skip to the next brace or bracket are faster than one for both.
_BRACES = (re.compile(r"\{\{+"), re.compile(r"\}\}+"))
_BRACKETS = (re.compile(r"\[\["), re.compile(r"\]\]"))
_PLAIN_LINK = re.compile(r"\[\[(?:[^\[\]|:\n]+\|)?([^\[\]|:\n]+)\]\]")
"""Most links: without a namespace and not nested. `_link` resolves the others."""
_EXTERNAL_LINK = re.compile(
    r"\[(?:(?:https?:|ftps?:|ircs?:|git:|svn:|gopher:)?//|mailto:|news:)[^\s\[\]]*"
    r"[ \t]*([^\[\]\n]*)\]"
)
_MEDIA_ENDING = re.compile(
    r"\.(?:jpe?g|png|svg|gif|tiff?|webp|xcf|pdf|djvu|og[agv]|opus|wav|flac|mp[34]|midi?|webm)\s*$",
    re.IGNORECASE,
)
_LANGUAGE = re.compile(r"(?!(?:mw|doi|rfc|wmf|voy)$)[a-z]{2,3}(?:-[a-z]{2,})*|simple")
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")
_MAGIC_WORD = re.compile(r"__[^\W_]+(?:_[^\W_]+)*__")
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{1,31}|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
_QUOTES = re.compile(r"''(?:'''|')?")
"""Bold, italic or both; of four, the first is an apostrophe."""
_ELISION = re.compile(r"'(?<=[^\w'][^\W\d_]')''(?=\w)((?:[^'\n]|'(?!'))+)''(?!')")
"""l'''Histoire'': an apostrophe and italic."""
_GENITIVE = re.compile(r"''(?<!''')(?!')((?:[^'\n]|'(?!'))+)'''(?=s\b)")
"""''Iliad'''s: italic and an apostrophe."""
_SPACES = re.compile(r"  +")
# Each begins with a character that is rare in text, so that the search skips to it.
_EMPTY_PARENTHESES = re.compile(r"\([ ,;:،؛–-]*\)")
_AFTER_OPENING = re.compile(r"\([ ,;:،؛]+")
_CLOSING_AFTER_GAP = re.compile(r"\)(?<=[ ,;،؛]\))")
_COMMA_AFTER_GAP = re.compile(r",(?<= ,)")
_WIDE_PARENTHESES = re.compile(r"（[ ,;:、，；：]*(）?)")
_HEADING = re.compile(r"(={1,6})(.+?)={1,6}$")
_WORD_CHARACTER = re.compile(r"[^\W_]")
_SHOWN = re.compile(r"\A\s*(?:\d|text)\s*=")
"""Before a value that has a name, but counts like one without."""
_NAMED = re.compile(rf"(?!{_SHOWN.pattern})\s*[\w -]{{1,30}}=")
_MARKUP = str.maketrans({character: f"&#{ord(character)};" for character in "[]{}<>'|=_*#:;&"})


def plain_text(markup: str, hidden: Collection[str] = HIDDEN_NAMESPACES) -> str:
    """Return the words that ``markup`` shows, without tables, notes, formulas, code and files.

    Args:
        markup: a page's wiki markup, already unescaped from XML.
        hidden: namespaces, in lower case, whose links show nothing.

    Returns:
        One paragraph, heading or list item a line; a heading only where text follows.
    """
    text = markup
    if "<" in text:
        text = _without_elements(_COMMENT.sub("", text))
    text = _resolve_templates(text)
    if "{|" in text:
        text = _without_tables(text)
    text = _resolve_links(_EXTERNAL_LINK.sub(r"\1", _PLAIN_LINK.sub(r"\1", text)), hidden)
    if "<" in text:
        text = _TAG.sub(lambda tag: "\n\n" if tag[1] else "", text)
    return _tidy(_without_quotes(text))


# What pairs


def _replace(text: str, ends: Ends, show: Callable[[str], str]) -> str:
    """Return ``text`` with what is between outermost ``ends`` replaced by what ``show`` returns.

    Args:
        text: any text; an end without its counterpart stays.
        ends: what opens and what closes; two characters or more each.
        show: takes the text between two ends.
    """
    parts, position = [], 0
    for begin, end in _outermost(text, ends):
        parts += [text[position:begin], show(text[begin + 2 : end - 2])]
        position = end
    return "".join([*parts, text[position:]]) if position else text


def _outermost(text: str, ends: Ends) -> list[tuple[int, int]]:
    """Return where the outermost pairs of ``ends`` begin and end, in one pass."""
    opening, closing = ([found.span() for found in end.finditer(text)] for end in ends)
    openings = set(opening)
    opened: list[tuple[int, int]] = []  # position and width of what is not closed yet
    found: list[tuple[int, int]] = []
    for begin, end in sorted(opening + closing):  # two runs: one merge
        width = end - begin
        if (begin, end) in openings:
            opened.append((begin, width))
            continue
        while width > 1 and opened:
            position, open_width = opened.pop()
            used = min(width, open_width)
            width, open_width = width - used, open_width - used
            while found and found[-1][0] >= position + open_width:
                found.pop()
            found.append((position + open_width, end - width))
            if open_width > 1:
                opened.append((position, open_width))
    return found


def _without_elements(text: str) -> str:
    """Return ``text`` without silent elements, and with the content of nowiki escaped."""
    tags = [(tag.span(), tag[1], tag[2].lower(), tag[3]) for tag in _ELEMENT.finditer(text)]
    last_closing = {name: span[0] for span, closing, name, _ in tags if closing}
    parts, position, inside = [], 0, ""
    for (begin, end), closing, name, closed in tags:
        if inside:
            if not closing or name != inside:
                continue
            if inside == "nowiki":
                parts.append(text[position:begin].translate(_MARKUP))
            inside, position = "", end
        elif not closing:
            parts.append(text[position:begin])
            position = end
            if not closed and last_closing.get(name, -1) > begin:
                inside = name
    return "".join([*parts, text[position:]])


def _without_tables(text: str) -> str:
    """Return ``text`` without its tables, which are recognised by their first and last lines."""
    lines = text.split("\n")
    opened: list[int] = []
    found: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        if line[:1] not in "{| \t:*#;":
            continue
        if line.lstrip(" \t:*#;").startswith("{|"):
            opened.append(number)
        elif opened and line.lstrip(" \t").startswith("|}"):
            first = opened.pop()
            while found and found[-1][0] > first:
                found.pop()
            found.append((first, number))
    for first, last in found:
        lines[first : last + 1] = ["", *[""] * (last - first - 1), lines[last].lstrip(" \t")[2:]]
    return "\n".join(lines)


# Templates


def _resolve_templates(text: str, depth: int = 0) -> str:
    if "{{" not in text:
        return text
    return _replace(text, _BRACES, lambda content: _template(content, depth))


def _template(content: str, depth: int) -> str:
    """Return what the template ``{{content}}`` shows in a sentence, if that is known."""
    name, _, rest = content.partition("|")
    key = name.strip().lower().replace("_", " ")
    if number := _FORMATTED.fullmatch(key):
        return number[1]
    if _ORDINAL.fullmatch(key):
        return name.strip()
    show = _INLINE.get("lang-" if key.startswith("lang-") else key)
    if show is None or depth == _MAX_DEPTH:
        return ""
    rest = _PLAIN_LINK.sub(r"\1", _resolve_templates(rest, depth + 1))
    values = _resolve_links(rest, HIDDEN_NAMESPACES).split("|")
    try:
        return show([_SHOWN.sub("", each).strip() for each in values if not _NAMED.match(each)])
    except (IndexError, ValueError):  # fewer values than it needs
        return ""


_FORMATTED = re.compile(r"formatnum:\s*(-?[\d.,]+)")
"""A number that MediaWiki writes as its language does."""
_ROMAN = re.compile("[IVX]+")
_ORDINAL = re.compile(r"(?:\d+|[ivx]+)(?:er|re|ère|e|ème)(?: siècle| millénaire)?")
"""A template of French that shows its own name: 1er, XXe siècle."""


def _measure(values: list[str]) -> str:
    """Return '10 km' of 10, km, mi; '10 to 20 km' of 10, to, 20, km."""
    number, unit, *rest = values
    if unit in {"-", "–", "to", "and", "or", "by", "x"} and len(rest) > 1:
        return f"{number} {unit} {rest[0]} {rest[1]}".replace(" - ", "–").replace(" – ", "–")
    return f"{number} {unit}"


def _century(values: list[str]) -> str:
    """Return 'XIXe siècle' of XIX, or of XIX, e."""
    number, ending = [*values, "e"][:2]
    return f"{number}{ending} siècle" if _ROMAN.fullmatch(number) else ""


def _with_original(values: list[str]) -> str:
    """Return 'English (original, transcription)' of the Japanese templates."""
    english, *others = [value for value in values[:3] if value]
    return f"{english} ({', '.join(others)})" if others else english


_INLINE: dict[str, Callable[[list[str]], str]] = {
    **dict.fromkeys(("lang", "langx", "langue", "abbrlink"), itemgetter(1)),
    **dict.fromkeys(("transl", "transliteration"), itemgetter(-1)),
    **dict.fromkeys(
        (
            *("lang-", "nowrap", "nobr", "small", "smaller", "big", "larger", "sc", "smallcaps"),
            *("abbr", "tooltip", "sup", "sub", "em", "strong", "visible anchor", "vanchor"),
            *("quote", "blockquote", "cquote", "quotation", "citaat", "zitat", "ill", "val"),
            *("interlanguage link", "interlanguage link multi", "zh", "angbr", "sic", "poem"),
            *("仮リンク", "読み仮名", "ruby", "ルビ"),
        ),
        itemgetter(0),
    ),
    **dict.fromkeys(("convert", "cvt"), _measure),
    **dict.fromkeys(("s", "s-"), _century),
    **dict.fromkeys(
        ("unité", "nombre"), lambda values: f"{values[0]} {''.join(values[1:3])}".strip()
    ),
    **dict.fromkeys(("date", "date-"), lambda values: " ".join(filter(None, values[:3]))),
    **dict.fromkeys(("nihongo", "nihongo2", "korean"), _with_original),
    **dict.fromkeys(("circa", "c.", "ca."), lambda values: f"c. {values[0]}"),
    "as of": lambda values: f"As of {' '.join(reversed(values[:3]))}",
    "frac": lambda values: "/".join(values[-2:]),
    **dict.fromkeys(("'", "`"), lambda _: "'"),
    **dict.fromkeys(("snd", "spnd", "spaced ndash", "spaced en dash"), lambda _: " – "),
    **dict.fromkeys(("ndash", "–", "en dash"), lambda _: "–"),
    **dict.fromkeys(("mdash", "—", "em dash"), lambda _: "—"),
    **dict.fromkeys(("nbsp", "space", "spaces"), lambda _: " "),
}
"""The text of a template, computed from its unnamed values; empty if there are too few."""


# Links and tags


def _resolve_links(text: str, hidden: Collection[str], depth: int = 0) -> str:
    if "[[" not in text:
        return text
    return _replace(text, _BRACKETS, lambda content: _link(content, hidden, depth))


def _link(content: str, hidden: Collection[str], depth: int) -> str:
    """Return what ``[[content]]`` shows."""
    target, has_text, _ = content.partition("|")
    if _shows_nothing(target, hidden) or depth == _MAX_DEPTH:
        return ""
    shown = _resolve_links(content, hidden, depth + 1)
    return shown.rpartition("|")[2] if has_text else shown.strip().lstrip(":")


def _shows_nothing(target: str, hidden: Collection[str]) -> bool:
    """Return whether a link to ``target`` is a file, a category or the page in another language."""
    prefix, colon, _ = target.partition(":")
    prefix = prefix.strip()
    return bool(colon and prefix) and (
        prefix.lower().replace("_", " ") in hidden
        or _LANGUAGE.fullmatch(prefix) is not None
        or _MEDIA_ENDING.search(target) is not None
    )


def _without_quotes(text: str) -> str:
    """Return ``text`` without the marks of bold and italic."""
    if "'''s" in text:
        text = _GENITIVE.sub(r"\1'", text)
    text = _ELISION.sub(r"'\1", text)
    return _QUOTES.sub("", text)


# Lines


_LEFT_OVER = ("{{", "}}", "[[", "]]")
"""Ends that may remain without a counterpart."""


def _tidy(text: str) -> str:
    """Remove the markup of whole lines, and what other removed markup left behind."""
    if "-{" in text:
        text = _VARIANTS.sub(_variant, text)
    if "__" in text:
        text = _MAGIC_WORD.sub(lambda word: "" if word[0].upper() == word[0] else word[0], text)
    while any(rest in text for rest in _LEFT_OVER):  # removing one may join another
        for rest in _LEFT_OVER:
            text = text.replace(rest, "")
    text = text.replace("&nbsp;", " ").replace("\u00a0", " ").replace("\t", " ")
    text = _SPACES.sub(" ", _without_gaps(text))
    lines = [(level, line.strip()) for level, line in _lines(text) if _WORD_CHARACTER.search(line)]
    text = "\n".join(_with_text(lines))
    if "&" in text:
        text = _ENTITY.sub(lambda found: html.unescape(found[0]).replace("\u00a0", " "), text)
    return text


def _without_gaps(text: str) -> str:
    """Close the gaps that removed templates leave in parentheses and before commas."""
    if "(" in text:
        text = _AFTER_OPENING.sub("(", _closed_up(text, _EMPTY_PARENTHESES, " ", ""))
        text = _closed_up(text, _CLOSING_AFTER_GAP, " ,;،؛", ")")
    if "（" in text:
        text = _WIDE_PARENTHESES.sub(lambda found: "" if found[1] else "（", text)
    return _closed_up(text, _COMMA_AFTER_GAP, " ", ",")


def _closed_up(text: str, ends: re.Pattern[str], gap: str, end: str) -> str:
    """Return ``text`` with ``end`` for each of ``ends``, without the ``gap`` before it."""
    *parts, last = ends.split(text)
    return end.join([*(part.rstrip(gap) for part in parts), last]) if parts else text


def _variant(match: re.Match[str]) -> str:
    """Return the first of the variants in ``-{zh-hans:A;zh-hant:B}-``."""
    flag, bar, rest = match[1].rpartition("|")
    if bar and set(flag.upper()) & set("HT-"):
        return ""
    first = rest.split(";")[0]
    code, colon, words = first.partition(":")
    return words if colon and _LANGUAGE.fullmatch(code.strip()) else first


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line, and its level if it is a heading, else 0.

    Lines of one paragraph are joined: in wiki markup a single line break is a space.
    """
    paragraph: list[str] = []
    for line in [*text.split("\n"), ""]:
        marker = line[:1]
        if marker and marker not in _LINE_MARKERS:
            paragraph.append(line)
            continue
        yield 0, " ".join(paragraph)
        paragraph = []
        if marker == "=" and (heading := _HEADING.match(line.rstrip())):
            yield len(heading[1]), heading[2]
        elif marker and not _OF_TABLE.match(line):
            yield 0, line if marker in "={!" else line.lstrip(_LIST_MARKERS)


_LIST_MARKERS = " \t*#:;"
_LINE_MARKERS = f"{_LIST_MARKERS}=|!{{"
_OF_TABLE = re.compile(r"[ \t:*#;]*(?:\||\{\||!.*\|)")
"""Lines of a table that is not closed."""


def _with_text(lines: list[tuple[int, str]]) -> list[str]:
    """Return the lines without the headings of sections that have no text."""
    kept: list[str] = []
    below = 1  # level of the line kept last, seen from the end; 0 is text
    for level, line in reversed(lines):
        if not level or not below or (kept and below > level):
            kept.append(line)
            below = level
    return kept[::-1]
