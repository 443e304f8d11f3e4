"""All tasks: their names, where their files lie, and their examples."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from albert_core.config import OwnTaskSettings
from albert_core.stage import storage
from albert_core.stage.errors import TaskError
from albert_core.stage.manifest import digest_of
from albert_core.tasks.examples import Examples, Split, Task
from albert_core.tasks.glue import GLUE, read_glue
from albert_core.tasks.own_task import own_task, read_own
from albert_core.tasks.race import ALL_PASSAGES, GROUPS, read_race
from albert_core.tasks.squad import read_squad

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
SCORED_WITH = {"mnli-mm": "mnli", "ax": "mnli"}
"""Tasks without training data, and the task whose model predicts them."""
_READING_THREADS = 16
_PASSAGE = re.compile(r"[0-9]+\.txt")

_SQUAD_1 = Task(name="squad-1.1", title="SQuAD 1.1", kind="spans", metrics=("f1", "exact_match"))
_SQUAD_2 = Task(
    name="squad-2.0",
    title="SQuAD 2.0",
    kind="spans",
    metrics=("f1", "exact_match"),
    has_answerless=True,
)
_RACE = Task(
    name="race",
    title="RACE",
    kind="choice",
    labels=("A", "B", "C", "D"),
    metrics=("accuracy", "accuracy_middle", "accuracy_high"),
)
_SQUAD_FILES: dict[str, dict[Split, str]] = {
    "squad-1.1": {"train": "train-v1.1.json", "dev": "dev-v1.1.json"},
    "squad-2.0": {"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
}

TASKS: dict[str, Task] = {
    **{name: each.task for name, each in GLUE.items()},
    **{task.name: task for task in (_SQUAD_1, _SQUAD_2, _RACE)},
}
"""By name, in the order in which tables show them. Scores are 0..1 or -1..1, never percent."""


@dataclass(frozen=True)
class TaskFiles:
    """Where the files of a task lie."""

    task: Task
    splits: Mapping[Split, tuple[str, ...]]
    """Of each split that is there, the URIs that hold it."""
    own: OwnTaskSettings | None = field(default=None)
    """Of a user's own task, what its columns mean."""

    def digests(self) -> dict[str, str]:
        """Return the digest of each split."""
        return {split: self.digest(split) for split in self.splits}

    def digest(self, *splits: Split) -> str:
        """Return a digest of these splits, or of all: of content, wherever it lies."""
        wanted = [s for s in SPLITS if s in self.splits and (not splits or s in splits)]
        named = [(split, uri) for split in wanted for uri in self.splits[split]]
        with ThreadPoolExecutor(_READING_THREADS) as pool:
            contents = list(pool.map(storage.sha256_of, [uri for _, uri in named]))
        # RACE's folders say of which group a passage is; other names mean nothing.
        groups = [uri.split("/")[-2] if self.task.kind == "choice" else "" for _, uri in named]
        return digest_of(
            [
                [split, group, content]
                for (split, _), group, content in zip(named, groups, contents, strict=True)
            ]
        )


def find_task(name: str, task_folder: str, own: Sequence[OwnTaskSettings] = ()) -> TaskFiles:
    """Return the task called ``name`` with its files, among which are those to learn from.

    Raises:
        TaskError: there is no such task, or its train or dev split is not there.
    """
    if name in SCORED_WITH:
        raise TaskError(
            f"task {name!r} has nothing to learn from: it is predicted by a model of "
            f"{SCORED_WITH[name]!r}. Ask for that."
        )
    if name in TASKS:
        files = find_files(TASKS[name], task_folder)
        if {"train", "dev"} <= files.splits.keys():
            return files
        missing = looked_for(files.task, task_folder, files.splits)
        raise TaskError(f"task {name!r} is not complete: expected {missing}.")
    present, absent = present_tasks("", [each for each in own if each.name == name])
    if absent:
        raise TaskError(f"task {name!r} is not complete: expected {absent[name]}.")
    if not present:
        known = [*TASKS, *(each.name for each in own)]
        raise TaskError(f"there is no task {name!r}; there is {', '.join(known)}.")
    return present[0]


