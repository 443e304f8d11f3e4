"""All tasks: their names, where their files lie, and their examples; the reader of RACE."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Annotated, Literal, Self

import numpy as np
from annotated_types import Len
from pydantic import model_validator

from albert_core.config import OwnTaskSettings
from albert_core.stage import storage
from albert_core.stage.errors import TaskError
from albert_core.stage.manifest import digest_of
from albert_core.stage.results import PASSAGE_SOURCE
from albert_core.tasks.examples import SPLITS, ChoiceExamples, Examples, Split, Task
from albert_core.tasks.reading import Record, file_digest, of_each, parse_record, read_text
from albert_core.tasks.squad import read_squad
from albert_core.tasks.tables import GLUE, PublicTask, own_task, read_glue, read_own

SCORED_WITH = {"mnli-mm": "mnli", "ax": "mnli"}
"""Tasks without training data, and the task whose model predicts them."""
_GROUPS = ("middle", "high")
_PASSAGE = re.compile(r"[0-9]+\.txt")
_LETTERS = "ABCD"


def _squad(version: str) -> PublicTask:
    task = Task(
        name=f"squad-{version}",
        title=f"SQuAD {version}",
        kind="spans",
        metrics=("f1", "exact_match"),
        has_answerless=version == "2.0",
    )
    return PublicTask(task, {split: [f"{split}-v{version}.json"] for split in SPLITS[:2]})


_RACE = PublicTask(
    Task(
        name="race",
        title="RACE",
        kind="choice",
        labels=tuple(_LETTERS),
        metrics=("accuracy", *(f"accuracy_{group}" for group in _GROUPS)),
    ),
    {split: [f"{split}/{{middle,high}}/N.txt"] for split in SPLITS},
)
_PUBLIC = GLUE | {each.task.name: each for each in (_squad("1.1"), _squad("2.0"), _RACE)}

TASKS: dict[str, Task] = {name: each.task for name, each in _PUBLIC.items()}
"""By name, in the order in which tables show them. Scores are 0..1 or -1..1, never percent."""


@dataclass(frozen=True)
class TaskFiles:
    """A task and where its files lie."""

    task: Task
    splits: Mapping[Split, tuple[str, ...]]
    """The URIs of the files of each split that was found."""
    own: OwnTaskSettings | None = None
    """The settings of a user's own task."""

    @property
    def can_be_learned(self) -> bool:
        """Whether there is a training and a dev set."""
        return {"train", "dev"} <= self.splits.keys()

    def digests(self) -> dict[str, str]:
        """Return the digest of each split.

        Raises:
            TaskError: a file is missing.
        """
        return {split: self.digest(split) for split in self.splits}

    def digest(self, *splits: Split) -> str:
        """Return a digest of the content of ``splits``, or of all, wherever the files are.

        Raises:
            TaskError: a file is missing.
        """
        wanted = [s for s in SPLITS if s in self.splits and (not splits or s in splits)]
        named = [(split, uri) for split in wanted for uri in self.splits[split]]
        # RACE's folders name the group of a passage; other names mean nothing.
        groups = [uri.split("/")[-2] if self.task.kind == "choice" else "" for _, uri in named]
        contents = of_each(file_digest, [uri for _, uri in named])
        rows = zip([split for split, _ in named], groups, contents, strict=True)
        return digest_of([list(row) for row in rows])


def find_task(name: str, task_folder: str, own: Sequence[OwnTaskSettings] = ()) -> TaskFiles:
    """Return the task called ``name`` with its files, a training and a dev set among them.

    Raises:
        TaskError: there is no such task, or its train or dev split is missing.
    """
    if name in SCORED_WITH:
        raise TaskError(
            f"task {name!r} has no training data: it is predicted by a model of "
            f"{SCORED_WITH[name]!r}. Ask for that."
        )
    present, missing = present_tasks(task_folder, own, name)
    if present:
        return present[0]
    if name in missing:
        raise TaskError(f"task {name!r} is not complete: expected {missing[name]}.")
    known = [*TASKS, *(each.name for each in own)]
    raise TaskError(f"there is no task {name!r}; there is {', '.join(known)}.")


def predicted_with(name: str, task_folder: str) -> list[TaskFiles]:
    """Return the other tasks that a model of the task ``name`` predicts, if their files exist."""
    others = (TASKS[other] for other, by in SCORED_WITH.items() if by == name)
    return [files for other in others if (files := find_files(other, task_folder)).splits]


def find_files(task: Task, task_folder: str) -> TaskFiles:
    """Return the files of the splits of ``task`` that are found.

    Args:
        task: one of `TASKS`.
        task_folder: the task's own folder, named as in its archive; or one that contains it, as
            GLUE's does; or one that contains such folders. SQuAD's and RACE's folder may have any
            name. If several folders have files of the task, one with a training set and the most
            splits is taken.
    """
    return _Finder(task_folder).files_of(task)


