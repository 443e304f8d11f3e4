"""What models are made of: `albert lineage`, `albert trace` and `albert rebuild`.

`lineage` goes from a model back to its source files. For a registered version it asks only the
registry, so it works where the work folder is not mounted.

`trace` goes from a document to what was made of it. The document's id is the one in the corpus: the
file, relative to the source, and the record in it. Corpora and examples are searched; the rest
follows from what it was made of and from the order of the examples. After a removal and its purge
the receipts still say what contained the document, and which versions were made of it.

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
from albert_core.stage import lineage as graph
from albert_core.stage.lineage import CORPUS, SOURCE_FILES, Lineage, Result, read_lineage
from albert_core.stage.manifest import Manifest, checked, read_manifest
from albert_core.stage.provenance import UNKNOWN_COMMIT, Provenance
from albert_core.text.tokenizer import SPIECE_MODEL
from albert_core.training.order import example_order
from flows.recipe import Recipe
from flows.report import Report, Row
from flows.stage_process import distributed_argv
from pipelines.config import SourceSettings
from pipelines.removal import VERSIONS, Occurrence, find_document, may_be_in_task
from pipelines.source_files import SourceFile, describe_changes, list_source, parse_files

if TYPE_CHECKING:
    from albert_core.registry.versions import RegisteredVersion


_MAX_SOURCE_FILES = 10
_DIGITS = 12


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
        return ModelLineage(storage.absolute(model), read_lineage(model))
    from albert_core.registry.versions import read_version

    version, lineage = read_version(model, work)
    return ModelLineage(str(version), lineage, version)


def source_files(corpus: Result) -> list[SourceFile] | None:
    """Return the files that a corpus was made of; None if the list is neither registered nor here.

    Other results have no such list.
    """
    content = corpus.source_list
    uri = storage.join(corpus.folder, SOURCE_FILES)
    if content is None and storage.exists(uri):
        content = storage.read_bytes(checked(uri))
    return None if content is None else parse_files(content)


def lineage_json(found: ModelLineage) -> dict[str, Any]:
    """Return all of it for a machine."""
    lists = {corpus.place: source_files(corpus) for corpus in found.lineage.of_stage(CORPUS)}
    version = found.version
    return {
        "model": found.title,
        "version": version and {"uri": version.uri, **asdict(version)},
        "stages": [_stage_as_json(result) for result in found.lineage.results.values()],
        "source_files": {n: list(map(asdict, files)) for n, files in lists.items() if files},
    }


def lineage_text(found: ModelLineage, all_files: bool = False) -> str:
    """Return it for a person."""
    results = found.lineage.results
    groups = {place: list(_stage_rows(result, all_files)) for place, result in results.items()}
    return Report(found.title, {"Version": list(_version_rows(found.version)), **groups}).text()


def _changed_settings(provenance: Provenance | None) -> dict[str, Any]:
    """Return the settings of a call that differ from the defaults, by their path."""
    if provenance is None or provenance.call is None:
        return {}
    defaults = Recipe(name="defaults").model_dump(mode="json")
    return {
        f"{section}.{name}": value
        for section, values in provenance.call.recipe.items()
        for name, value in values.items()
        if value != defaults.get(section, {}).get(name)
    }


def _stage_as_json(result: Result) -> dict[str, Any]:
    manifest = result.manifest
    return {
        "place": result.place,
        "manifest": result.uri,
        "content": manifest.content,
        "num_files": len(manifest.shards),
        "num_bytes": sum(shard.num_bytes for shard in manifest.shards),
        "made_of": sorted(result.inputs),
        "differs_from_defaults": _changed_settings(manifest.provenance),
        **manifest.model_dump(mode="json", exclude={"stage", "key", "shards", "input_manifests"}),
    }


def _version_rows(version: "RegisteredVersion | None") -> Iterator[Row]:
    if version is not None:
        tags = version.tags
        scores = {n.removeprefix("score."): v for n, v in tags.items() if n.startswith("score.")}
        yield "scores", _pairs(scores) + (f" on {tags['task']}" if "task" in tags else "")
        yield "decision", tags.get("decision", "none")
        yield "MLflow run", version.mlflow_run_id


def _stage_rows(result: Result, all_files: bool) -> Iterator[Row]:
    manifest, provenance = result.manifest, result.manifest.provenance
    yield "manifest", result.uri
    if manifest.shards:
        num_bytes = sum(shard.num_bytes for shard in manifest.shards)
        kinds = Counter(shard.kind for shard in manifest.shards)
        files = ", ".join(f"{n:,} {kind}" for kind, n in sorted(kinds.items()))
        yield "content", f"{manifest.content[:_DIGITS]}, {num_bytes:,} bytes: {files}"
    yield "made of", ", ".join(sorted(result.inputs)) or "source files"
    yield "recipe", _recipe(provenance)
    yield "code", f"{manifest.code}, {provenance or UNKNOWN_COMMIT}"
    yield "libraries", _pairs(manifest.libraries) or "none that count"
    for machine in manifest.result.get("machines") or ([provenance.machine] if provenance else []):
        yield "machine", _pairs(machine)
    for account in manifest.accounts:
        yield "account", str(account)
    if "scores" in manifest.result:
        yield "scores", _pairs(manifest.result["scores"])
    if "mlflow_run_id" in manifest.result:
        yield "MLflow run", str(manifest.result["mlflow_run_id"])
    if manifest.stage == CORPUS:
        yield from _file_rows(source_files(result), all_files)


def _file_rows(files: list[SourceFile] | None, all_files: bool) -> Iterator[Row]:
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


def _recipe(provenance: Provenance | None) -> str:
    if provenance is None or provenance.call is None:
        return "not recorded; --json has what the manifest says of the settings"
    changed = _changed_settings(provenance)
    return _pairs({n: json.dumps(v) for n, v in changed.items()}) or "the defaults"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} ({_pairs(value)})" if isinstance(value, Mapping) else f"{name} {value}"
        for name, value in values.items()
    )


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


RunStage = Callable[[list[str], Mapping[str, str]], str]
"""Command line, environment variables -> URI of the manifest."""
_OWN_REGISTRY = {"MLFLOW_TRACKING_URI": ""}
"""So that the runs of a rebuild are logged in its own work folder."""
_DIGITS_SHOWN = 12
_MAX_FILES = 5


@dataclass(frozen=True)
class Rebuilt:
    """How one stage compares."""

    stage: str
    place: str
    """The place of the original result."""
    manifest: str
    """The URI of the new manifest."""
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
        changed = (
            _source_changes(result, call, anyway) if result.manifest.stage == graph.CORPUS else []
        )
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
    stages: dict[str, Rebuilt] = {}
    for place, result in found.lineage.results.items():
        new_places = {then: graph.place_in(stage.manifest) for then, stage in stages.items()}
        manifest = run_stage(*_command(result, into, new_places))
        different = {then for then, stage in stages.items() if not stage.is_equal}
        stages[place] = _compared(result, manifest, different, notes[place])
    made = list(stages.values())
    model = found.version.tags.get("model_digest", "") if found.version else ""
    return Rebuild(found.title, into, made, model, not model or model in _model_digests(made))


def rebuild_text(done: Rebuild) -> str:
    """Return the comparison for a person."""
    compared = [(each.stage, each.content, each.is_equal) for each in done.stages]
    if done.model:
        compared.append(("the model", done.model, done.is_model_equal))
    rows = [
        (name, f"{digest[:_DIGITS_SHOWN]}  {'equal' if is_equal else 'DIFFERS'}")
        for name, digest, is_equal in compared
    ]
    end = "No rebuilt folder holds the registered model."
    if done.is_equal:
        end = "Equal in every stage, bit for bit."
    elif first := next((each for each in done.stages if not each.is_equal), None):
        files = ", ".join(first.files[:_MAX_FILES]) + ", ..." * (len(first.files) > _MAX_FILES)
        causes = "".join(f"\n  {cause}" for cause in first.causes)
        end = f"The first stage that differs is {first.stage}, in {files}. Likely because{causes}"
    return Report(f"{done.title}, rebuilt in {done.into}", {"Stages": rows}, note=end).text()


def folder_name(found: ModelLineage) -> str:
    """Return the name of the folder to rebuild in."""
    if found.version is None:
        return graph.place_in(found.title).replace("/", "-") or "model"
    return f"{found.version.name}-{found.version.version}"


def _command(
    result: graph.Result, into: str, new_places: Mapping[str, str]
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
    if result.manifest.stage == graph.PRETRAINING:
        argv = distributed_argv(argv, int(machine.ranks))
    return argv, {
        **_OWN_REGISTRY,
        "OMP_NUM_THREADS": str(machine.threads),
        "ATEN_CPU_CAPABILITY": machine.vectors.lower(),
    }


def _machines(made: Manifest) -> list[results.Machine]:
    kind = graph.MODEL_RESULTS.get(made.stage)
    return made.result_as(kind).machines if kind else []


def _moved(address: str, into: str, new_places: Mapping[str, str]) -> str:
    """Return the rebuilt counterpart of an address, or of each in a JSON list."""
    if address.startswith("["):
        return json.dumps([_moved(each, into, new_places) for each in json.loads(address)])
    place = graph.place_in(address)
    if place not in new_places:
        return address
    return storage.join(into, new_places[place]) + address.partition(place)[2]


def _compared(
    result: graph.Result, manifest: str, different: set[str], notes: Sequence[str]
) -> Rebuilt:
    then, now = result.manifest, read_manifest(manifest)
    old, new = ({shard.path: shard.sha256 for shard in made.shards} for made in (then, now))
    files = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    is_equal = now.content == then.content
    causes = [] if is_equal else [*_causes(result, now, different), *notes]
    return Rebuilt(now.stage, result.place, manifest, then.content, is_equal, files, causes)


def _causes(result: graph.Result, now: Manifest, different: set[str]) -> Iterator[str]:
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
        yield f"it was made on {len(old)} machines in turn: {_shown(old)}"
    elif old != new:
        yield f"it was made on {_shown(old)} and is on {_shown(new)}"


def _shown(machines: Sequence[results.Machine]) -> str:
    return json.dumps([machine.model_dump() for machine in machines])


def _code_changes(then: Manifest, call: provenance.Call) -> Iterator[str]:
    if provenance.code_digest(call.module) != then.code:
        before = then.provenance or provenance.UNKNOWN_COMMIT
        now = provenance.code_commit()[0][:_DIGITS_SHOWN] or "unknown"
        yield f"the code differs from then: {before}, and now {now}"
    if (number := len(then.result.get("versions", []))) > 1:
        yield f"{number} versions of the code trained it in turn"
    versions = provenance.library_versions(*then.libraries)
    for name, version in then.libraries.items():
        if versions[name] != version:
            yield f"the library {name} was {version} and is {versions[name]}"


def _source_changes(corpus: graph.Result, call: provenance.Call, anyway: bool) -> list[str]:
    """Return what differs in the source files, as one text; nothing if nothing does."""
    then = source_files(corpus)
    if then is None:
        return ["its list of source files is gone, so they can't be checked first"]
    now = list_source(SourceSettings.read(call.recipe["source"], corpus.uri)).files
    changes = describe_changes(*([replace(file, modified="") for file in f] for f in (then, now)))
    if changes and not anyway:
        raise errors.SourceError(
            f"{corpus.place}: source files: {changes}. The model can't come out equal. Put the "
            "files back as they were, or give --anyway to see what differs."
        )
    return [f"source files: {changes}"] if changes else []


def _call_of(result: graph.Result) -> provenance.Call:
    made_by = result.manifest.provenance
    if made_by is None or made_by.call is None:
        raise errors.IntegrityError(
            f"{result.uri} does not say how the stage was called: it was made by an earlier "
            "version of this project, or as a function. It can't be repeated."
        )
    return made_by.call


def _model_digests(stages: Sequence[Rebuilt]) -> set[str]:
    """Return the digests of the rebuilt models."""
    from albert_core.conversion.model_files import model_digest

    manifests = [s.manifest for s in stages if s.stage in (graph.PRETRAINING, graph.FINETUNING)]
    return {model_digest(graph.model_folder_of(uri)) for uri in manifests}
