"""Manifests as a graph: which result was made of which.

A result is called by its place, stage and key: ``corpus/0123456789abcdef``. It is the same wherever
the work folder lies, in the registry's copies too.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError
from albert_core.stage.manifest import BEGUN, KEY_DIGITS, MANIFEST, Manifest, read_manifest

SOURCE_FILES = "source_files.jsonl"
"""Beside a corpus's manifest: the files that it was made of."""
MADE_WITH = "made_with.txt"
"""Beside a manifest: what it was made with of what the work folder keeps, one a line, as
``units/NAME`` and ``parts/NAME``."""
CORPUS, VOCAB, EXAMPLES, TASK = "corpus", "vocab", "examples", "task"
PRETRAINING, FINETUNING, REGISTRATION = "pretraining", "finetuning", "registration"
STAGES = (
    CORPUS, VOCAB, EXAMPLES, TASK, PRETRAINING, FINETUNING, "contamination", "scores", REGISTRATION,
)  # fmt: skip
"""The folders of a work folder with a folder for each result."""

_PLACE = re.compile(rf"(?:^|/)({'|'.join(STAGES)})/([0-9a-f]{{{KEY_DIGITS}}})(?=/|$)")

log = logging.getLogger("lineage")


@dataclass(frozen=True)
class Result:
    """What one run of a stage made."""

    uri: str
    """Of its manifest."""
    manifest: Manifest

    @property
    def place(self) -> str:
        """Stage and key."""
        return f"{self.manifest.stage}/{self.manifest.key}"

    @property
    def folder(self) -> str:
        """The manifest's."""
        return self.uri.rpartition("/")[0]

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Places that it names: in its inputs, its settings and the call that made it."""
        call = self.manifest.provenance.call if self.manifest.provenance else None
        named = [
            *self.manifest.input_manifests.values(),
            *_texts(self.manifest.settings),
            *([] if call is None else [*_texts(call.recipe), *call.options.values()]),
        ]
        found = (place_in(text) for text in named)
        return frozenset(place for place in found if place not in ("", self.place))


class Lineage:
    """Results by place, in an order in which each comes after all that it was made of."""

    def __init__(self, results: Iterable[Result]) -> None:
        by_place = {result.place: result for result in results}
        edges = {place: result.inputs & by_place.keys() for place, result in by_place.items()}
        self.results = {p: by_place[p] for p in TopologicalSorter(edges).static_order()}

    def of_stage(self, stage: str) -> list[Result]:
        """Return the results of a stage."""
        return [each for each in self.results.values() if each.manifest.stage == stage]

    def before(self, places: Iterable[str]) -> set[str]:
        """Return what ``places`` were made of, directly or not, and themselves; if it is here."""
        found = set(places) & self.results.keys()
        for place in reversed(self.results):
            if place in found:
                found |= self.results[place].inputs & self.results.keys()
        return found

    def after(self, places: Iterable[str]) -> set[str]:
        """Return what was made of ``places``, directly or not, and themselves; if it is here."""
        wanted = set(places)
        found = wanted & self.results.keys()
        for place, result in self.results.items():
            if not result.inputs.isdisjoint(wanted | found):
                found.add(place)
        return found


def write_made_with(uris: Iterable[str], work: str, folder: str) -> None:
    """Write the list `MADE_WITH` to ``folder``: those of ``uris`` that are below ``work``."""
    root = storage.join(work, "")
    names = sorted({uri.removeprefix(root) for uri in uris if uri.startswith(root)})
    content = "".join(f"{name}\n" for name in names)
    storage.write_bytes(storage.join(folder, MADE_WITH), content.encode())


def read_made_with(folder: str) -> list[str] | None:
    """Return the list that `write_made_with` wrote, or None where there is none."""
    uri = storage.join(folder, MADE_WITH)
    return storage.read_bytes(uri).decode().splitlines() if storage.exists(uri) else None


def place_in(uri: str) -> str:
    """Return the place of the result that ``uri`` is of or in; empty if it is in none."""
    found = _PLACE.findall(uri)
    return "/".join(found[-1]) if found else ""


def read_work(work: str, *, stages: Sequence[str] = STAGES, begun: bool = False) -> Lineage:
    """Return the finished results below ``work``; what can't be read is passed over, and said.

    Args:
        work: folder for all results.
        stages: whose results.
        begun: whether to return those that are not finished too, with nothing made.
    """
    return Lineage(_results(work, stages, (MANIFEST, BEGUN) if begun else (MANIFEST,)))


def read_lineage(*uris: str) -> Lineage:
    """Return the results of the manifests at ``uris`` and all that they were made of.

    A manifest that lies no more where it was written is looked for in the work folder of the one
    that names it, which may have been moved.

    Raises:
        IntegrityError: one is nowhere.
    """
    found: dict[str, Result] = {}
    queue = [(storage.absolute(uri), "") for uri in uris]
    while queue:
        uri, named_in = queue.pop(0)
        if (place := place_in(uri)) and place in found:
            continue
        result = Result(_moved(uri, named_in), read_manifest(_moved(uri, named_in)))
        found[result.place] = result
        queue += [(made_of, result.uri) for made_of in result.manifest.input_manifests.values()]
    return Lineage(found.values())


def _moved(uri: str, named_in: str) -> str:
    if not named_in or storage.exists(uri):
        return uri
    work = named_in.rsplit("/", 3)[0]
    here = storage.join(work, place_in(uri), MANIFEST)
    return here if storage.exists(here) else uri


def _results(work: str, stages: Sequence[str], files: Sequence[str]) -> Iterator[Result]:
    for stage in stages:
        for name in storage.list_names(storage.join(work, stage)):
            uris = (storage.join(work, stage, name, file) for file in files)
            if (uri := next(filter(storage.exists, uris), None)) is not None:
                try:
                    yield Result(uri, read_manifest(uri))
                except IntegrityError as error:
                    log.warning("passing over %s", error)


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from _texts(value)
    elif isinstance(values, list):
        for value in values:
            yield from _texts(value)
