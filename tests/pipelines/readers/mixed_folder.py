"""A folder of files of every kind, in eight languages and seven encodings, some of them broken.

A document of it has a heading, where its kind has such, and two paragraphs of three sentences.
"""

import gzip
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice, permutations
from pathlib import Path
from typing import NamedTuple

import brotli  # type: ignore[import-untyped]
import pyarrow as pa

from pipelines.readers import PANDOC_FORMATS
from tests.pipelines.readers import reading
from tests.pipelines.readers.examples import BOOK_START, POST

UNKNOWN = "unknown_markup"
ELEMENT = "abstract"
"""The element that `source.xml_element` names."""
SENTENCES = {
    "en": """The ferry leaves the harbour every morning before the sun is up. Most of the
        passengers work in the small factory on the other side. When the fog is thick, the captain
        rings an old bell that his father gave him. Nobody can remember a winter in which the river
        was frozen for so long. The children have learned to skate between the boats and the wooden
        bridge. In spring the ice breaks with a noise that is heard in all the villages.""",
    "de": """Die Fähre verlässt den Hafen jeden Morgen, bevor die Sonne aufgeht. Die meisten
        Fahrgäste arbeiten in der kleinen Fabrik auf der anderen Seite. Wenn der Nebel dicht ist,
        läutet der Kapitän eine alte Glocke seines Vaters. Niemand kann sich an einen Winter
        erinnern, in dem der Fluss so lange zugefroren war. Die Kinder haben gelernt, zwischen den
        Booten und der Brücke Schlittschuh zu laufen. Im Frühling bricht das Eis mit einem Lärm, den
        man in allen Dörfern hört.""",
    "fr": """Le bac quitte le port chaque matin avant que le soleil ne se lève. La plupart des
        passagers travaillent dans la petite usine en face du village. Quand le brouillard est
        épais, le capitaine sonne une vieille cloche de son père. Personne ne se rappelle un hiver
        où la rivière est restée gelée si longtemps. Les enfants ont appris à patiner entre les
        bateaux et le pont de bois. Au printemps, la glace se brise avec un bruit que tous les
        villages entendent.""",
    "ru": """Паром уходит из гавани каждое утро, ещё до того как встаёт солнце. Почти все
        пассажиры работают на маленькой фабрике на другом берегу реки. Когда туман густой, капитан
        звонит в старый колокол, который ему оставил отец. Никто не может вспомнить зиму, когда река
        так долго была покрыта льдом. Дети научились кататься на коньках между лодками и деревянным
        мостом. Весной лёд ломается с таким шумом, что его слышно во всех деревнях.""",
    "zh": """渡船每天早晨在太阳升起之前就离开了港口。 大多数乘客都在河对岸的那家小工厂里工作。
        船长总是在大雾里敲响父亲留给他的那口旧钟。 没有人记得有哪个冬天河水结冰结了这么长时间。
        孩子们已经学会了在船只和木桥之间滑冰。 春天的时候冰裂开的声音在所有的村子里都能听到。""",
    "ko": """나룻배는 매일 아침 해가 뜨기 전에 항구를 떠난다. 승객들은 대부분 강 건너편의 작은
        공장에서 일하고 있다. 안개가 짙을 때면 선장은 아버지가 물려준 낡은 종을 울린다. 강이 이렇게
        오랫동안 얼어 있던 겨울을 기억하는 사람은 아무도 없다. 아이들은 배와 나무 다리 사이에서
        스케이트 타는 법을 배웠다. 봄이 오면 얼음이 깨지는 소리가 모든 마을에 들린다.""",
    "ja": """渡し船は毎朝、日が昇る前に港を出ていく。
        乗客のほとんどは向こう岸の小さな工場で働いている。
        霧が深いとき、船長は父から譲られた古い鐘を鳴らす。
        川がこれほど長く凍っていた冬を覚えている人はだれもいない。
        子どもたちは船と木の橋のあいだで滑ることを覚えた。
        春になると、氷の割れる音がすべての村に聞こえる。""",
    "ar": """تغادر العبارة الميناء كل صباح قبل أن تشرق الشمس. يعمل معظم الركاب في المصنع الصغير
        الذي يقع على الضفة الأخرى. عندما يكون الضباب كثيفا يقرع القبطان جرسا قديما تركه له والده. لا
        أحد يتذكر شتاء تجمد فيه النهر مثل هذا الوقت الطويل. تعلم الأطفال التزلج بين القوارب والجسر
        الخشبي القديم. في الربيع ينكسر الجليد بصوت يسمعه الناس في كل القرى.""",
}
_NAMES = ["utf-8", "latin-1", "cp1252", "koi8-r", "gb18030", "euc-kr", "shift_jis", "utf-16"]
ENCODINGS = dict(zip(SENTENCES, _NAMES, strict=True))


