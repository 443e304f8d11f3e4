"""What was made of a document: ``albert trace docs/a.txt``.

The document's id is the one in the corpus: the file, relative to the source, and the record in it.
Corpora and examples are searched. Vocabularies, tasks, runs, checkpoints and registered versions
follow from what they were made of and from the order of the examples. After a removal and its purge
the receipts still say what contained the document, and which versions were made of it.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_core.stage import errors, manifest, results, storage
from albert_core.stage import lineage as graph
from albert_core.training.order import example_order
from flows.report import Report, Row
from pipelines.removal import VERSIONS, Occurrence, find_document, may_be_in_task

if TYPE_CHECKING:
    from albert_core.registry.versions import RegisteredVersion

MADE_OF_THEM, NOT_LOOKED_THROUGH = "made_of_them", "not_looked_through"
_HOLDING = ("earlier_results_with_them", "models_made_of_them", "vocabularies_made_of_them")
_MAX_ROWS = 8
_ORDER_AT_ONCE = 1 << 20
"""Numbers of the order of examples to compute at a time."""

log = logging.getLogger("removal")


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
    from albert_core.registry.versions import has_registry, registered_versions

    lineage = graph.read_work(work, begun=True)
    occurrences = find_document(document, lineage)
    uses = list(_uses(document, occurrences, lineage))
    receipts = dict(_receipts(document, work))
    corpora = {each.place for each in occurrences if each.place.startswith(graph.CORPUS)}
    how = dict.fromkeys(corpora, "has it") | {use.place: use.how for use in uses}
    newest = manifest.newest_manifest(storage.join(work, graph.CORPUS))
    return Trace(
        document=document,
        in_newest_corpus=newest is not None and f"{graph.CORPUS}/{newest.key}" in corpora,
        occurrences=occurrences,
        uses=uses,
        versions=dict(_versions(registered_versions(work), how, receipts)),
        receipts=list(receipts),
        asked_registry=has_registry(work),
    )


def trace_text(found: Trace) -> str:
    """Return it for a person."""
    if not found.is_known:
        return Report(
            found.document, {}, "No corpus, no examples and no receipt here knows this id."
        ).text()
    versions = [(version, "; ".join(how)) for version, how in found.versions.items()]
    no_version = "none" if found.asked_registry else "there is no registry here"
    groups = {
        "Shards": [_shard_row(each) for each in found.occurrences] or [("none", "")],
        "Made of it": [row for use in found.uses for row in _use_rows(use)] or [("none", "")],
        "Registered versions": versions or [(no_version, "")],
        "Receipts of its removal": [(receipt, "") for receipt in found.receipts],
    }
    now = "is in the newest corpus" if found.in_newest_corpus else "is not in the newest corpus"
    return Report(found.document, groups, now).text()


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


def _uses(document: str, occurrences: list[Occurrence], lineage: graph.Lineage) -> Iterator[Use]:
    """Yield the results made of those that the document is in, inputs first."""
    used: set[str] = set()
    for place, result in lineage.results.items():
        mine = [each for each in occurrences if each.place in result.inputs]
        step, how = _own_use(document, result, mine, lineage) if mine else (None, [])
        before = sorted(result.inputs & used)
        if before and result.manifest.stage in (graph.PRETRAINING, graph.FINETUNING):
            how.append(f"made of {', '.join(before)}")
        if how:
            used.add(place)
            checkpoints = [] if step is None else _saved_after(result, step)
            yield Use(place, "; ".join(how), step, checkpoints)


def _own_use(
    document: str, result: graph.Result, mine: list[Occurrence], lineage: graph.Lineage
) -> tuple[int | None, list[str]]:
    """Return the first update that used the document, and how a result used it.

    Args:
        document: its id.
        result: result of any stage.
        mine: where the document is in the inputs of the result.
        lineage: all results.
    """
    stage = result.manifest.stage
    if stage == graph.VOCAB:
        return None, ["trained on a sample of a corpus that has it"]
    if stage == graph.TASK and may_be_in_task(document, result, lineage):
        return None, ["its sentences may be in it: the examples hold it out"]
    if stage != graph.PRETRAINING:
        return None, []
    step, how = None, []
    if train := [each for each in mine if each.kind == "train"]:
        rows = [each.first_row + row for each in train for row in each.rows]
        step, told = _first_step(result, rows, lineage.results[train[0].place])
        how.append(told)
    if any(each.kind == "held_out" for each in mine):
        how.append("scored on it as a held-out document")
    return step, how


def _first_step(
    run: graph.Result, rows: list[int], examples: graph.Result
) -> tuple[int | None, str]:
    """Return the first update that used one of the examples ``rows``, and a sentence about it."""
    of_it = f"{len(rows):,} examples of it"
    if "continue_from" in run.manifest.inputs:
        return None, f"trained on up to {of_it}, after another run"
    settings = run.manifest.settings["training"]
    step = first_use(rows, examples.manifest.result_as(results.ExamplesResult).num_train, settings)
    if step is None:
        return None, f"ended before the first of {of_it}"
    return step, f"trained on up to {of_it}, first in step {step:,}"


def _saved_after(run: graph.Result, step: int) -> list[str]:
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
        versions: all registered versions.
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
    folder = storage.join(work, "receipts")
    for name in storage.list_names(folder):
        uri = storage.join(folder, name)
        if name.endswith(".json") and document in manifest.unsealed(uri)["documents"]:
            yield uri, named_versions(uri)


def _shard_row(found: Occurrence) -> Row:
    rows, number = found.rows, len(found.rows)
    shown = ", ".join(map(str, rows[:_MAX_ROWS])) + (", ..." if number > _MAX_ROWS else "")
    counted = "row" if number == 1 else f"{number:,} rows:"
    return found.place, f"{found.uri.rpartition('/')[2]}  {counted} {shown}"


def _use_rows(use: Use) -> Iterator[Row]:
    yield use.place, use.how
    for uri in use.checkpoints:
        yield "", uri.rpartition("/")[2]


def name_affected_versions(receipt: str, work: str) -> list[str]:
    """Add to the receipt at this URI the versions made of what it names; return them.

    Versions of corpora that are not in ``work`` are listed separately, because nobody can tell
    whether they contain the documents. If there is no registry, or it does not answer, nothing is
    added.
    """
    from albert_core.registry.versions import has_registry, registered_versions

    if not has_registry(work):
        return []
    try:
        versions = registered_versions(work)
    except errors.RegistryError as error:
        log.warning("removal: the receipt names no registered versions: %s", error)
        return []
    content = manifest.unsealed(receipt)
    here = {result.place for result in graph.read_work(work).of_stage(graph.CORPUS)}
    found = affected_versions(content, versions, here)
    if content.get(VERSIONS) != found:
        content[VERSIONS] = found
        storage.write_bytes(receipt, manifest.sealed(content))
    for version in found[MADE_OF_THEM]:
        log.warning("removal: %s was made of removed documents", version)
    return found[MADE_OF_THEM]


def named_versions(receipt: str) -> list[str]:
    """Return the versions that the receipt at this URI says were made of what it names."""
    content = manifest.unsealed(receipt)
    return list(content.get(VERSIONS, {}).get(MADE_OF_THEM, []))


def affected_versions(
    receipt: dict[str, Any], versions: Iterable["RegisteredVersion"], corpora: set[str]
) -> dict[str, list[str]]:
    """Return the versions that were made of what a receipt names, and those where it is unknown.

    Args:
        receipt: as `pipelines.removal` writes it.
        versions: all registered versions.
        corpora: places of the corpora that were searched.
    """
    clean = {graph.place_in(checked["manifest"]) for checked in receipt["in_no_shard_of"]}
    holding = {graph.place_in(uri) for name in _HOLDING for uri in receipt[name]} - clean - {""}
    made_of_them, unknown = [], []
    for version in versions:
        places = version.made_of.keys()
        if places & holding:
            made_of_them.append(str(version))
        elif any(place.startswith(f"{graph.CORPUS}/") for place in places - corpora):
            unknown.append(str(version))
    return {MADE_OF_THEM: sorted(made_of_them), NOT_LOOKED_THROUGH: sorted(unknown)}
