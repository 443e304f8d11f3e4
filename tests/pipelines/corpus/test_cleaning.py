import gzip
import json
import random
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import ftfy
import pytest
import xxhash
from ftfy.badness import MOJIBAKE_CATEGORIES
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus.cleaning import content_hash, normalise_texts, repair_mojibake
from pipelines.corpus.wrapped_lines import join_wrapped
from tests.pipelines.corpus.normalised import normalise_text

CORPORA = Path(__file__).parents[4] / "shared/data/corpora"
MESSY = CORPORA / "messy"
ODD = st.text(
    st.sampled_from(
        "aé字. \t\n\r\x00\x08\x0b\x0c\x1f\x85\xa0\xad\u200b\u0301\u2028\u202e\ufeff\ufffd\ud800Ã©"
    )
    | st.characters()
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", "plain text"),
        ("  blanks \t on  both\u3000sides ", "blanks on both sides"),
        ("schÃ¶n und â€œgutâ€\x9d", "schön und “gut”"),
        ("e\u0301", "é"),
        ("“quotes” and \N{EM DASH} stay", "“quotes” and \N{EM DASH} stay"),
        ("می\u200cخواهم क्\u200dष a\u200cb\u200d", "می\u200cخواهم क्\u200dष ab"),
        ("zero\u200bwidth\x00 \ufeffand\x07 control", "zerowidth and control"),
        ("docu\xadmen\xadta&shy;tion of MarÃ\xada", "documentation of María"),
        ("", ""),
        ("N\x08NA\x08A and _\x08i_\x08t", "NA and it"),
        ("I&#39;d say AT&amp;T&#x27;s &quot;plan&quot;", "I'd say AT&T's \"plan\""),
        ("\x1b[31mred\x1b[0m & blue", "red & blue"),
        (" \n\t\n ", ""),
    ],
)
def test_a_text_is_repaired(text: str, expected: str) -> None:
    assert normalise_text(text) == expected


@pytest.mark.parametrize(
    "end", ["\n", "\r\n", "\r", "\n\n", "\n \n\t\n", "\r\n\r\n", "\u2029", "\x0c"]
)
def test_paragraphs_are_parted_by_one_line_end(end: str) -> None:
    assert normalise_text(f"One paragraph.{end}Another.") == "One paragraph.\nAnother."


def normalised_slowly(text: str) -> str:
    """Return what `normalise_text` returns: its specification, in regular expressions."""
    text = re.sub(r"[^\n]\x08", "", text)
    text = ftfy.fix_text(text, uncurl_quotes=False)
    text = re.sub(r"\r\n?|[\u2028\u2029\x0b\x0c\x85]", "\n", text)
    text = re.sub(
        r"[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\ufeff\ufffd\ud800-\udfff]",
        "",
        text,
    )
    asian = "[\u0600-\u1cff]"
    text = re.sub(rf"(?<!{asian})[\u200c\u200d]|[\u200c\u200d](?!{asian})", "", text)
    text = re.sub(r"\n\s*\n+", "\n\n", unicodedata.normalize("NFC", text))
    text = join_wrapped(re.sub(r"[^\S\n]", " ", text))
    lines = [re.sub(r"[^\S\n]+", " ", line).strip() for line in text.split("\n")]
    return "\n".join(line for line in lines if line)


MOJIBAKE = "".join(
    character
    for category in MOJIBAKE_CATEGORIES.values()
    for character in re.sub(
        "(.)-(.)", lambda m: "".join(map(chr, range(ord(m[1]), ord(m[2]) + 1))), category
    )
)
SUSPECT = st.lists(
    st.sampled_from(MOJIBAKE + "\n\n a.eZ\uff21\uff1c\uff9e\ufb03<\u3000\u0301\u1161\x1b\ud83d")
    | st.sampled_from(["&amp;", "&lt;", "\U0001f600", "\r\n", "Ã©", "\u1100\u1161"]),
    max_size=20,
).map("".join)
LINE = st.text("a b.-\t\xa0é—", min_size=30, max_size=60)