class Text(NamedTuple):
    """What a document says."""

    language: str
    sentences: list[str]

    @property
    def paragraphs(self) -> list[str]:
        blank = "" if self.language in ("zh", "ja") else " "
        return [blank.join(self.sentences[:3]), blank.join(self.sentences[3:])]

    @property
    def plain(self) -> str:
        return "\n\n".join(self.paragraphs) + "\n"


def _texts() -> Iterator[Text]:
    """Yield texts that all differ, one in each language and so on."""
    for number, language in enumerate(cycle(SENTENCES)):
        sentences = re.split(r"(?<=[.。])\s+", SENTENCES[language])
        order = islice(permutations(sentences), 19 * (number // len(SENTENCES)), None)
        yield Text(language, [" ".join(each.split()) for each in next(order)])


def _page(text: Text, encoding: str = "utf-8") -> str:
    content = "".join(f"<p>{paragraph}</p>\n" for paragraph in text.paragraphs)
    return (
        f"<html><head><meta charset='{encoding}'><title>T</title></head><body><nav><ul>"
        f"<li><a href='/'>Home</a></li></ul></nav><article><h1>Title 1</h1>{content}</article>"
        "<footer>Copyright</footer></body></html>"
    )


def _tei(text: Text, encoding: str) -> str:
    content = "".join(f"<p>{paragraph}<note>A note.</note></p>" for paragraph in text.paragraphs)
    return (
        f'<?xml version="1.0" encoding="{encoding}"?>\n<TEI><teiHeader>T</teiHeader><text><body>'
        f'<head>Title 1</head><fw type="header">T</fw>{content}</body></text></TEI>'
    )


def _markdown(text: Text) -> str:
    return "# Title 1\n\n" + "\n\n| a |\n|---|\n| 1 |\n\n".join(text.paragraphs) + "\n"


def _pdf(text: Text) -> bytes:
    """Return a PDF with running heads and with hyphens at the ends of lines."""
    broken = [re.sub(r"(?<=\w{3})(?=\w{3})", "-\n", each, count=1) for each in text.sentences]
    return reading.pdf(*(f"Title {n}\n" + "\n".join(broken[2 * n : 2 * n + 2]) for n in range(3)))


def _mail(text: Text) -> bytes:
    charset = {"ar": "utf-8"}.get(text.language, ENCODINGS[text.language])
    quoting = f"> What they wrote.\n\n{text.plain}\n-- \nA. Writer\n"
    return reading.mail(quoting, charset=charset, number=text.language)


def _sgml(texts: list[Text]) -> bytes:
    stories = (
        f'<REUTERS NEWID="{text.language}"><BODY>    {body}\n&#3;</BODY></REUTERS>'
        for text in texts
        for body in ["\n    ".join(text.paragraphs)]
    )
    return "\n".join(['<!DOCTYPE lewis SYSTEM "lewis.dtd">', *stories]).encode()


def _web(texts: Iterable[Text]) -> bytes:
    """Return a packed web archive whose pages are plain, packed with gzip, or with brotli."""
    codings = cycle([("identity", bytes), ("gzip", gzip.compress), ("br", brotli.compress)])
    return b"".join(
        gzip.compress(
            reading.web_record(
                pack(_page(text).encode()), uri=f"http://{text.language}/", Content_Encoding=coding
            )
        )
        for text, (coding, pack) in zip(texts, codings, strict=False)
    )


def _files() -> Iterator[tuple[str, bytes, dict[str, Text]]]:
    """Yield name and content of each file, and its texts by what follows the name in their ids."""
    texts = _texts()

    def eight() -> list[Text]:
        return list(islice(texts, len(SENTENCES)))

    for ending, key, written in (
        *((".txt", "", lambda text, _: text.plain), (".html", "", _page), (".tei", "#doc-0", _tei)),
        (".csv", "#1", lambda text, _: f'id;text\n1;"{text.plain}"\n'),
        (".xml", "#7", lambda text, _: f"<r id='7'><{ELEMENT}>{text.plain}</{ELEMENT}></r>"),
    ):
        for text in eight():
            encoding = ENCODINGS[text.language]
            yield text.language + ending, written(text, encoding).encode(encoding), {key: text}
    for text in eight():
        yield f"{text.language}.eml", _mail(text), {f"#{text.language}@example.com": text}
    for (name, (endings, _)), text in zip([*PANDOC_FORMATS.items()] * 2, texts, strict=False):
        yield text.language + endings[0], reading.by_pandoc(name, _markdown(text)), {"": text}
    for text in eight():
        if text.language in ("en", "de", "fr", "ru"):  # for which Matplotlib has a font
            yield f"{text.language}.pdf", _pdf(text), {"": text}
    packings = [ending for ending in reading.PACKERS if ending != ".tgz"]
    for ending, text in zip(packings, texts, strict=False):
        content = reading.PACKERS[ending](text.plain.encode())
        yield f"{text.language}.txt{ending}", content, {"": text}
    english, german = (next(t for t in texts if t.language == wanted) for wanted in ("en", "de"))
    yield "module.py", f'"""{english.plain}"""'.encode(), {"": english}
    yield "book.txt", (BOOK_START + german.plain).encode("latin-1"), {"": german}
    for name, key, content_of in SEVERAL:
        some = eight()
        keys = [key.format(text.language, n) for n, text in enumerate(some)]
        yield name, content_of(some), dict(zip(keys, some, strict=True))


def _table(texts: list[Text]) -> dict[str, list[str]]:
    return {"id": [each.language for each in texts], "text": [each.plain for each in texts]}


def _array(texts: list[Text]) -> bytes:
    return json.dumps(pa.table(_table(texts)).to_pylist(), indent=2).encode()


def _members(texts: list[Text]) -> dict[str, bytes]:
    return {f"{each.language}.txt": each.plain.encode() for each in texts}


def _lines(form: str, texts: list[Text], head: str = "") -> str:
    return head + "".join(form.format(each.language, each.plain) for each in texts)


def _dump(texts: list[Text]) -> bytes:
    return reading.dump(*(reading.article(n, each.plain) for n, each in enumerate(texts)))


_pack = reading.PACKERS
SEVERAL: list[tuple[str, str, Callable[[list[Text]], bytes]]] = [
    ("all.jsonl", "#{}", lambda texts: reading.json_lines(*pa.table(_table(texts)).to_pylist())),
    ("all.json", "#{}", _array),
    ("all.tsv", "#{}", lambda texts: _lines('{}\t"{}"\n', texts, "id\ttext\n").encode("utf-16")),
    ("all.parquet", "#{}", lambda texts: reading.parquet(_table(texts))),
    ("set/data-00000-of-00001.arrow", "#{}", lambda texts: reading.arrow(_table(texts))),
    ("all.mbox", "#{}@example.com", lambda texts: b"\n\n".join(POST + _mail(t) for t in texts)),
    ("all.sgm", "#{}", _sgml),
    ("all.xml.bz2", "#{1}", lambda texts: _pack[".bz2"](_dump(texts))),
    (
        "wiki_00.zst",
        "#{}",
        lambda texts: _pack[".zst"](_lines('<doc id="{}">\n{}</doc>\n', texts).encode()),
    ),
    ("all.warc.gz", "#http://{}/", _web),
    ("all.zip", "#{}.txt", lambda texts: reading.archive(_members(texts))),
    ("all.tar.gz", "#{}.txt", lambda texts: _pack[".gz"](reading.tar(_members(texts)))),
]
LOST: list[tuple[str, bytes, str]] = [
    ("picture", b"\x89PNG\r\n\x1a\n", "not_text"),
    ("photo.jpg", b"\xff\xd8\xff\xe0", "not_text"),
    ("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><text>x</text></svg>", "not_text"),
    ("catalog.xml", b"<?xml version='1.0'?>\n<catalog><item>x</item></catalog>", UNKNOWN),
    ("page.ps", b"%!PS-Adobe-3.0\n(x) show", UNKNOWN),
    ("ls.1", b".TH LS 1\n.SH NAME\nls", UNKNOWN),
    ("manual.texi", b"\\input texinfo\n@node Top\n", UNKNOWN),
    ("old.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old_office"),
    ("packed.7z", b"7z\xbc\xaf\x27\x1c", "other_archive"),
    ("scan.pdf", reading.pdf(""), "no_text_layer"),
    ("cut.pdf", reading.pdf("One.")[:900], "not_extractable"),
    ("cut.docx", reading.by_pandoc("docx")[:900], "not_extractable"),
    ("cut.txt.gz", gzip.compress(b"x" * 999)[:-9], "truncated_archive"),
    ("cut.txt.br", brotli.compress(b"x" * 99)[:-3], "truncated_archive"),
    ("bad.txt.br", b"\xff" * 99, "corrupt_archive"),
    ("cut.zip", reading.archive({"a.txt": b"x"})[:-9], "corrupt_archive"),
    ("bad.jsonl", b"{broken\n[1]\n", "not_json no_text_field"),
    ("bad.txt", b"PK\x00\xff", "not_decodable"),
    ("bad.parquet", b"PAR1", "not_parquet"),
    ("bad.arrow", b"ARROW1", "not_arrow"),
    ("other.csv", b"a,b\n1,2\n", "no_text_field"),
    ("empty.txt", b"", "empty"),
    ("short.txt", b"A few words.", "too_short"),
    (
        "more.zip",
        reading.archive({"a.zip": reading.archive({}), ".b": b"x", "c": b"GIF89a"}),
        "nested_archive hidden_member not_text",
    ),
    (
        "more.warc",
        reading.web_record(b"x", "image/png")
        + reading.web_record(b"x", status="404 Gone")
        + b"WARC/1.0\r\n\r\n",
        "not_html http_error broken_record",
    ),
]
"""Files of which nothing is kept, and the reasons."""
LINKS = {"gone": "nowhere", "loop": "loop", "up": "..", "zz": "en.txt"}
SKIPPED = {
    "broken_link": 2,
    "linked_folder": 1,
    "special_file": 1,
    "hidden": 1,
    "beside_dataset": 2,
}
REAL: list[tuple[str, int, dict[str, int]]] = [
    ("jsonl_dolma/cc_en_head-0091.jsonl.gz", 10, {}),
    ("mediawiki_dumps/mini/fr.wiki.xml.bz2", 3, {}),
    ("gutenberg/Die-Verwandlung_22367/22367-8.txt", 1, {}),
    ("warc/aut/example.docs.warc.gz", 0, {"not_html": 9}),
]
"""Real files that may be there, how many documents of them are kept, and why others are not."""


def write_folder(folder: Path) -> dict[str, Text]:
    """Write the folder; return the texts by the ids of their documents."""
    expected = dict[str, Text]()
    for name, content, texts in _files():
        (folder / name).parent.mkdir(exist_ok=True)
        assert not (folder / name).exists()
        (folder / name).write_bytes(content)
        expected |= {name + key: text for key, text in texts.items()}
    for name, content, _ in LOST:
        (folder / name).write_bytes(content)
    for name in (".hidden", "set/state.json", "set/cache-1.arrow"):
        (folder / name).write_bytes(b"x")
    os.mkfifo(folder / "pipe")
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    for path in (reading.CORPORA / name for name, *_ in REAL):
        if path.exists():
            (folder / path.name).symlink_to(path)
    return expected
