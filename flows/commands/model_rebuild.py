"""`albert rebuild`: make a model again from its source files, and compare every stage.

It calls every stage as it was called then, with the recipe of that call, in a work folder of its
own, and compares the digests of the results. It needs the registry and the unchanged source files.
Text stages give the same bytes on every engine and any number of workers. The bits of trained
weights depend on the order of sums: on the ranks, the threads of each, the processor's vector
width, the device and torch. Ranks, threads and vectors are set as they were; a difference in the
others is reported.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from albert_core.stage import command, errors, manifest, provenance, results, storage
from albert_core.stage.lineage import Result, place_in
from albert_core.text.tokenizer import SPIECE_MODEL
from flows.commands.model_lineage import SHOWN_DIGITS, ModelLineage, files_of_corpus
from flows.report import Report
from flows.stage_process import distributed_argv
from pipelines import source_files
from pipelines.config import SourceSettings

RunStage = Callable[[list[str], Mapping[str, str]], str]
"""Command line, environment variables -> URI of the manifest."""
_OWN_REGISTRY = {"MLFLOW_TRACKING_URI": ""}
"""A rebuild logs its runs in its own work folder."""
_MAX_DIFFERENT_FILES = 5
"""Different files that a text shows."""


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
        new_places = {then: place_in(stage.manifest) for then, stage in stages.items()}
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
        (name, f"{digest[:SHOWN_DIGITS]}  {'equal' if is_equal else 'DIFFERS'}")
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
        return place_in(found.title).replace("/", "-") or "model"
    return f"{found.version.name}-{found.version.version}"


def _command(
    result: Result, into: str, new_places: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that make ``result`` again."""
    call = _call_of(result)
    sections = call.rest | call.recipe
    if results.KEPT_VOCAB in result.manifest.settings:
        # The text that it was trained on may be gone.
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
    place = place_in(address)
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
        now = provenance.code_commit()[0][:SHOWN_DIGITS] or "unknown"
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
