"""What models are made of: `albert lineage`, `albert trace` and `albert rebuild`.

`lineage` goes from a model back to its source files. For a registered version it asks only the
registry, so it works where the work folder is not mounted.

`trace` goes from a document to what was made of it. The document's id is the one in the corpus: the
file, relative to the source, and the record in it. Corpora and examples are searched; the rest
follows from what it was made of and from the order of the examples. After a removal and its purge
the receipts still say what contained the document, and which versions were made of it; what was
made of text that is gone may be made of any document.

`rebuild` calls every stage as it was called then, with the recipe of that call, in a work folder of
its own, and compares the digests of the results. It needs the registry and the unchanged source
files. Text stages give the same bytes on every engine and any number of workers. The bits of
trained weights depend on the order of sums: on the ranks, the threads of each, the processor's
vector width, the device and torch. Ranks, threads and vectors are set as they were; a difference in
the others is reported.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_core.stage import command, errors, manifest, provenance, results, storage
from albert_core.stage.results import Lineage, Result
from albert_core.text.tokenizer import SPIECE_MODEL
from albert_core.training.order import example_order, order_seed
from flows.recipe import Recipe
from flows.report import Report, Row
from flows.stage_process import distributed_argv
from pipelines import removal, source_files
from pipelines.config import SourceSettings

if TYPE_CHECKING:
    from albert_core.registry.versions import RegisteredVersion

MADE_OF_THEM, NOT_LOOKED_THROUGH = "made_of_them", "not_looked_through"
RunStage = Callable[[list[str], Mapping[str, str]], str]
"""Command line, environment variables -> URI of the manifest."""
_HOLDING = ("earlier_results_with_them", "models_made_of_them", "vocabularies_made_of_them")
_OWN_REGISTRY = {"MLFLOW_TRACKING_URI": ""}
"""A rebuild logs its runs in its own work folder."""
_DIGITS = 12
_MAX_SOURCE_FILES, _MAX_ROWS, _MAX_DIFFERENT_FILES = 10, 8, 5
"""How many of each a text shows."""
_ORDER_AT_ONCE = 1 << 20
"""How many numbers of the order of examples are computed at a time."""

log = logging.getLogger("removal")


@dataclass(frozen=True)
class ModelLineage:
    """A model and everything that it was made of."""

    title: str
    lineage: Lineage
    version: "RegisteredVersion | None" = None


def read_model_lineage(model: str, work: str) -> ModelLineage:
    """Return what ``model`` was made of.

    Args:
        model: ``models:/name@alias``, ``models:/name/3``, or a manifest or a folder.
        work: folder for all results, where the registry is if the environment names no server.

    Raises:
        IntegrityError: a manifest is missing.
        RegistryError: there is no such version.
    """
    if not model.startswith("models:/"):
        return ModelLineage(storage.absolute(model), results.read_lineage(model))
    from albert_core.registry.versions import read_version

    version, lineage = read_version(model, work)
    return ModelLineage(str(version), lineage, version)


def files_of_corpus(corpus: Result) -> list[source_files.SourceFile] | None:
    """Return a corpus's source files; None if the list is neither registered nor here."""
    content = corpus.source_list
    uri = storage.join(corpus.folder, results.SOURCE_FILES)
    if content is None and storage.exists(uri):
        content = storage.read_bytes(manifest.checked(uri))
    return None if content is None else source_files.parse_files(content)


def lineage_json(found: ModelLineage) -> dict[str, Any]:
    """Return the lineage as JSON values."""
    version, corpora = found.version, found.lineage.of_stage(results.CORPUS)
    files = {corpus.place: files_of_corpus(corpus) for corpus in corpora}
    return {
        "model": found.title,
        "version": version and {"uri": version.uri, **asdict(version)},
        "stages": [_stage_json(result) for result in found.lineage.results.values()],
        "source_files": {place: list(map(asdict, each)) for place, each in files.items() if each},
    }


def _stage_json(result: Result) -> dict[str, Any]:
    made = result.manifest
    return {
        "place": result.place,
        "manifest": result.uri,
        "content": made.content,
        "num_files": len(made.shards),
        "num_bytes": sum(shard.num_bytes for shard in made.shards),
        "made_of": sorted(result.inputs),
        "differs_from_defaults": _changed_settings(made) or {},
        **made.model_dump(mode="json", exclude={"stage", "key", "shards", "input_manifests"}),
    }


