"""Reads SQuAD 1.1 and 2.0, one JSON file a split, as its site gives them out.

Sources: Rajpurkar et al. 2016 and 2018.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from albert_core.contract.errors import TaskError
from albert_core.tasks.examples import Answer, SpanExamples
from albert_core.tasks.text_lines import decode, read_file

_MAX_NAMED = 10
"""Moved answers that the log names one by one."""
_KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}

log = logging.getLogger(__name__)

T = TypeVar("T")


def read_squad(uri: str, has_answerless: bool) -> SpanExamples:
    """Return the questions of the file at ``uri``, in its order.

    "plausible_answers" of questions without an answer mean nothing. An answer that does not stand
    where ``answer_start`` says is taken where its text stands nearest to it, and the log says so.

    Args:
        uri: the file, e.g. dev-v1.1.json.
        has_answerless: whether questions may be without an answer, as in 2.0.

    Raises:
        TaskError: the file is missing or cut off, lacks a field, names a question twice, or has
            an answer that is not in its paragraph; naming the JSON path and the question.
    """
    reading = _Reading(uri, has_answerless)
    reading.read()
    return reading.examples()


@dataclass(frozen=True)
class _Node:
    """A value in the file, and the path to it."""

    uri: str
    path: str
    value: Any

    def get(self, name: str, kind: type[T]) -> T:
        """Return field ``name``, which must be of ``kind``."""
        if not isinstance(self.value, dict) or not isinstance(self.value.get(name), kind):
            found = self.value.get(name) if isinstance(self.value, dict) else self.value
            raise self.error(f"found {repr(found)[:60]}, expected {_KINDS[kind]} as field {name!r}")
        field_value: T = self.value[name]
        return field_value

    def each(self, name: str) -> Iterator["_Node"]:
        """Yield the elements of the list in field ``name``."""
        for number, value in enumerate(self.get(name, list)):
            yield _Node(self.uri, f"{self.path}{'.' if self.path else ''}{name}[{number}]", value)

    def error(self, message: str) -> TaskError:
        """Return an error that says where."""
        return TaskError(f"{self.uri}, {self.path or 'at its top'}: {message}. Correct the file.")


@dataclass
class _Reading:
    uri: str
    has_answerless: bool
    ids: dict[str, str] = field(default_factory=dict)
    paragraphs: list[str] = field(default_factory=list)
    paragraph_of: list[int] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answers: list[tuple[Answer, ...]] = field(default_factory=list)
    num_moved: int = 0

    def read(self) -> None:
        for article in _Node(self.uri, "", _parse(self.uri)).each("data"):
            title = str(article.value.get("title", "")) if isinstance(article.value, dict) else ""
            for paragraph in article.each("paragraphs"):
                self.paragraphs.append(paragraph.get("context", str))
                for question in paragraph.each("qas"):
                    self._add(question, title)
        if self.num_moved:
            log.warning(
                "%s: %d answers do not stand where answer_start says; the nearest place with their "
                "text is used",
                self.uri,
                self.num_moved,
            )
        if not self.ids:
            raise TaskError(f"{self.uri} has no questions; expected SQuAD's data/paragraphs/qas.")

    def examples(self) -> SpanExamples:
        return SpanExamples(
            ids=list(self.ids),
            paragraphs=self.paragraphs,
            paragraph_of=np.array(self.paragraph_of, np.int64),
            questions=self.questions,
            answers=self.answers,
        )

    def _add(self, question: _Node, title: str) -> None:
        name = question.get("id", str)
        if name in self.ids:
            raise question.error(f"question id {name!r} is that of {self.ids[name]} too")
        self.ids[name] = question.path
        self.questions.append(question.get("question", str))
        self.paragraph_of.append(len(self.paragraphs) - 1)
        where = f"article {title!r}, question id {name!r}"
        self.answers.append(tuple(self._answers(question, where)))

    def _answers(self, question: _Node, where: str) -> Iterator[Answer]:
        is_impossible = question.value.get("is_impossible", False)
        if not isinstance(is_impossible, bool):
            raise question.error(f"is_impossible is {is_impossible!r}, expected true or false")
        answers = list(question.each("answers"))
        if is_impossible and answers:
            raise question.error(f"{where} is_impossible, but has {len(answers)} answers")
        if not answers and not is_impossible:
            raise question.error(f"{where} has no answer, but is not said to be impossible")
        if is_impossible and not self.has_answerless:
            raise question.error(
                f"{where} has no answer, which SQuAD 1.1 does not know; is this a file of 2.0?"
            )
        for answer in answers:
            yield self._placed(answer, where)

    def _placed(self, answer: _Node, where: str) -> Answer:
        """Return the answer where its text stands in the paragraph."""
        text, start = answer.get("text", str), answer.get("answer_start", int)
        paragraph = self.paragraphs[-1]
        if not text.strip():
            raise answer.error(f"the answer of {where} is blank")
        if start >= 0 and paragraph.startswith(text, start):
            return Answer(text, start)
        places = [
            at
            for at in (
                paragraph.rfind(text, 0, max(start, 0) + len(text)),
                paragraph.find(text, max(start, 0)),
            )
            if at >= 0
        ]
        if not places:
            raise answer.error(f"the answer {text[:60]!r} of {where} is not in its paragraph")
        nearest = min(places, key=lambda at: abs(at - start))
        self.num_moved += 1
        if self.num_moved <= _MAX_NAMED:
            log.warning(
                "%s, %s: answer_start %d of %s is not that of %r, which stands at %d",
                self.uri,
                answer.path,
                start,
                where,
                text[:60],
                nearest,
            )
        return Answer(text, nearest)


def _parse(uri: str) -> Any:
    text = decode(uri, read_file(uri))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip()) or "Unterminated" in error.msg
        hint = "The file is cut off: fetch it again." if is_cut else "Correct the file."
        raise TaskError(
            f"{uri}, line {error.lineno}, column {error.colno} (character {error.pos:,} of "
            f"{len(text):,}): not JSON ({error.msg}). {hint}"
        ) from None
