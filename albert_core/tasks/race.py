"""Reads RACE: reading comprehension from English examinations, four options a question.

The public archive has one JSON file a passage, ``RACE/{train,dev,test}/{middle,high}/N.txt``; the
reference reads all passages of a folder from one ``all.txt``, one JSON a line. Both will do.

Sources: Lai et al. 2017; `race_utils.py` of google-research/albert.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import ChoiceExamples
from albert_core.tasks.text_lines import decode, read_file

GROUPS = ("middle", "high")
ALL_PASSAGES = "all.txt"
LETTERS = "ABCD"
_READING_THREADS = 16


def read_race(uris: Sequence[str]) -> ChoiceExamples:
    """Return the questions of the passages in the files ``uris``, in that order.

    A question's id is its passage's, e.g. "high19432.txt", and its number in it from 0: of a
    file of one passage the names of its folder and file, of ``all.txt`` what the passage says.

    Args:
        uris: files of one passage or, if called ``all.txt``, of one a line; each in a folder
            called middle or high, which is the group of its questions.

    Raises:
        TaskError: a file is missing, or a passage malformed; naming the file and the field.
    """
    reading = _Reading()
    with ThreadPoolExecutor(_READING_THREADS) as pool:
        for uri, content in zip(uris, pool.map(read_file, uris), strict=True):
            group = uri.split("/")[-2] if "/" in uri else ""
            for passage in _passages(uri, decode(uri, content), group):
                reading.add(passage, group)
    if not reading.ids:
        raise TaskError(
            f"RACE has no questions in {len(uris)} files; expected one JSON a file, with article, "
            "questions, options and answers."
        )
    return reading.examples()


@dataclass(frozen=True)
class _Passage:
    """An article with its questions, as the file has it."""

    where: str
    name: str
    values: dict[str, Any]

    def texts(self, name: str) -> list[str]:
        """Return field ``name``, a list of texts."""
        found = self.values.get(name)
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise self.error(f"field {name!r} is {repr(found)[:60]}, expected a list of texts")
        return found

    def error(self, message: str) -> TaskError:
        """Return an error that says where."""
        return TaskError(f"{self.where}: {message}. Correct or remove the passage.")


@dataclass
class _Reading:
    ids: list[str] = field(default_factory=list)
    articles: list[str] = field(default_factory=list)
    article_of: list[int] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    options: list[tuple[str, ...]] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    """Of each passage's name where it stands."""

    def add(self, passage: _Passage, group: str) -> None:
        """Add the questions of ``passage``."""
        if passage.name in self.places:
            raise passage.error(f"id {passage.name!r} is that of {self.places[passage.name]} too")
        self.places[passage.name] = passage.where
        article = passage.values.get("article")
        if not isinstance(article, str):
            raise passage.error(f"field 'article' is {repr(article)[:60]}, expected a text")
        questions = passage.texts("questions")
        options, targets = _options(passage, questions), _targets(passage, questions)
        self.ids += [f"{passage.name}-{number}" for number in range(len(questions))]
        self.article_of += [len(self.articles)] * len(questions)
        self.articles.append(article)
        self.questions += questions
        self.options += options
        self.targets += targets
        self.groups += [group] * len(questions)

    def examples(self) -> ChoiceExamples:
        if self.targets and len(self.targets) != len(self.ids):
            raise TaskError(
                f"{next(iter(self.places.values()))}: {len(self.targets)} of {len(self.ids)} "
                "questions of this split have answers; expected all or none."
            )
        return ChoiceExamples(
            ids=self.ids,
            articles=self.articles,
            article_of=np.array(self.article_of, np.int64),
            questions=self.questions,
            options=self.options,
            targets=np.array(self.targets, np.int64) if self.targets else None,
            groups=self.groups,
        )


def _passages(uri: str, text: str, group: str) -> Iterator[_Passage]:
    name = uri.rpartition("/")[2]
    if name != ALL_PASSAGES:
        yield _passage(uri, group + name, text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            passage = _passage(f"{uri}, line {number}", f"{group}-line-{number}", line)
            given = passage.values.get("id")
            yield _Passage(passage.where, given, passage.values) if given else passage


def _passage(where: str, name: str, text: str) -> _Passage:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(
            f"{where}: not JSON ({error.msg} at character {error.pos:,} of {len(text):,}). "
            "Fetch the file again."
        ) from None
    if not isinstance(values, dict):
        raise TaskError(f"{where}: found {text[:60]!r}, expected a JSON object. Correct the file.")
    return _Passage(where, name, values)


def _options(passage: _Passage, questions: list[str]) -> list[tuple[str, ...]]:
    found = passage.values.get("options")
    if not isinstance(found, list) or len(found) != len(questions):
        number = len(found) if isinstance(found, list) else "no"
        raise passage.error(f"{number} lists of options for {len(questions)} questions")
    for number, options in enumerate(found):
        is_right = isinstance(options, list) and len(options) == len(LETTERS)
        if not is_right or not all(isinstance(option, str) for option in options):
            raise passage.error(
                f"options[{number}] is {repr(options)[:60]}, expected {len(LETTERS)} texts"
            )
    return [tuple(options) for options in found]


def _targets(passage: _Passage, questions: list[str]) -> list[int]:
    """Return the indices of the right options; none if the passage has no answers."""
    if "answers" not in passage.values:
        return []
    answers = passage.texts("answers")
    if len(answers) != len(questions):
        raise passage.error(f"{len(answers)} answers for {len(questions)} questions")
    for number, answer in enumerate(answers):
        if len(answer) != 1 or answer not in LETTERS:
            raise passage.error(f"answers[{number}] is {answer!r}, expected one of A, B, C, D")
    return [LETTERS.index(answer) for answer in answers]