def lineage_text(found: ModelLineage, all_files: bool = False) -> str:
    """Return the lineage as text."""
    groups: dict[str, list[Row]] = {"Version": []}
    if version := found.version:
        tags = version.tags
        scores = {n.removeprefix("score."): v for n, v in tags.items() if n.startswith("score.")}
        groups["Version"] = [
            ("scores", _pairs(scores) + (f" on {tags['task']}" if "task" in tags else "")),
            ("decision", tags.get("decision", "none")),
            ("MLflow run", version.mlflow_run_id),
        ]
    for place, result in found.lineage.results.items():
        groups[place] = list(_stage_rows(result, all_files))
    return Report(found.title, groups).text()


def _stage_rows(result: Result, all_files: bool) -> Iterator[Row]:
    made, made_by = result.manifest, result.manifest.provenance
    yield "manifest", result.uri
    if made.shards:
        num_bytes = sum(shard.num_bytes for shard in made.shards)
        kinds = Counter(shard.kind for shard in made.shards)
        files = ", ".join(f"{n:,} {kind}" for kind, n in sorted(kinds.items()))
        yield "content", f"{made.content[:_DIGITS]}, {num_bytes:,} bytes: {files}"
    yield "made of", ", ".join(sorted(result.inputs)) or "source files"
    changed = _changed_settings(made)
    if changed is None:
        yield "recipe", "not recorded; --json has what the manifest says of the settings"
    else:
        said = _pairs({name: json.dumps(value) for name, value in changed.items()})
        yield "recipe", said or "the defaults"
    yield "code", f"{made.code}, {made_by}"
    yield "libraries", _pairs(made.libraries) or "none that count"
    machines = made.result.get("machines") or [made_by.machine]
    yield from (("machine", _pairs(machine)) for machine in machines)
    yield from (("account", str(account)) for account in made.accounts)
    if "scores" in made.result:
        yield "scores", _pairs(made.result["scores"])
    if "mlflow_run_id" in made.result:
        yield "MLflow run", str(made.result["mlflow_run_id"])
    if made.stage == results.CORPUS:
        yield from _file_rows(files_of_corpus(result), all_files)


def _file_rows(files: list[source_files.SourceFile] | None, all_files: bool) -> Iterator[Row]:
    if files is None:
        yield "files", "the list was not registered, and the corpus is not here"
        return
    num_bytes = sum(file.num_bytes for file in files)
    yield "files", f"{len(files):,} source files, {num_bytes:,} bytes"
    shown = files if all_files else files[:_MAX_SOURCE_FILES]
    for file in shown:
        yield "", f"{file.sha256[:_DIGITS]}  {file.num_bytes:>12,}  {file.name}"
    if len(files) > len(shown):
        yield "", f"and {len(files) - len(shown):,} more: --files or --json lists them all"


def _changed_settings(made: manifest.Manifest) -> dict[str, Any] | None:
    """Return the settings of a call that are not the defaults, by path; None: not recorded."""
    if made.provenance.call is None:
        return None
    defaults = Recipe(name="defaults").model_dump(mode="json")
    return {
        f"{section}.{name}": value
        for section, values in made.provenance.call.recipe.items()
        for name, value in values.items()
        if value != defaults.get(section, {}).get(name)
    }


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} ({_pairs(value)})" if isinstance(value, Mapping) else f"{name} {value}"
        for name, value in values.items()
    )


@dataclass(frozen=True)
class Use:
    """A result that has, or may have, text of the document."""

    place: str
    how: str
    first_step: int | None = None
    """The first update of a pretraining that used the document; None: not known."""
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

    lineage = results.read_work(work, begun=True)
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
            yield Use(place, "; ".join(how), step, _saved_from(result, step) if step else [])


