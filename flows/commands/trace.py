"""What a document went into: ``albert trace docs/a.txt``.

Its id is that of the corpus: the file, relative to the source, and the record in it. Corpora and
examples are looked through; vocabularies, tasks, runs, checkpoints and registered versions follow
from what they were made of, and from the order of the examples. What was removed and deleted is
still told by the receipts of its removal.
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
    """A result that has, or may have, something of the document."""

    place: str
    how: str
    first_step: int | None = None
    """Of a pretraining: the first update that saw it; None: not known."""
    checkpoints: list[str] = field(default_factory=list)
    """Of a pretraining: those after that update, which are still there."""


@dataclass(frozen=True)
class Trace:
    """All that is known of where a document went."""

    document: str
    in_newest_corpus: bool
    occurrences: list[Occurrence]
    uses: list[Use]
    versions: dict[str, list[str]]
    """Registered version -> how it used the document."""
    receipts: list[str]
    """Of its removal."""
    asked_registry: bool

    @property
    def is_known(self) -> bool:
        """Whether anything was found."""
        return bool(self.occurrences or self.receipts)


def trace(document: str, work: str) -> Trace:
    """Return where the document of this id went.

    Raises:
        IntegrityError: a shard is damaged.
        RegistryError: the registry does not answer.
    """
    from albert_core.registry.version_lineage import has_registry, registered_versions

    lineage = read_work(work, begun=True)
    occurrences = find_document(document, lineage)
    uses = list(_uses(document, occurrences, lineage))
    receipts = dict(_receipts(document, work))
    asks = has_registry(work)
    versions = registered_versions(work) if asks else []
    newest = newest_manifest(storage.join(work, CORPUS))
    return Trace(
        document=document,
        in_newest_corpus=newest is not None
        and f"{CORPUS}/{newest.key}" in {each.place for each in occurrences},
        occurrences=occurrences,
        uses=uses,
        versions=dict(_versions(versions, occurrences, uses, receipts)),
        receipts=list(receipts),
        asked_registry=asks,
    )


def as_json(found: Trace) -> dict[str, Any]:
    """Return all of it, for a machine."""
    return asdict(found)


def as_text(found: Trace) -> str:
    """Return it for a person."""
    lines = [found.document, "=" * len(found.document)]
    if not found.is_known:
        return "\n".join([*lines, "No corpus, no examples and no receipt here knows this id."])
    now = "is in the newest corpus" if found.in_newest_corpus else "is not in the newest corpus"
    lines += [now, "", "Shards", *(f"  {line}" for line in _shard_lines(found.occurrences))]
    lines += ["", "Made of it", *(f"  {line}" for line in _use_lines(found.uses))]
    lines += ["", "Registered versions"]
    for version, how in found.versions.items():
        lines += [f"  {version}", *(f"    {each}" for each in how)]
    if not found.versions:
        lines.append("  none" if found.asked_registry else "  there is no registry here")
    if found.receipts:
        lines += ["", "Receipts of its removal", *(f"  {uri}" for uri in found.receipts)]
    return "\n".join(lines)


def first_use(rows: Iterable[int], num_examples: int, settings: Mapping[str, Any]) -> int | None:
    """Return the first update, from 1, that a run takes one of ``rows`` in; None if it never does.

    Args:
        rows: training examples, by their numbers.
        num_examples: training examples there are.
        settings: of the training.
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
        stage = result.manifest.stage
        use = None
        if stage == VOCAB and result.inputs & holding:
            use = Use(place, "trained on a sample of a corpus that has it")
        elif stage == TASK and result.inputs & holding:
            if may_be_in_task(document, result, lineage):
                use = Use(place, "its sentences may be in it: the examples hold it out")
        elif stage == PRETRAINING:
            use = _use_of_pretraining(result, occurrences, lineage, used)
        elif stage == FINETUNING and (before := result.inputs & used):
            use = Use(place, f"made of {', '.join(sorted(before))}")
        if use is not None:
            used.add(place)
            yield use


def _use_of_pretraining(
    run: Result, occurrences: list[Occurrence], lineage: Lineage, used: set[str]
) -> Use | None:
    mine = [each for each in occurrences if each.place in run.inputs]
    train = [each for each in mine if each.kind == _TRAIN]
    how, step = [], None
    if train:
        rows = [each.first_row + row for each in train for row in each.rows]
        step, told = _first_step(run, rows, lineage.results[train[0].place])
        how.append(told)
    if any(each.kind == _HELD_OUT for each in mine):
        how.append("scored on it as a held-out document")
    if before := sorted(run.inputs & used):
        how.append(f"made of {', '.join(before)}")
    if not how:
        return None
    return Use(run.place, "; ".join(how), step, [] if step is None else _saved_after(run, step))


def _first_step(run: Result, rows: list[int], examples: Result) -> tuple[int | None, str]:
    """Return the first update that saw one of the examples ``rows``, and what to say of it."""
    if "continue_from" in run.manifest.inputs:
        return None, f"trained on up to {len(rows)} examples of it, after another run"
    settings = run.manifest.settings["training"]
    step = first_use(rows, examples.manifest.facts["num_train"], settings)
    if step is None:
        return None, f"ended before the first of {len(rows)} examples of it"
    return step, f"trained on up to {len(rows)} examples of it, first in step {step:,}"


def _saved_after(run: Result, step: int) -> list[str]:
    folder = storage.join(run.folder, "checkpoints")
    return [storage.join(folder, n) for n in storage.list_names(folder) if _step(n) >= step]


def _step(checkpoint: str) -> int:
    number = checkpoint.removeprefix("step-")
    return int(number) if number.isdecimal() else 0


def _versions(
    versions: Iterable["RegisteredVersion"],
    occurrences: list[Occurrence],
    uses: list[Use],
    receipts: Mapping[str, dict[str, Any]],
) -> Iterator[tuple[str, list[str]]]:
    """Yield each version that has something of the document among what it was made of, and how."""
    in_shards = {each.place: "" for each in occurrences if each.place.startswith(CORPUS)}
    how = {use.place: f"{use.place}: {use.how}" for use in uses}
    for version in versions:
        told = [how[place] for place in sorted(version.places & how.keys())]
        told += [f"{p}: has it" for p in sorted(version.places & in_shards.keys())]
        told += [
            f"named in {uri.rpartition('/')[2]}"
            for uri, receipt in receipts.items()
            if _is_named(version, receipt)
        ]
        if told:
            yield str(version), told


def _is_named(version: "RegisteredVersion", receipt: dict[str, Any]) -> bool:
    named = receipt.get("registered_versions", {}).get("made_of_them", [])
    return version.uri in {each.partition(" ")[0] for each in named}


def _receipts(document: str, work: str) -> Iterator[tuple[str, dict[str, Any]]]:
    folder = storage.join(work, _RECEIPTS)
    for name in storage.list_names(folder):
        if name.endswith(".json"):
            uri = storage.join(folder, name)
            receipt = json.loads(storage.read_bytes(uri))
            if document in receipt["documents"]:
                yield uri, receipt


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
