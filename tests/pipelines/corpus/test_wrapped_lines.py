import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.wrapped_lines import join_wrapped
from tests.pipelines.corpus.normalised import normalise_text
from tests.pipelines.readers.mixed_folder import SENTENCES

LONG = "A line that somebody's editor has wrapped at"


@pytest.mark.parametrize(
    ("before", "after", "between"),
    [
        (LONG, "some column.", " "),
        (f"{LONG}.", "The next sentence.", "\n"),
        (f"{LONG}.", "and on in lower case", " "),
        (f"{LONG}:", "so it goes on", " "),
        (f"{LONG};", "и так далее", " "),
        (f"{LONG}:", "The list", "\n"),
        (f"{LONG}:", "a) the list", "\n"),
        (LONG, "A heading", " "),
        ("A heading", "and the text below it.", "\n"),
        (LONG, "- an item", "\n"),
        (LONG, "* an item", "\n"),
        (LONG, "2. an item", "\n"),
        (LONG, ">>> code", "\n"),
        (LONG, "=======", "\n"),
        (LONG, "% ~~~~", "\n"),
    ],
)
def test_a_line_that_was_wrapped_is_joined_to_the_next(
    before: str, after: str, between: str
) -> None:
    assert normalise_text(f"{before}\n{after}") == f"{before}{between}{after}"
    indented = between if after[0].islower() and after[1] != ")" else "\n"
    assert normalise_text(f"{before}\n    {after}") == f"{before}{indented}{after}"
    assert normalise_text(f"{before}\n\n{after}") == f"{before}\n{after}"


def joined_slowly(text: str) -> str:
    """Return what `join_wrapped` returns of narrow scripts: its specification."""
    lines: list[str] = []
    given_lines = text.split("\n")
    for before, line in zip(["", *given_lines], given_lines, strict=False):
        no_end = re.search(r".{39}[^.!?:;]\Z", before)
        no_item = not re.match(r"\s|[*+\-|>#=.:]|\d+[.)]|\W*\Z", line)
        lower = re.match(r"[^\S\n]*(?!\w{1,4}[.)])[^\W\d_]", line) and line.strip()[0].islower()
        if (no_end and no_item) or (len(before) >= 40 and lower):
            lines[-1] += " " + (line.lstrip() if lower else line)
        else:
            lines.append(line)
    return "\n".join(lines)


LINE = st.text("a b.-\té—", min_size=30, max_size=60)


@given(st.lists(LINE).map("\n".join))
def test_narrow_lines_are_joined_as_specified(text: str) -> None:
    assert join_wrapped(text, is_indented=False) == joined_slowly(text)


def columns(text: str) -> int:
    return len(text) + len(re.sub("[\0-\u2fff]", "", text))


def cut(text: str, width: int) -> str:
    """Return the text in lines of some width, cut anywhere but before a mark."""
    lines = [""]
    for character in text:
        if columns(lines[-1] + character) > width and character not in "。,、 ":
            lines.append("")
        lines[-1] += character
    return "\n".join(lines)


def wrapped(text: str, width: int) -> str:
    """Return the text in lines of some width, cut at blanks."""
    lines = [""]
    for word in text.split():
        if lines[-1] and columns(f"{lines[-1]} {word}") > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return "\n".join(lines)


@pytest.mark.parametrize("language", ["zh", "ja"])
@pytest.mark.parametrize("indent", ["", "  ", "\u3000"])
def test_chinese_and_japanese_lines_are_joined_without_blanks(language: str, indent: str) -> None:
    text = "".join(SENTENCES[language].split())
    for width in range(50, 90):
        lines = cut(text, width).replace("\n", "\n" + indent.strip("\u3000"))
        joined = normalise_text(indent + lines)
        assert joined.replace("。\n", "。") == text


def test_korean_lines_that_end_at_blanks_are_joined_by_blanks() -> None:
    words = SENTENCES["ko"].split()
    for number in range(50):
        text = " ".join(random.Random(number).sample(words, 40)).replace(".", "")
        assert normalise_text(wrapped(text, 60)) == text


def test_korean_words_that_lines_cut_are_put_together_again() -> None:
    text = " ".join(random.Random(1).choices(SENTENCES["ko"].split(), k=1000)).replace(".", "")
    for width in range(50, 90):
        assert normalise_text(cut(text, width)) == text


@pytest.mark.parametrize(
    ("before", "after", "between"),
    [
        ("저희 웹사이트의 다운로드 페이지에 있는 글꼴과 이 프로그램", "에서 받은 글꼴을", ""),
        ("이 프로그램은 어린이를 위하여 만들어진 그림 그리기", "도구 입니다", " "),
        ("这个程序在运行的时候需要一个名字叫做 Debian GNU/Linux", "的系统", " "),
        ("这个程序在运行的时候需要一个名字叫做系统的东西,而且,", "还有别的", ""),
        ("この文章は長いので行の途中で折り返されています（見よ", "「こころ」", ""),
        ("この文章は長いので行の途中で折り返されているのだった。", "次の文", "\n"),
        ("「彼女はもう来ないと言っていたのだが、どうしたのか」", "「さあ」", "\n"),
        ("这行的末尾没有什么标点符号而下一行却以括号开始", "),所以是折断的", ""),
        ("一、这个条目没有句号但是足够长所以看起来像是被折断的", "二、第二", "\n"),
        ("这是一个很短的标题", "正文从这里开始，比标题长得多得多得多得多。", "\n"),
        ("这一行虽然够长但是下一行比它长得多所以它不是折断的", "字" * 60, "\n"),
        ("ผู้โดยสารส่วนใหญ่ทำงานอยู่ในโรงงานเล็ก ๆ อีกฝั่งหนึ่งของแม่", "น้ำทุกวัน", ""),
    ],
)
def test_what_stands_between_joined_lines_depends_on_the_script(
    before: str, after: str, between: str
) -> None:
    assert join_wrapped(f"{before}\n{after}") == before + between + after


PARAGRAPH = """    Der Standard fordert, dass Verzeichnisse unter der Kontrolle des
    Benutzers stehen. So bietet es sich an, dort zu bauen, was nicht aus
    Paketen kommt."""
VERSE = """    Tell me not, in mournful numbers, life is but an empty dream, for
    The soul is dead that slumbers,
    And things are not what they seem."""


def test_a_paragraph_is_joined_where_all_of_it_is_indented() -> None:
    joined = "So bietet es sich an, dort zu bauen, was nicht aus Paketen kommt."
    for before in ("", "Tipp\n\n", "Tipp\n"):
        assert normalise_text(before + PARAGRAPH).endswith(f" des Benutzers stehen. {joined}")
    code = PARAGRAPH.replace("dort zu bauen, was nicht aus", "dort")
    for kept in (VERSE, code):
        assert normalise_text(kept).count("\n") == 2
    for columns, num_ends in ((63, 2), (64, 0)):  # the next word just fits, or just does not
        lines = ("A" * 66, "B" * columns, "Da kommt er")
        paragraph = "\n".join(f"    {line}" for line in lines)
        assert normalise_text(paragraph).count("\n") == num_ends