def _use_of_text(
    document: str, result: Result, mine: list[removal.Occurrence], lineage: Lineage
) -> tuple[int | None, list[str]]:
    """Return the first update that used the document, if any, and how the result used its text.

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
        return None, ["its sentences may be in it: the examples hold it out"]
    if mine and stage == results.PRETRAINING:
        return _use_in_training(result, mine, lineage)
    return None, []


def _use_in_training(
    run: Result, mine: Iterable[removal.Occurrence], lineage: Lineage
) -> tuple[int | None, list[str]]:
    """Return the first update of a run that used the document, and how the run used it.

    Args:
        run: result of a pretraining.
        mine: where the document is in its examples.
        lineage: all results.
    """
    step, how = None, []
    if train := [each for each in mine if each.kind == "train"]:
        rows = [each.first_row + row for each in train for row in each.rows]
        of_it = f"{len(rows):,} examples of it"
        examples = lineage.results[train[0].place].manifest.result_as(results.ExamplesResult)
        settings = run.manifest.settings["training"]
        if "continue_from" in run.manifest.inputs:
            how.append(f"trained on up to {of_it}, after another run")
        elif step := _first_step(rows, examples.num_train, settings):
            how.append(f"trained on up to {of_it}, first in step {step:,}")
        else:
            how.append(f"ended before the first of {of_it}")
    if any(each.kind == "held_out" for each in mine):
        how.append("scored on it as a held-out document")
    return step, how


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
    here = {result.place for result in results.read_work(work).of_stage(results.CORPUS)}
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
    clean = {results.place_in(searched["manifest"]) for searched in receipt["in_no_shard_of"]}
    holding = {results.place_in(uri) for name in _HOLDING for uri in receipt[name]} - clean - {""}
    possible = set(map(results.place_in, receipt.get(removal.MAY_BE_MADE_OF_THEM, [])))
    found: dict[str, list[str]] = {MADE_OF_THEM: [], NOT_LOOKED_THROUGH: []}
    for version in versions:
        places = version.made_of.keys()
        if places & holding:
            found[MADE_OF_THEM].append(str(version))
        elif places & possible or any(p.startswith(f"{results.CORPUS}/") for p in places - corpora):
            found[NOT_LOOKED_THROUGH].append(str(version))
    return {name: sorted(named) for name, named in found.items()}


@dataclass(frozen=True)
class Rebuilt:
    """How one rebuilt stage compares."""

    stage: str
    place: str
    """Place of the original result."""
    manifest: str
    """URI of the new manifest."""
    content: str
    is_equal: bool
    files: list[str]
    """The files that differ."""
    causes: list[str]
    """Other differences, which may be the reason."""


@dataclass(frozen=True)
class Rebuild:
    """How a rebuilt model compares."""

    title: str
    into: str
    stages: list[Rebuilt]
    model: str
    """Digest of the registered model; empty: a folder was given, not a version."""
    is_model_equal: bool

    @property
    def is_equal(self) -> bool:
        """Whether all of it is equal, bit for bit."""
        return self.is_model_equal and all(stage.is_equal for stage in self.stages)


def check(found: ModelLineage, anyway: bool = False) -> dict[str, list[str]]:
    """Return what is known to differ before anything is made, by the place of the result.

    Args:
        found: what is to be rebuilt.
        anyway: whether to report changed source files instead of raising an error.

    Raises:
        IntegrityError: a stage's call was not recorded.
        SourceError: the source files have changed.
    """
    notes = {}
    for place, result in found.lineage.results.items():
        call = _call_of(result)
        is_corpus = result.manifest.stage == results.CORPUS
        changed = _source_changes(result, call, anyway) if is_corpus else []
        notes[place] = [*changed, *_code_changes(result.manifest, call)]
    return notes


def rebuild(
    found: ModelLineage, notes: Mapping[str, Sequence[str]], into: str, run_stage: RunStage
) -> Rebuild:
    """Make everything again; return how it compares.

    Args:
        found: what was made then.
        notes: what `check` found.
        into: folder for all results; a rebuild that was killed continues there.
        run_stage: runs a stage's command line.

    Raises:
        AlbertError: a stage failed.
    """
    from albert_core.conversion.model_files import model_digest

    stages: dict[str, Rebuilt] = {}
    for place, result in found.lineage.results.items():
        new_places = {then: results.place_in(stage.manifest) for then, stage in stages.items()}
        made = run_stage(*_command(result, into, new_places))
        different = {then for then, stage in stages.items() if not stage.is_equal}
        stages[place] = _compared(result, made, different, notes[place])
    model = found.version.tags.get("model_digest", "") if found.version else ""
    digests = (
        model_digest(results.model_folder_of(each.manifest))
        for each in stages.values()
        if each.stage in results.MODEL_RESULTS
    )
    return Rebuild(found.title, into, [*stages.values()], model, not model or model in digests)


def rebuild_text(done: Rebuild) -> str:
    """Return the comparison as text."""
    compared = [(each.stage, each.content, each.is_equal) for each in done.stages]
    if done.model:
        compared.append(("the model", done.model, done.is_model_equal))
    rows = [
        (name, f"{digest[:_DIGITS]}  {'equal' if is_equal else 'DIFFERS'}")
        for name, digest, is_equal in compared
    ]
    end = "No rebuilt folder holds the registered model."
    if done.is_equal:
        end = "Equal in every stage, bit for bit."
    elif first := next((each for each in done.stages if not each.is_equal), None):
        more = ", ..." if len(first.files) > _MAX_DIFFERENT_FILES else ""
        files = ", ".join(first.files[:_MAX_DIFFERENT_FILES]) + more
        causes = "".join(f"\n  {cause}" for cause in first.causes)
        end = f"The first stage that differs is {first.stage}, in {files}. Likely because{causes}"
    return Report(f"{done.title}, rebuilt in {done.into}", {"Stages": rows}, note=end).text()


def folder_name(found: ModelLineage) -> str:
    """Return the name of the folder to rebuild in."""
    if found.version is None:
        return results.place_in(found.title).replace("/", "-") or "model"
    return f"{found.version.name}-{found.version.version}"


def _command(
    result: Result, into: str, new_places: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that make ``result`` again."""
    call = _call_of(result)
    sections = call.rest | call.recipe
    if "kept" in result.manifest.settings:  # the text that it was trained on may be gone
        given = {"model": storage.join(result.folder, SPIECE_MODEL)}
        sections = sections | {"vocabulary": sections["vocabulary"] | given}
    recipe = storage.join(into, "recipes", f"{result.place.replace('/', '-')}.json")
    storage.write_bytes(recipe, json.dumps(sections, indent=1).encode())
    options = {name: _moved(value, into, new_places) for name, value in call.options.items()}
    argv = command.stage_argv(call.module, recipe, **options, work=into)
    machines = _machines(result.manifest)
    if len(machines) != 1:
        return argv, _OWN_REGISTRY
    [machine] = machines
    if result.manifest.stage == results.PRETRAINING:
        argv = distributed_argv(argv, machine["ranks"])
    threads, vectors = str(machine["threads"]), machine["vectors"].lower()
    return argv, {**_OWN_REGISTRY, "OMP_NUM_THREADS": threads, "ATEN_CPU_CAPABILITY": vectors}


