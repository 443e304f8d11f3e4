"""Reads RACE: reading comprehension from English examinations, with four options per question.

The public archive has one JSON file per passage, ``RACE/{train,dev,test}/{middle,high}/N.txt``; the
reference reads all passages of a folder from one ``all.txt``, one JSON object per line. Both are
read.

Sources: Lai et al. 2017; `race_utils.py` of google-research/albert.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, Self

import numpy as np
from annotated_types import Len
from pydantic import model_validator

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import ChoiceExamples
from albert_core.tasks.reading import Record, of_each, parse_record, read_text

GROUPS = ("middle", "high")
ALL_PASSAGES = "all.txt"
LETTERS = "ABCD"


class _Passage(Record):
    """An article with its questions."""

    article: str
    questions: list[str]
    options: list[Annotated[list[str], Len(len(LETTERS), len(LETTERS))]]
    answers: list[Literal["A", "B", "C", "D"]] | None = None
    """None: they are withheld."""
    id: Any = None

    @model_validator(mode="after")
    def _fit_each_other(self) -> Self:
        for name, each in (("options", self.options), ("answers", self.answers)):
            if each is not None and len(each) != len(self.questions):
                raise ValueError(f"{len(each)} {name} for {len(self.questions)} questions")
        return self


def read_race(uris: Sequence[str]) -> ChoiceExamples:
    """Return the questions of the passages in the files ``uris``, in that order.

    A question's id consists of its passage's, e.g. "high19432.txt", and its number in the passage,
    from 0. The passage's id is the names of its folder and file; in an ``all.txt``, its field "id".

    Args:
        uris: files of one passage or, if called ``all.txt``, of one per line; each in a folder
            called middle or high, which is the group of its questions.

    Raises:
        TaskError: a file is missing, or a passage malformed; naming the file and the field.
    """
    texts = zip(uris, of_each(read_text, uris), strict=True)
    found = [each for uri, text in texts for each in _passages(uri, text)]
    place_of: dict[str, str] = {}
    for where, name, _, _ in found:
        if place_of.setdefault(name, where) != where:
            raise TaskError(f"{where}: id {name!r} is that of {place_of[name]} too. Correct it.")
    passages = [passage for *_, passage in found]
    numbers = [len(passage.questions) for passage in passages]
    targets = [LETTERS.index(letter) for each in passages for letter in each.answers or ()]
    if not sum(numbers):
        raise TaskError(
            f"RACE has no questions in {len(uris)} files; expected JSON with article, questions, "
            "options and answers."
        )
    if targets and len(targets) != sum(numbers):
        raise TaskError(
            f"{uris[0]}: {len(targets)} of {sum(numbers)} questions of this split have answers; "
            "expected all or none."
        )
    return ChoiceExamples(
        ids=[
            f"{name}-{question}"
            for _, name, _, passage in found
            for question in range(len(passage.questions))
        ],
        articles=[passage.article for passage in passages],
        article_of=np.repeat(np.arange(len(passages)), numbers),
        questions=list(chain.from_iterable(passage.questions for passage in passages)),
        options=[tuple(options) for passage in passages for options in passage.options],
        targets=np.array(targets, np.int64) if targets else None,
        groups=np.repeat([group for _, _, group, _ in found], numbers).tolist(),
    )


def _passages(uri: str, text: str) -> Iterator[tuple[str, str, str, _Passage]]:
    """Yield place, id, group and content of each passage."""
    *_, group, file = ["", *uri.split("/")]
    if file != ALL_PASSAGES:
        yield uri, group + file, group, parse_record(_Passage, text, uri)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{uri}, line {number}"
            passage = parse_record(_Passage, line, where)
            yield where, str(passage.id or f"{group}-line-{number}"), group, passage
