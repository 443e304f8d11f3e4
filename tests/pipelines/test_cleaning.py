import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.cleaning import content_hash, normalise_text, reject_reason
from pipelines.config import CleaningSettings

MESSY = Path(__file__).parents[3] / "shared/data/corpora/messy"
RULES = CleaningSettings(min_words=3, min_letter_share=0.6, max_word_characters=8.0)
ODD = st.text(
    st.sampled_from(
        "aé字. \t\n\r\x00\x0b\x0c\x1f\x85\xa0\u200b\u0301\u2028\u202e\ufeff\ufffd\ud800Ã©"
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
        ("zero\u200bwidth\x00 \ufeffand\x07 control", "zerowidth and control"),
        ("", ""),
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


LONG = "A line that somebody's editor has wrapped at"


def test_a_wrapped_line_is_joined_to_the_next() -> None:
    assert normalise_text(f"{LONG}\nsome column.") == f"{LONG} some column."


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{LONG}.", "The next sentence."),
        (f"{LONG}:", "the list"),
        ("A heading", "and the text below it."),
        (LONG, "- an item"),
        (LONG, "* an item"),
        (LONG, "2. an item"),
        (LONG, ">>> code"),
        (LONG, "======="),
    ],
)
def test_a_line_that_was_not_wrapped_stays(before: str, after: str) -> None:
    assert normalise_text(f"{before}\n{after}") == f"{before}\n{after}"


def test_a_blank_line_after_a_long_line_parts_paragraphs() -> None:
    assert normalise_text(f"{LONG}\n\nAnother paragraph.") == f"{LONG}\nAnother paragraph."


@given(ODD)
def test_no_text_keeps_control_characters_or_extra_blanks(text: str) -> None:
    clean = normalise_text(text)
    assert all(c == "\n" or unicodedata.category(c) != "Cc" for c in clean)
    assert not set(clean) & set("\u200b\u202e\ufeff\ufffd\u2028\u2029\xa0\t")
    for line in clean.split("\n") if clean else []:
        assert line == " ".join(line.split())
        assert line


@given(ODD)
def test_every_clean_text_can_be_written_as_utf8(text: str) -> None:
    assert normalise_text(text).encode().decode() == normalise_text(text)


@given(ODD | st.text("ae\u0301\u200b\u1100\u1161"))
def test_clean_text_is_nfc(text: str) -> None:
    assert unicodedata.is_normalized("NFC", normalise_text(text))


@given(st.text("abc .,?!'", max_size=300))
def test_plain_text_loses_no_word(text: str) -> None:
    assert normalise_text(text).split() == text.split()


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
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n ", "empty"),
        ("two words", "too_short"),
        ("three good words", None),
        ("longwords longwords longwords", "words_too_long"),
        ("eightlet eightlet eightlet", None),
        ("aaaaaa 1111 aaaaaa 2222", None),
        ("aaaaa 1111 aaaaa 2222", "too_few_letters"),
        ("1 2 3 4", "too_few_letters"),
        ("größe größe größe", None),
        ("слова слова слова", None),
    ],
)
def test_a_text_is_dropped_for_a_reason(text: str, reason: str | None) -> None:
    assert reject_reason(text, RULES) == reason


@given(st.text())
def test_rules_that_ask_for_nothing_drop_only_what_is_empty(text: str) -> None:
    rules = CleaningSettings(min_words=0, min_letter_share=0.0, max_word_characters=1e9)
    assert reject_reason(text, rules) == (None if text.split() else "empty")


@given(st.lists(st.text("abcXYZé", min_size=1), min_size=1), st.sampled_from([" ", "\n", " \t\n"]))
def test_case_and_layout_do_not_change_the_hash(words: list[str], blank: str) -> None:
    assert content_hash(blank.join(words).upper().lower()) == content_hash(" ".join(words))


@given(st.lists(st.text("abc", min_size=1)), st.lists(st.text("abc", min_size=1)))
def test_other_words_change_the_hash(words: list[str], others: list[str]) -> None:
    same = content_hash(" ".join(words)) == content_hash(" ".join(others))
    assert same == (words == others)


@given(st.text(st.characters(exclude_categories=[])))
def test_every_text_has_a_hash_of_16_bytes(text: str) -> None:
    assert len(content_hash(text)) == 16


def test_golden_hash() -> None:
    assert content_hash("Some  words.\n").hex() == GOLDEN_HASH


GOLDEN_HASH = "135a9832ac37cc97379cb667b70ce4f9"