def present_tasks(
    task_folder: str, own: Sequence[OwnTaskSettings] = (), only: str = ""
) -> tuple[list[TaskFiles], dict[str, str]]:
    """Return the tasks whose files exist, and which files of the others are missing.

    A task needs a train and a dev split; one that another task's model predicts needs any split,
    and the files of that other task.

    Args:
        task_folder: see `find_files`; empty: none of `TASKS` is looked for. The task that was
            generated from held-out documents is found in it too, and never missing.
        own: the user's own tasks.
        only: the name of the one task to look for; empty: all.

    Returns:
        The files of the present tasks, in the order of `TASKS`, the generated one, then in that
        of ``own``; and for each other task, by name, what was looked for.

    Raises:
        TaskError: two tasks have the same name, or an own one has malformed labels.
    """
    present: dict[str, TaskFiles] = {}
    missing: dict[str, str] = {}
    finder = _Finder(task_folder)
    for name, task in TASKS.items() if task_folder else ():
        if only and name != only:
            continue
        files, trained = finder.files_of(task), SCORED_WITH.get(name)
        if trained and trained not in present:
            missing[name] = f"{trained}, whose model predicts it"
        elif files.can_be_learned or (trained and files.splits):
            present[name] = files
        else:
            missing[name] = _looked_for(files, task_folder)
    for settings in [*generated_tasks(task_folder), *own]:
        if only and settings.name != only:
            continue
        if settings.name in present or settings.name in TASKS:
            raise TaskError(f"two tasks are called {settings.name!r}. Give yours another name.")
        if absent := absent_files(settings):
            missing[settings.name] = ", ".join(absent)
        else:
            present[settings.name] = own_files(settings)
    return list(present.values()), missing


def generated_tasks(task_folder: str) -> list[OwnTaskSettings]:
    """Return the task that `pipelines.make_task` wrote to ``task_folder``, if it made one."""
    uris = [storage.join(task_folder, PASSAGE_SOURCE, f"{split}.jsonl") for split in SPLITS[:2]]
    if not task_folder or not all(map(storage.exists, uris)):
        return []
    return [
        OwnTaskSettings(
            name=PASSAGE_SOURCE,
            train=uris[0],
            dev=uris[1],
            text_columns=["text"],
            label_column="source",
            cluster_column="document",
        )
    ]


def absent_files(settings: OwnTaskSettings) -> list[str]:
    """Return the files of a user's own task that are not there."""
    uris = filter(None, (settings.train, settings.dev, settings.test))
    return [uri for uri in uris if not storage.exists(uri)]


def own_files(settings: OwnTaskSettings) -> TaskFiles:
    """Return a user's own task with its files.

    Raises:
        TaskError: its labels, which are looked for in the training file, are malformed.
    """
    uris: dict[Split, str] = {"train": settings.train, "dev": settings.dev, "test": settings.test}
    return TaskFiles(own_task(settings), {s: (u,) for s, u in uris.items() if u}, settings)


def dev_clusters(
    task_folder: str, own: Sequence[OwnTaskSettings], names: Sequence[str]
) -> dict[str, int]:
    """Return how many independent clusters of examples dev has, by task.

    Args:
        task_folder: see `find_files`.
        own: the user's own tasks.
        names: of the tasks to fine-tune on; empty: all that are present.

    Raises:
        TaskError: a file is malformed.
    """
    found = {}
    for files in present_tasks(task_folder, own)[0]:
        name = files.task.name
        if files.can_be_learned and name in (names or [name]):
            examples = read_examples(files, "dev")
            clusters = examples.clusters
            found[name] = len(examples) if clusters is None else len(set(clusters.tolist()))
    return found


def read_examples(files: TaskFiles, split: Split) -> Examples:
    """Return the examples of a split that was found, in the order of its files.

    Raises:
        TaskError: a file is malformed; naming the file and the line.
    """
    task, uris = files.task, files.splits[split]
    if files.own is not None:
        return read_own(files.own, task, uris[0], split)
    if task.name in GLUE:
        return read_glue(task.name, uris, split)
    if task.kind == "spans":
        return read_squad(uris[0], task.has_answerless)
    return read_race(uris)


def _looked_for(files: TaskFiles, task_folder: str) -> str:
    """Return which files of the missing training and dev sets are expected, and where."""
    public = _PUBLIC[files.task.name]
    names = [
        " or ".join(each.replace(" ", " with ") for each in alternatives)
        for split, alternatives in public.files.items()
        if split not in files.splits and split != "test"
    ]
    return (
        f"{', '.join(names)} in {task_folder} or, at most two folders further down, in "
        f"{' or '.join(public.folder_names) or 'any folder'}"
    )