@given(ODD | SUSPECT | st.lists(LINE).map("\n".join) | st.text("ae\u0301\u200b\u1100\u1161"))
@settings(max_examples=1000)
def test_the_fast_way_gives_what_the_specification_says(text: str) -> None:
    clean = normalise_text(text)
    assert clean == normalised_slowly(text)
    assert unicodedata.is_normalized("NFC", clean)


def some_text(rng: random.Random) -> str:
    """Return a few of the characters that occur in mojibake, or a little real mojibake."""
    text = "".join(rng.choices(MOJIBAKE + " a1.\n", k=rng.randrange(1, 12)))
    encoding = rng.choice(["utf-8", "utf-8", "latin-1", "cp1252", "cp1251", "macroman"])
    return text.encode().decode(encoding, "ignore") + "é"


def test_ftfy_would_repair_the_same() -> None:
    rng = random.Random(12345)
    texts = [some_text(rng) for _ in range(20_000)]
    for text, repaired in zip(texts, repair_mojibake(texts), strict=True):
        assert repaired == ftfy.fix_text(text, uncurl_quotes=False), ascii(text)


def test_the_first_tag_of_a_text_ends_the_repair_of_entities() -> None:
    text = "é &amp;\n<p>\n&amp; é\n&amp;"
    assert normalise_text(text) == normalised_slowly(text) == "é &\n<p>\n&amp; é\n&amp;"


def corpus_texts() -> Iterator[str]:
    """Yield the beginnings of real files and documents, of every corpus."""
    for folder in ("wiki_extracted", "gutenberg", "messy"):
        for path in sorted((CORPORA / folder).rglob("*")):
            if path.is_file():
                yield path.read_bytes()[:60_000].decode("utf-8", "replace")
    with gzip.open(CORPORA / "novels.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"][:20_000]


@pytest.mark.skipif(not CORPORA.exists(), reason=f"{CORPORA} is absent")
def test_the_fast_way_gives_what_the_specification_says_of_real_text() -> None:
    texts = list(corpus_texts())
    for text, normalised in zip(texts, normalise_texts(texts), strict=True):
        assert normalised == normalised_slowly(text)


def test_a_line_that_is_a_sentence_stays_one() -> None:
    line = "A line that somebody's editor has wrapped at"
    sentences = f"{line}\nsome  column.\n \nAnother"
    clean = normalise_text(sentences, lines_are_sentences=True)
    assert clean == f"{line}\nsome column.\nAnother"


@pytest.mark.skipif(not MESSY.exists(), reason=f"{MESSY} is absent")
@pytest.mark.parametrize("name", ["in-the-wild", "synthetic", "negative", "language-names"])
def test_real_mojibake_is_repaired_and_what_only_looks_like_it_left_alone(name: str) -> None:
    path = MESSY / f"ftfy_test_cases/{name}.json"
    cases = json.loads(path.read_text(encoding="utf-8"))
    assert len(cases) >= 20
    for case in cases:
        expected = case.get("fixed-encoding", case["fixed"])
        assert normalise_text(case["original"]) == normalise_text(expected), case["label"]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Some\nMORE words", "some more words"),
        ("ÉTÉ À PARIS", "été à paris"),
        ("ΟΔΟΣ", "οδος"),
        ("STRASSE", "straße"),
    ],
)
def test_case_of_every_script_and_layout_do_not_change_the_hash(text: str, same: str) -> None:
    assert content_hash(text) == content_hash(same)
    assert content_hash(text) != content_hash(f"{same}s")


@given(ODD, st.sampled_from(["", "and many plain words " * 9]))
def test_a_hash_folds_the_case_of_few_and_of_many_foreign_characters(text: str, more: str) -> None:
    text = " ".join((text + more).split())
    folded = text.casefold().encode("utf-8", "surrogatepass")
    assert content_hash(text) == xxhash.xxh3_128_digest(folded)


def test_a_hash_is_this_for_ever() -> None:
    assert content_hash("Some words.\nMore.").hex() == "36a7aa06ec2a10e2ec2baaa1d8971b8c"
