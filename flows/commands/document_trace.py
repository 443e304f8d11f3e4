"""`albert trace`: from a document to what was made of it; and the versions that a receipt names.

The document's id is the one in the corpus: the file, relative to the source, and the record in it.
Corpora and examples are searched; the rest follows from what it was made of and from the order of
the examples. After a removal and its purge the receipts still say what contained the document, and
which versions were made of it; what was made of text that is gone may be made of any document.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_core.stage import errors, manifest, results, storage
from albert_core.stage.lineage import Lineage, Result, place_in, read_work
from albert_core.training.order import example_order, order_seed
from flows.report import Report, Row
from pipelines import removal

if TYPE_CHECKING:
    from albert_core.registry.versions import RegisteredVersion

MADE_OF_THEM, NOT_LOOKED_THROUGH = "made_of_them", "not_looked_through"
_HOLDING = ("earlier_results_with_them", "models_made_of_them", "vocabularies_made_of_them")
_MAX_ROWS = 8
"""Rows of a shard that a text shows."""
_ORDER_AT_ONCE = 1 << 20
"""How many numbers of the order of examples are computed at a time."""

log = logging.getLogger("removal")


@dataclass(frozen=True)
class Use:
    """A result that has, or may have, text of the document."""

    place: str
    how: str
    first_step: int | None = None
    """The first update of a pretraining that used the document, 0 where its first weights did;
    None: not known."""
    checkpoints: list[str] = field(default_factory=list)
    """The existing checkpoints of that pretraining from this update on."""


@dataclass(frozen=True)
class Trace:
    """Where a document went."""

    document: str
    in_current_corpus: bool
    """Whether it is in the corpus that a run made or found last."""
    occurrences: list[removal.Occurrence]
    uses: list[Use]
    versions: dict[str, list[str]]
    """Registered version -> how it used the document."""
    receipts: list[str]
    """URIs of the receipts of its removal."""
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

    lineage = read_work(work, begun=True)
    occurrences = removal.find_document(document, lineage)
    uses = list(_uses(document, occurrences, lineage))
    kept = [each.place for each in occurrences if not each.is_rejected]
    corpora = {place for place in kept if place.startswith(results.CORPUS)}
    how = dict.fromkeys(corpora, "has it") | {use.place: use.how for use in uses}
    receipts = _receipts(document, work)
    used_by = {}
    for version in registered_versions(work):
        told = [f"{place}: {how[place]}" for place in sorted(version.made_of.keys() & how.keys())]
        naming = (uri for uri, versions in receipts.items() if version.uri in versions)
        told += [f"named in {uri.rpartition('/')[2]}" for uri in naming]
        absent = [place for place in version.made_of if _is_absent(place, lineage)]
        if absent and not told:
            told = [f"unknown, because {', '.join(absent)} is not here"]
        if told:
            used_by[str(version)] = told
    finished = (c for c in lineage.of_stage(results.CORPUS) if c.is_finished)
    current = max(finished, key=_used_at, default=None)
    return Trace(
        document=document,
        in_current_corpus=current is not None and current.place in corpora,
        occurrences=occurrences,
        uses=uses,
        versions=used_by,
        receipts=list(receipts),
        asked_registry=has_registry(work),
    )


def _is_absent(place: str, lineage: Lineage) -> bool:
    """Return whether this is a corpus that is not in the work folder."""
    return place.startswith(f"{results.CORPUS}/") and place not in lineage.results


def _used_at(result: Result) -> float:
    """Return when a run last made the result, or found it."""
    fs, folder = storage.filesystem(result.folder)
    paths = (f"{folder}/{name}" for name in (manifest.MANIFEST, manifest.BEGUN))
    return max(manifest.modified_at(fs.info(path)) for path in paths if fs.exists(path))


def trace_text(found: Trace) -> str:
    """Return the trace as text."""
    uses = []
    for use in found.uses:
        uses += [(use.place, use.how), *(("", uri.rpartition("/")[2]) for uri in use.checkpoints)]
    versions = [(version, "; ".join(how)) for version, how in found.versions.items()]
    no_version = "none" if found.asked_registry else "there is no registry here"
    groups = {
        "Shards": [_shard_row(each) for each in found.occurrences] or [("none", "")],
        "Made of it": uses or [("none", "")],
        "Registered versions": versions or [(no_version, "")],
        "Receipts of its removal": [(receipt, "") for receipt in found.receipts],
    }
    now = "is in the current corpus" if found.in_current_corpus else "is not in the current corpus"
    if not found.is_known:
        now = "No corpus, no examples and no receipt here knows this id."
    return Report(found.document, groups, now).text()


def _shard_row(found: removal.Occurrence) -> Row:
    rows, number = found.rows, len(found.rows)
    shown = ", ".join(map(str, rows[:_MAX_ROWS])) + (", ..." if number > _MAX_ROWS else "")
    counted = "row" if number == 1 else f"{number:,} rows:"
    return found.place, f"{found.uri.rpartition('/')[2]}  {counted} {shown}"


def _uses(document: str, occurrences: list[removal.Occurrence], lineage: Lineage) -> Iterator[Use]:
    """Yield the results made of those that the document is in, or may have been, inputs first."""
    used, unknown = set[str](), set[str]()
    kept = [each for each in occurrences if not each.is_rejected]
    for place, result in lineage.results.items():
        mine = [each for each in kept if each.place in result.sources]
        step, how = _use_of_text(document, result, mine, lineage)
        if result.manifest.stage in (results.VOCAB, results.TASK, *results.MODEL_RESULTS):
            if before := sorted(used & result.sources):
                how.append(f"made of {', '.join(before)}")
            if how:
                used.add(place)
            elif lost := [*lineage.lost_sources(result), *sorted(unknown & result.sources)]:
                unknown.add(place)
                how.append(f"unknown: made of {', '.join(lost)}, whose text is gone")
        if how:
            yield Use(
                place, "; ".join(how), step, [] if step is None else _saved_from(result, step)
            )


def _use_of_text(
    document: str, result: Result, mine: list[removal.Occurrence], lineage: Lineage
) -> tuple[int | None, list[str]]:
    """Return `Use.first_step`, and how the result used the document's text.

    Args:
        document: its id.
        result: the result.
        mine: where the document is in what the result was made of.
        lineage: all results.
    """
    stage = result.manifest.stage
    if mine and stage == results.VOCAB:
        return None, ["trained on a sample of a corpus that has it"]
    if mine and stage == results.TASK and removal.may_be_in_task(document, result, lineage):
        return None, ["its sentences may be in it, as it is made from held-out documents"]
    if mine and stage == results.PRETRAINING:
        return _use_in_training(result, mine, lineage)
    return None, []


def _use_in_training(
    run: Result, mine: Iterable[removal.Occurrence], lineage: Lineage
) -> tuple[int | None, list[str]]:
    """Return `Use.first_step` of a run, and how it used the document.

    Args:
        run: result of a pretraining.
        mine: where the document is in its examples.
        lineage: all results.
    """
    step, how = None, []
    if train := [each for each in mine if each.kind == "train"]:
        rows = [each.first_row + row for each in train for row in each.rows]
        of_it = f"{len(rows):,} examples of it"
        examples, settings = lineage.results[train[0].place], run.manifest.settings["training"]
        num_examples = examples.manifest.result_as(results.ExamplesResult).num_train
        counted = _counted(rows, examples) if settings.get("initial_weights") == "counts" else 0
        if counted:
            how.append(f"first weights from counts of {counted:,} examples of it")
        if "continue_from" in run.manifest.inputs:
            how.append(f"trained on up to {of_it}, after another run")
        elif step := _first_step(rows, num_examples, settings):
            how.append(f"trained on up to {of_it}, first in step {step:,}")
        else:
            how.append(f"ended before the first of {of_it}")
        step = 0 if counted else step
    if any(each.kind == "held_out" for each in mine):
        how.append("scored on it as a held-out document")
    return step, how


def _counted(rows: Sequence[int], examples: Result) -> int:
    """Return how many of ``rows`` are among those that first weights are counted from."""
    from albert_core.training.cooccurrence import num_counted
    from albert_core.training.shards import ExampleShards

    number = num_counted(ExampleShards(examples.uri, "train"))
    return sum(row < number for row in rows)


def _first_step(rows: Sequence[int], num_examples: int, settings: Mapping[str, Any]) -> int | None:
    """Return the first update, from 1, in which a run uses one of ``rows``; None: it never does.

    Args:
        rows: numbers of training examples.
        num_examples: number of training examples.
        settings: the training's.
    """
    seed = order_seed(settings["seed"])
    taken = min(settings["num_steps"] * settings["batch_size"], num_examples)
    for begin in range(0, taken, _ORDER_AT_ONCE):
        count = min(_ORDER_AT_ONCE, taken - begin)
        order = example_order(begin, count, num_examples, seed)
        places = np.flatnonzero(np.isin(order, rows))
        if len(places):
            return int((begin + places[0]) // settings["batch_size"]) + 1
    return None


def _saved_from(run: Result, step: int) -> list[str]:
    """Return the checkpoints of a run from an update on."""
    from albert_core.checkpoint import CHECKPOINTS, list_checkpoints

    uris = list_checkpoints(storage.join(run.folder, CHECKPOINTS))
    return [uri for uri in uris if int(uri.rpartition("-")[2]) >= step]


def _receipts(document: str, work: str) -> dict[str, set[str]]:
    """Return the receipts of a document's removal, each with the URIs of the versions it names."""
    folder = storage.join(work, results.RECEIPTS)
    uris = [storage.join(folder, name) for name in storage.list_names(folder)]
    return {
        uri: {version.partition(" ")[0] for version in named_versions(uri)}
        for uri in uris
        if uri.endswith(".json") and document in manifest.unsealed(uri)["documents"]
    }