class _Finder:
    """Finds files below a folder, listing each folder once."""

    def __init__(self, task_folder: str) -> None:
        self.task_folder = task_folder.rstrip("/") or task_folder
        self._names = cache(_names_in)

    def files_of(self, task: Task) -> TaskFiles:
        """Return the files of ``task`` in the best of the folders that have any."""
        found = [self._splits_in(folder, task) for folder in self._folders_of(task)]
        best = max(found, key=lambda splits: ("train" in splits, len(splits)), default={})
        return TaskFiles(task, best)

    def _folders_of(self, task: Task) -> list[str]:
        """Return the folders that may be the task's, the nearest first."""
        below = self._below(self.task_folder)
        folders = [self.task_folder, *below, *(each for one in below for each in self._below(one))]
        # A task's own folder comes before one that it may share.
        named = [
            [each for each in folders if each.rpartition("/")[2].lower() == name.lower()]
            for name in _PUBLIC[task.name].folder_names
        ]
        return list(chain.from_iterable(named or [folders]))

    def _below(self, folder: str) -> list[str]:
        """Return the folders in ``folder``."""
        names = self._names(folder)
        return [storage.join(folder, name) for name, is_folder in names.items() if is_folder]

    def _splits_in(self, folder: str, task: Task) -> dict[Split, tuple[str, ...]]:
        there = self._names(folder).keys()
        splits: dict[Split, tuple[str, ...]] = {}
        for split, alternatives in _PUBLIC[task.name].files.items():
            if task.name != "race":
                needed = map(str.split, alternatives)
                names = next((names for names in needed if there >= set(names)), [])
                uris = [storage.join(folder, name) for name in names]
            else:
                groups = [storage.join(folder, split, group) for group in _GROUPS]
                uris = [uri for each in groups if split in there for uri in self._passages_in(each)]
            if uris:
                splits[split] = tuple(uris)
        return splits

    def _passages_in(self, folder: str) -> list[str]:
        """Return RACE's files of one group by their numbers."""
        chosen = filter(_PASSAGE.fullmatch, self._names(folder))
        return [storage.join(folder, name) for name in sorted(chosen, key=lambda n: int(n[:-4]))]


def _names_in(folder: str) -> dict[str, bool]:
    """Return the names in ``folder``, sorted, and whether each may be a folder.

    fsspec reports a link to a folder neither as a directory nor as a file.
    """
    return {
        str(entry["name"]).rstrip("/").rpartition("/")[2]: entry["type"] != "file"
        for entry in storage.list_folder(folder)
    }


# RACE: questions of English examinations, with four options each


class _Passage(Record):
    """An article with its questions."""

    article: str
    questions: list[str]
    options: list[Annotated[list[str], Len(len(_LETTERS), len(_LETTERS))]]
    answers: list[Literal["A", "B", "C", "D"]] | None = None
    """None: they are withheld."""

    @model_validator(mode="after")
    def _fit_each_other(self) -> Self:
        for name, each in (("options", self.options), ("answers", self.answers)):
            if each is not None and len(each) != len(self.questions):
                raise ValueError(f"{len(each)} {name} for {len(self.questions)} questions")
        return self


def read_race(uris: Sequence[str]) -> ChoiceExamples:
    """Return the questions of the passages in the files ``uris``, in that order.

    The public archive has one JSON file per passage, ``RACE/{train,dev,test}/{middle,high}/N.txt``.
    A question's id consists of the names of its passage's folder and file, e.g. "high19432.txt",
    and its number in the passage, from 0.

    Args:
        uris: files of one passage, each in a folder called middle or high, which is the group of
            its questions.

    Raises:
        TaskError: a file is missing, or a passage malformed; naming the file and the field.

    Sources: Lai et al. 2017; `race_utils.py` of google-research/albert.
    """
    texts = zip(of_each(read_text, uris), uris, strict=True)
    passages = [parse_record(_Passage, text, uri) for text, uri in texts]
    names = [uri.rsplit("/", 2)[1:] for uri in uris]
    numbers = [len(passage.questions) for passage in passages]
    targets = [_LETTERS.index(letter) for each in passages for letter in each.answers or ()]
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
            f"{group}{file}-{question}"
            for (group, file), number in zip(names, numbers, strict=True)
            for question in range(number)
        ],
        articles=[passage.article for passage in passages],
        article_of=np.repeat(np.arange(len(passages)), numbers),
        questions=list(chain.from_iterable(passage.questions for passage in passages)),
        options=[tuple(options) for passage in passages for options in passage.options],
        targets=np.array(targets, np.int64) if targets else None,
        groups=np.repeat([group for group, _ in names], numbers).tolist(),
    )
