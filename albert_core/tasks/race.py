"""Reads RACE: reading comprehension from English examinations, with four options per question.

The public archive has one JSON file per passage, ``RACE/{train,dev,test}/{middle,high}/N.txt``; the
reference reads all passages of a folder from one ``all.txt``, one JSON object per line. Both are
read.

Sources: Lai et al. 2017; `race_utils.py` of google-research/albert.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeGuard

import numpy as np

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import ChoiceExamples
from albert_core.tasks.reading import READING_THREADS, parse_object, read_text

GROUPS = ("middle", "high")
ALL_PASSAGES = "all.txt"
LETTERS = "ABCD"


@dataclass(frozen=True)
class _Passage:
    """An article with its questions, as the file has it."""

    where: str
    name: str
    group: str
    values: dict[str, Any]

    def article(self) -> str:
        found = self.values.get("article")
        if not isinstance(found, str):
            raise self.error(f"field 'article' is {repr(found)[:60]}, expected a text")
        return found

    def texts(self, name: str) -> list[str]:
        """Return field ``name``, a list of texts."""
        found = self.values.get(name)
        if not _are_texts(found):
            raise self.error(f"field {name!r} is {repr(found)[:60]}, expected a list of texts")
        return found

    def options(self, num_questions: int) -> list[tuple[str, ...]]:
        found = self.values.get("options")
        if not isinstance(found, list) or len(found) != num_questions:
            number = len(found) if isinstance(found, list) else "no"
            raise self.error(f"{number} lists of options for {num_questions} questions")
        for number, options in enumerate(found):
            if not _are_texts(options) or len(options) != len(LETTERS):
                raise self.error(
                    f"options[{number}] is {repr(options)[:60]}, expected {len(LETTERS)} texts"
                )
        return [tuple(options) for options in found]

    def targets(self, num_questions: int) -> list[int]:
        """Return the indices of the right options; none if the passage has no answers."""
        if "answers" not in self.values:
            return []
        answers = self.texts("answers")
        if len(answers) != num_questions:
            raise self.error(f"{len(answers)} answers for {num_questions} questions")
        for number, answer in enumerate(answers):
            if answer not in tuple(LETTERS):
                raise self.error(f"answers[{number}] is {answer!r}, expected one of A, B, C, D")
        return [LETTERS.index(answer) for answer in answers]

    def error(self, message: str) -> TaskError:
        """Return an error that names the place."""
        return TaskError(f"{self.where}: {message}. Correct or remove the passage.")


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
    with ThreadPoolExecutor(READING_THREADS) as pool:
        texts = zip(uris, pool.map(read_text, uris), strict=True)
        passages = [passage for uri, text in texts for passage in _passages(uri, text)]
    place_of: dict[str, str] = {}
    for each in passages:
        if place_of.setdefault(each.name, each.where) != each.where:
            raise each.error(f"id {each.name!r} is that of {place_of[each.name]} too")
    questions = [each.texts("questions") for each in passages]
    numbers = [len(asked) for asked in questions]
    options = [each.options(number) for each, number in zip(passages, numbers, strict=True)]
    targets = [
        target
        for each, number in zip(passages, numbers, strict=True)
        for target in each.targets(number)
    ]
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
            f"{each.name}-{question}"
            for each, number in zip(passages, numbers, strict=True)
            for question in range(number)
        ],
        articles=[each.article() for each in passages],
        article_of=np.repeat(np.arange(len(passages)), numbers),
        questions=list(chain.from_iterable(questions)),
        options=list(chain.from_iterable(options)),
        targets=np.array(targets, np.int64) if targets else None,
        groups=np.repeat([each.group for each in passages], numbers).tolist(),
    )


def _passages(uri: str, text: str) -> Iterator[_Passage]:
    *_, group, name = ["", *uri.split("/")]
    if name != ALL_PASSAGES:
        yield _Passage(uri, group + name, group, parse_object(text, uri))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{uri}, line {number}"
            values = parse_object(line, where)
            yield _Passage(where, values.get("id") or f"{group}-line-{number}", group, values)


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
