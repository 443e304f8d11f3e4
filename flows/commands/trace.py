"""What was made of a document: ``albert trace docs/a.txt``.

The document's id is the one in the corpus: the file, relative to the source, and the record in it.
Corpora and examples are searched; vocabularies, tasks, runs, checkpoints and registered versions
follow from what they were made of and from the order of the examples. After a removal and its purge
the receipts still say what the document was in.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_core.stage import storage
from albert_core.stage.lineage import (
    CORPUS,
    FINETUNING,
    PRETRAINING,
    TASK,
    VOCAB,
    Lineage,
    Result,
    read_work,
)
from albert_core.stage.manifest import newest_manifest
from albert_core.training.order import example_order
from flows.affected_versions import named_versions
from flows.commands.options import page
from pipelines.removal import Occurrence, find_document, may_be_in_task

if TYPE_CHECKING:
    from albert_core.registry.version_lineage import RegisteredVersion

_TRAIN, _HELD_OUT = "train", "held_out"
_RECEIPTS = "receipts"
_MAX_ROWS = 8
_ORDER_AT_ONCE = 1 << 20
"""Numbers of the order of examples to compute at a time."""


@dataclass(frozen=True)
class Use:
    """A result that has, or may have, text of the document."""

    place: str
    how: str
    first_step: int | None = None
    """The first update of a pretraining that used the document; None: not known."""
    checkpoints: list[str] = field(default_factory=list)
    """The checkpoints of that pretraining from this update on that still exist."""


@dataclass(frozen=True)
class Trace:
    """Where a document went."""

    document: str
    in_newest_corpus: bool
    occurrences: list[Occurrence]
    uses: list[Use]
    versions: dict[str, list[str]]
    """Registered version -> how it used the document."""
    receipts: list[str]
    """The receipts of its removal."""
    asked_registry: bool

    @property
    def is_known(self) -> bool:
        """Whether anything was found."""
        return bool(self.occurrences or self.receipts)


def trace(document: str, work: str) -> Trace:
    """Return where the document with this id went.

    Raises:
        IntegrityError: a shard is damaged.
        RegistryError: the registry does not answer.
    """
    from albert_core.registry.version_lineage import has_registry, registered_versions

    lineage = read_work(work, begun=True)
    occurrences = find_document(document, lineage)
    uses = list(_uses(document, occurrences, lineage))
    receipts = dict(_receipts(document, work))
    corpora = {each.place for each in occurrences if each.place.startswith(CORPUS)}
    how = dict.fromkeys(corpora, "has it") | {use.place: use.how for use in uses}
    newest = newest_manifest(storage.join(work, CORPUS))
    return Trace(
        document=document,
        in_newest_corpus=newest is not None and f"{CORPUS}/{newest.key}" in corpora,
        occurrences=occurrences,
        uses=uses,
        versions=dict(_versions(registered_versions(work), how, receipts)),
        receipts=list(receipts),
        asked_registry=has_registry(work),
    )


def as_json(found: Trace) -> dict[str, Any]:
    """Return all of it for a machine."""
    return asdict(found)


def as_text(found: Trace) -> str:
    """Return it for a person."""
    if not found.is_known:
        head = "No corpus, no examples and no receipt here knows this id."
        return page(found.document, [head], {})
    now = "is in the newest corpus" if found.in_newest_corpus else "is not in the newest corpus"
    branches: dict[str, Iterable[str]] = {
        "Shards": _shard_lines(found.occurrences),
        "Made of it": _use_lines(found.uses),
        "Registered versions": _version_lines(found),
    }
    if found.receipts:
        branches["Receipts of its removal"] = found.receipts
    return page(found.document, [now], branches)


def first_use(rows: Iterable[int], num_examples: int, settings: Mapping[str, Any]) -> int | None:
    """Return the first update, from 1, in which a run uses one of ``rows``; None: it never does.

    Args:
        rows: numbers of training examples.
        num_examples: number of training examples.
        settings: the training's.
    """
    wanted = np.fromiter(rows, np.int64)
    taken = min(settings["num_steps"] * settings["batch_size"], num_examples)
    for begin in range(0, taken, _ORDER_AT_ONCE):
        count = min(_ORDER_AT_ONCE, taken - begin)
        order = example_order(begin, count, num_examples, settings["seed"])
        places = np.flatnonzero(np.isin(order, wanted))
        if len(places):
            return int((begin + places[0]) // settings["batch_size"]) + 1
    return None


def _uses(document: str, occurrences: list[Occurrence], lineage: Lineage) -> Iterator[Use]:
    """Yield the results made of those that the document is in, inputs first."""
    holding = {each.place for each in occurrences}
    used: set[str] = set()
    for place, result in lineage.results.items():
        stage, has_it = result.manifest.stage, not holding.isdisjoint(result.inputs)
        how, step = [], None
        if stage == VOCAB and has_it:
            how.append("trained on a sample of a corpus that has it")
        elif stage == TASK and has_it and may_be_in_task(document, result, lineage):
            how.append("its sentences may be in it: the examples hold it out")
        elif stage == PRETRAINING and has_it:
            mine = [each for each in occurrences if each.place in result.inputs]
            if train := [each for each in mine if each.kind == _TRAIN]:
                rows = [each.first_row + row for each in train for row in each.rows]
                step, told = _first_step(result, rows, lineage.results[train[0].place])
                how.append(told)
            if any(each.kind == _HELD_OUT for each in mine):
                how.append("scored on it as a held-out document")
        if stage in (PRETRAINING, FINETUNING) and (before := sorted(result.inputs & used)):
            how.append(f"made of {', '.join(before)}")
        if how:
            used.add(place)
            checkpoints = [] if step is None else _saved_after(result, step)
            yield Use(place, "; ".join(how), step, checkpoints)


def _first_step(run: Result, rows: list[int], examples: Result) -> tuple[int | None, str]:
    """Return the first update that used one of the examples ``rows``, and a sentence about it."""
    if "continue_from" in run.manifest.inputs:
        return None, f"trained on up to {len(rows)} examples of it, after another run"
    settings = run.manifest.settings["training"]
    step = first_use(rows, examples.manifest.facts["num_train"], settings)
    if step is None:
        return None, f"ended before the first of {len(rows)} examples of it"
    return step, f"trained on up to {len(rows)} examples of it, first in step {step:,}"


def _saved_after(run: Result, step: int) -> list[str]:
    folder = storage.join(run.folder, "checkpoints")
    steps = {name: name.removeprefix("step-") for name in storage.list_names(folder)}
    return [
        storage.join(folder, name)
        for name, number in steps.items()
        if number.isdecimal() and int(number) >= step
    ]


def _versions(
    versions: Iterable["RegisteredVersion"],
    how: Mapping[str, str],
    receipts: Mapping[str, list[str]],
) -> Iterator[tuple[str, list[str]]]:
    """Yield each version that was made of the document, and how.

    Args:
        versions: all there are.
        how: place of each result that used the document -> how it did.
        receipts: URI of each receipt of the document's removal -> the versions that it names.
    """
    for version in versions:
        told = [f"{place}: {how[place]}" for place in sorted(version.made_of.keys() & how.keys())]
        for uri, named in receipts.items():
            if version.uri in {each.partition(" ")[0] for each in named}:
                told.append(f"named in {uri.rpartition('/')[2]}")
        if told:
            yield str(version), told


def _receipts(document: str, work: str) -> Iterator[tuple[str, list[str]]]:
    folder = storage.join(work, _RECEIPTS)
    for name in storage.list_names(folder):
        uri = storage.join(folder, name)
        if name.endswith(".json") and document in json.loads(storage.read_bytes(uri))["documents"]:
            yield uri, named_versions(uri)


def _shard_lines(occurrences: list[Occurrence]) -> Iterator[str]:
    if not occurrences:
        yield "none is left that has it"
    for each in occurrences:
        rows = ", ".join(map(str, each.rows[:_MAX_ROWS]))
        more = ", ..." if len(each.rows) > _MAX_ROWS else ""
        number = "row" if len(each.rows) == 1 else f"{len(each.rows)} rows:"
        name = each.uri.rpartition("/")[2]
        yield f"{each.place}  {name}  {number} {rows}{more}"


def _use_lines(uses: list[Use]) -> Iterator[str]:
    if not uses:
        yield "nothing that is left"
    for use in uses:
        yield f"{use.place}  {use.how}"
        yield from (f"  {uri.rpartition('/')[2]}" for uri in use.checkpoints)


def _version_lines(found: Trace) -> Iterator[str]:
    if not found.versions:
        yield "none" if found.asked_registry else "there is no registry here"
    for version, how in found.versions.items():
        yield version
        yield from (f"  {each}" for each in how)