def _machines(made: manifest.Manifest) -> list[dict[str, Any]]:
    """Return the machines of a training, see `results.Machine`; none for another stage."""
    return list(made.result.get("machines", []))


def _moved(address: str, into: str, new_places: Mapping[str, str]) -> str:
    """Return the rebuilt counterpart of an address, or of each in a JSON list."""
    if address.startswith("["):
        return json.dumps([_moved(each, into, new_places) for each in json.loads(address)])
    place = results.place_in(address)
    if place not in new_places:
        return address
    return storage.join(into, new_places[place]) + address.partition(place)[2]


def _compared(result: Result, made: str, different: set[str], notes: Sequence[str]) -> Rebuilt:
    then, now = result.manifest, manifest.read_manifest(made)
    old, new = ({shard.path: shard.sha256 for shard in each.shards} for each in (then, now))
    files = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    is_equal = now.content == then.content
    causes = [] if is_equal else [*_causes(result, now, different), *notes]
    return Rebuilt(now.stage, result.place, made, then.content, is_equal, files, causes)


def _causes(result: Result, now: manifest.Manifest, different: set[str]) -> Iterator[str]:
    then = result.manifest
    if upstream := sorted(result.inputs & different):
        yield f"it is made of {', '.join(upstream)}, which differs already"
    else:
        names = (name for name in then.inputs if then.inputs[name] != now.inputs.get(name))
        yield from (f"its input {name} has changed" for name in names)
    if then.settings != now.settings:
        yield "its settings mean something else now: the code has other defaults"
    old, new = _machines(then), _machines(now)
    if len(old) > 1:
        yield f"it was made on {len(old)} machines in turn: {json.dumps(old)}"
    elif old != new:
        yield f"it was made on {json.dumps(old)} and is on {json.dumps(new)}"


def _code_changes(then: manifest.Manifest, call: provenance.Call) -> Iterator[str]:
    if provenance.code_digest(call.module) != then.code:
        now = provenance.code_commit()[0][:_DIGITS] or "unknown"
        yield f"the code differs from then: {then.provenance}, and now {now}"
    versions = provenance.library_versions(*then.libraries)
    for name, version in then.libraries.items():
        if versions[name] != version:
            yield f"the library {name} was {version} and is {versions[name]}"


def _source_changes(corpus: Result, call: provenance.Call, anyway: bool) -> list[str]:
    """Return the changes of the source files, as one text if there are any."""
    then = files_of_corpus(corpus)
    if then is None:
        return ["its list of source files is gone, so they can't be checked first"]
    settings = SourceSettings.read(call.recipe["source"], corpus.uri)
    undated = (
        [replace(file, modified="") for file in files]
        for files in (then, source_files.list_source(settings).files)
    )
    changes = source_files.describe_changes(*undated)
    if changes and not anyway:
        raise errors.SourceError(
            f"{corpus.place}: source files: {changes}. The model can't come out equal. Put the "
            "files back as they were, or give --anyway to see what differs."
        )
    return [f"source files: {changes}"] if changes else []


def _call_of(result: Result) -> provenance.Call:
    call = result.manifest.provenance.call
    if call is None:
        raise errors.IntegrityError(
            f"{result.uri} does not say how the stage was called: it was called as a function. It "
            "can't be repeated."
        )
    return call