def name_affected_versions(receipt: str, work: str) -> None:
    """Add to the receipt at this URI the versions made of what it names.

    Versions of text that is not in ``work`` are listed separately, because nobody can tell whether
    it contained the documents. If there is no registry, or it does not answer, nothing is
    added.
    """
    from albert_core.registry.versions import has_registry, registered_versions

    if not has_registry(work):
        return
    try:
        versions = registered_versions(work)
    except errors.RegistryError as error:
        log.warning("removal: the receipt names no registered versions: %s", error)
        return
    content = manifest.unsealed(receipt)
    here = {result.place for result in read_work(work).of_stage(results.CORPUS)}
    found = affected_versions(content, versions, here)
    if content.get(removal.VERSIONS) != found:
        content[removal.VERSIONS] = found
        storage.write_bytes(receipt, manifest.sealed(content))
    for version in found[MADE_OF_THEM]:
        log.warning("removal: %s was made of removed documents", version)


def named_versions(receipt: str) -> list[str]:
    """Return the versions that the receipt at this URI says were made of what it names."""
    return list(manifest.unsealed(receipt).get(removal.VERSIONS, {}).get(MADE_OF_THEM, []))


def affected_versions(
    receipt: Mapping[str, Any], versions: Iterable["RegisteredVersion"], corpora: set[str]
) -> dict[str, list[str]]:
    """Return the versions that were made of what a receipt names, and those where it is unknown.

    Args:
        receipt: as `pipelines.removal` writes it.
        versions: all registered versions.
        corpora: places of the corpora that were searched.
    """
    clean = {place_in(searched["manifest"]) for searched in receipt["in_no_shard_of"]}
    holding = {place_in(uri) for name in _HOLDING for uri in receipt[name]} - clean - {""}
    possible = set(map(place_in, receipt.get(removal.MAY_BE_MADE_OF_THEM, [])))
    found: dict[str, list[str]] = {MADE_OF_THEM: [], NOT_LOOKED_THROUGH: []}
    for version in versions:
        places = version.made_of.keys()
        if places & holding:
            found[MADE_OF_THEM].append(str(version))
        elif places & possible or any(p.startswith(f"{results.CORPUS}/") for p in places - corpora):
            found[NOT_LOOKED_THROUGH].append(str(version))
    return {name: sorted(named) for name, named in found.items()}