def predicted_with(name: str, task_folder: str) -> list[TaskFiles]:
    """Return the other tasks that a model of the task ``name`` predicts, if they are there."""
    others = (TASKS[other] for other, by in SCORED_WITH.items() if by == name)
    return [files for other in others if (files := find_files(other, task_folder)).splits]


def find_files(task: Task, task_folder: str) -> TaskFiles:
    """Return where the files of ``task`` lie; of a split that is not there, nothing.

    Args:
        task: one of `TASKS`.
        task_folder: the task's own folder, called as in its archive; or one that holds it, as
            GLUE's does; or one that holds folders that do. SQuAD's and RACE's folder may have any
            name. Of several folders with files of the
            task, that with a training set and the most splits is taken.
    """
    return _Finder(task_folder).files_of(task)


def present_tasks(
    task_folder: str, own: Sequence[OwnTaskSettings] = ()
) -> tuple[list[TaskFiles], dict[str, str]]:
    """Return the tasks whose files are there, and what is missing of the others.

    A task is there with a train and a dev split, one that is predicted by another's model with
    any split if the other is there.

    Args:
        task_folder: see `find_files`; empty: none of `TASKS` is looked for.
        own: the user's own tasks.

    Returns:
        The files of those that are there, in the order of `TASKS` and then of ``own``; and by
        name of the others, what was looked for.

    Raises:
        TaskError: two tasks have the same name, or an own one has malformed labels.
    """
    present: dict[str, TaskFiles] = {}
    missing: dict[str, str] = {}
    finder = _Finder(task_folder)
    for name, task in TASKS.items() if task_folder else ():
        files = finder.files_of(task)
        trained = SCORED_WITH.get(name)
        if trained is not None and trained not in present:
            missing[name] = f"{trained}, whose model predicts it"
        elif files.splits if trained else {"train", "dev"} <= files.splits.keys():
            present[name] = files
        else:
            missing[name] = looked_for(task, task_folder, files.splits)
    for settings in own:
        if settings.name in present or settings.name in TASKS:
            raise TaskError(f"two tasks are called {settings.name!r}. Give yours another name.")
        if absent := [uri for uri in (settings.train, settings.dev) if not storage.exists(uri)]:
            missing[settings.name] = ", ".join(absent)
        else:
            present[settings.name] = own_files(settings)
    return list(present.values()), missing


def own_files(settings: OwnTaskSettings) -> TaskFiles:
    """Return a user's own task with its files.

    Raises:
        TaskError: its labels, which are looked for in the training file, are malformed.
    """
    uris: dict[Split, str] = {"train": settings.train, "dev": settings.dev, "test": settings.test}
    return TaskFiles(own_task(settings), {s: (u,) for s, u in uris.items() if u}, settings)


def looked_for(task: Task, task_folder: str, found: Mapping[Split, tuple[str, ...]]) -> str:
    """Return what of ``task`` is expected in ``task_folder`` and not ``found``."""
    names = {
        split: " or ".join(" with ".join(each) for each in alternatives)
        for split, alternatives in _names_of(task).items()
        if split not in found and split != "test"
    }
    return (
        f"{', '.join(names.values())} in {task_folder} or, at most two folders further down, in "
        f"{_folder_of(task)}"
    )


def read_examples(task: Task, files: TaskFiles, split: Split) -> Examples:
    """Return the examples of one split, in the order of its files.

    Raises:
        TaskError: the split is not there, or a file is malformed; naming the file and the line.
    """
    if split not in files.splits:
        raise TaskError(
            f"task {task.name!r} has no {split} split: expected "
            f"{looked_for(task, 'the task folder', files.splits)}. Set task_folder to the folder "
            "that holds it."
        )
    uris = files.splits[split]
    if files.own is not None:
        return read_own(files.own, task, uris[0], split)
    if task.name in GLUE:
        return read_glue(GLUE[task.name], uris, split)
    if task.kind == "spans":
        return read_squad(uris[0], task.has_answerless)
    return read_race(uris)


def _names_of(task: Task) -> Mapping[Split, tuple[tuple[str, ...], ...]]:
    """Return of each split the files that will do, of each alternative all."""
    if task.name in GLUE:
        tables = GLUE[task.name].tables
        return {split: tuple(table.names for table in each) for split, each in tables.items()}
    if task.name in _SQUAD_FILES:
        return {split: ((name,),) for split, name in _SQUAD_FILES[task.name].items()}
    if task.name == "race":
        return {split: ((f"{split}/{{middle,high}}/N.txt",),) for split in SPLITS}
    return {}


def _folder_of(task: Task) -> str:
    return " or ".join(_folder_names(task)) or "any folder"


def _folder_names(task: Task) -> tuple[str, ...]:
    """Return the names that the task's folder may have; none if any name will do."""
    return GLUE[task.name].folder_names if task.name in GLUE else ()


class _Finder:
    """Looks for files below a folder, listing each folder once."""

    def __init__(self, task_folder: str) -> None:
        self.task_folder = task_folder.rstrip("/") or task_folder
        self._listed: dict[str, dict[str, bool]] = {}

    def files_of(self, task: Task) -> TaskFiles:
        """Return the files of ``task`` in the best of the folders that have any."""
        found = [self._splits_in(folder, task) for folder in self._folders_of(task)]
        best = max(found, key=lambda splits: ("train" in splits, len(splits)), default={})
        return TaskFiles(task, best)

    def _folders_of(self, task: Task) -> list[str]:
        """Return the folders that may be the task's, the nearest first."""
        names = [name.lower() for name in _folder_names(task)]
        below = self._below(self.task_folder)
        folders = [self.task_folder, *below, *(each for one in below for each in self._below(one))]
        if not names:
            return folders
        named = [folder for folder in folders if folder.rpartition("/")[2].lower() in names]
        # A task's own folder before one that it may share.
        return sorted(named, key=lambda folder: names.index(folder.rpartition("/")[2].lower()))

    def _splits_in(self, folder: str, task: Task) -> dict[Split, tuple[str, ...]]:
        if task.name == "race":
            return self._race_splits(folder)
        there = set(self._names(folder))
        splits: dict[Split, tuple[str, ...]] = {}
        for split, alternatives in _names_of(task).items():
            if names := next((names for names in alternatives if there.issuperset(names)), None):
                splits[split] = tuple(storage.join(folder, name) for name in names)
        return splits

    def _race_splits(self, folder: str) -> dict[Split, tuple[str, ...]]:
        splits: dict[Split, tuple[str, ...]] = {}
        for split in SPLITS:
            if self._names(folder).get(split):
                parts = [storage.join(folder, split, group) for group in GROUPS]
                if uris := tuple(uri for part in parts for uri in self._passages_in(part)):
                    splits[split] = uris
        return splits

    def _passages_in(self, folder: str) -> list[str]:
        """Return the files of one group of RACE by their numbers, or else the one of all."""
        names = self._names(folder)
        chosen = sorted(filter(_PASSAGE.fullmatch, names), key=lambda name: int(name[:-4]))
        if not chosen and ALL_PASSAGES in names:
            chosen = [ALL_PASSAGES]
        return [storage.join(folder, name) for name in chosen]

    def _below(self, folder: str) -> list[str]:
        """Return the folders in ``folder``."""
        names = self._names(folder)
        return [storage.join(folder, name) for name, is_folder in names.items() if is_folder]

    def _names(self, folder: str) -> dict[str, bool]:
        """Return the names of what is in ``folder``, sorted, and whether each may be a folder.

        A link to a folder is not called a directory, but neither is it called a file.
        """
        if folder not in self._listed:
            self._listed[folder] = {
                str(entry["name"]).rstrip("/").rpartition("/")[2]: entry["type"] != "file"
                for entry in storage.list_folder(folder)
            }
        return self._listed[folder]
