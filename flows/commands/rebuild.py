"""Make a registered model again: ``albert rebuild models:/albert-tiny@champion``.

Every stage is called as it was called then, with the recipe of that call, in a work folder of its
own, and what it makes is compared with what was made then, by digest. The registry alone says what
to do; the source files must still be what they were.

Text stages give the same bytes on every engine and number of workers. The bits of trained weights
depend on the order of sums: on the ranks, the threads of each, the width of the processor's
vectors, the device and torch. Ranks, threads and vectors are set as they were; the rest is told.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from albert_core.stage import storage
from albert_core.stage.code_version import code_digest, library_versions
from albert_core.stage.command import stage_argv
from albert_core.stage.errors import IntegrityError, SourceError
from albert_core.stage.lineage import CORPUS, FINETUNING, PRETRAINING, Result, place_in
from albert_core.stage.manifest import Manifest, read_manifest
from albert_core.stage.provenance import Call, Provenance, code_commit
from flows.commands.lineage import ModelLineage
from flows.stage_process import distributed_argv
from pipelines.config import SourceSettings
from pipelines.source_files import describe_changes, list_source

RunStage = Callable[[list[str], Mapping[str, str]], str]
"""Command line, variables of the environment -> the manifest's URI."""
_OWN_REGISTRY = {"MLFLOW_TRACKING_URI": ""}
"""So that the runs of a rebuild are logged in its own work folder."""
_DIGITS = 12
_MAX_FILES = 5


@dataclass(frozen=True)
class Rebuilt:
    """What became of one stage."""

    stage: str
    place: str
    """Of what was made then."""
    manifest: str
    """URI of what was made now."""
    content: str
    is_equal: bool
    files: list[str] = field(default_factory=list)
    """Those that differ."""
    causes: list[str] = field(default_factory=list)
    """What else differs, so that the files may."""


@dataclass(frozen=True)
class Rebuild:
    """A model that was made again."""

    title: str
    into: str
    stages: list[Rebuilt]
    model: str
    """Digest of the registered model; empty: a folder was given, not a version."""
    is_model_equal: bool

    @property
    def is_equal(self) -> bool:
        """Whether everything is, bit for bit."""
        return self.is_model_equal and all(stage.is_equal for stage in self.stages)


def check(found: ModelLineage, anyway: bool = False) -> list[str]:
    """Return what is known to be different now, before anything is made.

    Args:
        found: what is to be rebuilt.
        anyway: whether to tell of changed source files instead of raising an error.

    Raises:
        IntegrityError: a stage's call was not recorded.
        SourceError: the source files are not those of then.
    """
    notes = []
    for result in found.lineage.results.values():
        call = _call_of(result)
        if result.manifest.stage == CORPUS:
            notes += _source_notes(result, call, found, anyway)
        notes += [f"{result.place}: {note}" for note in _notes_before(result.manifest, call)]
    return notes


def rebuild(found: ModelLineage, into: str, run_stage: RunStage) -> Rebuild:
    """Make everything again; return how it compares.

    Args:
        found: what was made then.
        into: folder for all results; a rebuild that was killed goes on there.
        run_stage: runs a stage's command line.

    Raises:
        AlbertError: a stage failed.
    """
    stages: list[Rebuilt] = []
    new_places: dict[str, str] = {}
    for result in found.lineage.results.values():
        argv, environment = _command(result, into, new_places)
        manifest = run_stage(argv, environment)
        new_places[result.place] = place_in(manifest)
        different = {stage.place for stage in stages if not stage.is_equal}
        stages.append(_compared(result, manifest, different))
    model = found.version.tags.get("model_digest", "") if found.version else ""
    return Rebuild(found.title, into, stages, model, not model or model in _model_digests(stages))


def as_json(done: Rebuild) -> dict[str, Any]:
    """Return the comparison for a machine."""
    return {"is_equal": done.is_equal, **asdict(done)}


def as_text(done: Rebuild) -> str:
    """Return the comparison for a person."""
    title = f"{done.title}, rebuilt in {done.into}"
    lines = [title, "=" * len(title)]
    for each in done.stages:
        verdict = "equal" if each.is_equal else "DIFFERS"
        lines.append(f"  {each.stage:<12} {each.content[:_DIGITS]}  {verdict}")
    if done.model:
        verdict = "equal" if done.is_model_equal else "DIFFERS"
        lines.append(f"  {'the model':<12} {done.model[:_DIGITS]}  {verdict}")
    if done.is_equal:
        return "\n".join([*lines, "", "Equal in every stage, bit for bit."])
    first = next((each for each in done.stages if not each.is_equal), None)
    if first is None:
        return "\n".join([*lines, "", "No rebuilt folder holds the registered model."])
    shown = ", ".join(first.files[:_MAX_FILES]) + (", ..." if len(first.files) > _MAX_FILES else "")
    lines += ["", f"The first stage that differs is {first.stage}, in {shown}. Likely because"]
    return "\n".join([*lines, *(f"  {cause}" for cause in first.causes)])


def _command(
    result: Result, into: str, new_places: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that make ``result`` again."""
    call = _call_of(result)
    recipe = storage.join(into, "recipes", f"{result.place.replace('/', '-')}.json")
    storage.write_bytes(recipe, json.dumps(call.recipe, indent=1).encode())
    options = {name: _moved(value, into, new_places) for name, value in call.options.items()}
    argv = stage_argv(call.module, recipe, **options, work=into)
    machines = result.manifest.facts.get("machines", [])
    if len(machines) != 1:
        return argv, _OWN_REGISTRY
    [machine] = machines
    if result.manifest.stage == PRETRAINING:
        argv = distributed_argv(argv, int(machine["ranks"]))
    return argv, {
        **_OWN_REGISTRY,
        "OMP_NUM_THREADS": str(machine["threads"]),
        "ATEN_CPU_CAPABILITY": str(machine["vectors"]).lower(),
    }


def _moved(address: str, into: str, new_places: Mapping[str, str]) -> str:
    """Return what stands now for an address in a result of then; or a JSON list of such."""
    if address.startswith("["):
        return json.dumps([_moved(each, into, new_places) for each in json.loads(address)])
    place = place_in(address)
    if place not in new_places:
        return address
    return storage.join(into, new_places[place]) + address.partition(place)[2]


def _compared(then: Result, manifest: str, different: set[str]) -> Rebuilt:
    now = read_manifest(manifest)
    is_equal = now.content == then.manifest.content
    return Rebuilt(
        stage=now.stage,
        place=then.place,
        manifest=manifest,
        content=then.manifest.content,
        is_equal=is_equal,
        files=[] if is_equal else _different_files(then.manifest, now),
        causes=[] if is_equal else list(_causes(then, now, different)),
    )


def _different_files(then: Manifest, now: Manifest) -> list[str]:
    old, new = ({shard.path: shard.sha256 for shard in m.shards} for m in (then, now))
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


def _causes(then: Result, now: Manifest, different: set[str]) -> Iterator[str]:
    old = then.manifest
    if upstream := sorted(then.inputs & different):
        yield f"it is made of {', '.join(upstream)}, which differs already"
    else:
        names = (name for name in old.inputs if old.inputs[name] != now.inputs.get(name))
        yield from (f"its input {name} has changed" for name in names)
    if old.settings != now.settings:
        yield "its settings mean something else now: the code has other defaults"
    if old.code != now.code:
        yield f"the code differs: {_commit(old.provenance)} then, {_commit(now.provenance)} now"
    yield from _library_changes(old, now.libraries)
    yield from _machine_changes(old, now)


def _library_changes(old: Manifest, now: Mapping[str, str]) -> Iterator[str]:
    for name, version in old.libraries.items():
        if now.get(name) != version:
            yield f"the library {name} was {version} and is {now.get(name, 'absent')}"


def _machine_changes(old: Manifest, now: Manifest) -> Iterator[str]:
    machines = old.facts.get("machines")
    if machines is None:
        return
    if len(machines) > 1:
        yield f"it was made on {len(machines)} machines in turn: {json.dumps(machines)}"
    elif machines != now.facts["machines"]:
        yield f"it was made on {json.dumps(machines)} and is on {json.dumps(now.facts['machines'])}"


def _notes_before(manifest: Manifest, call: Call) -> Iterator[str]:
    """Yield what of the code and the libraries is not as it was."""
    if code_digest(call.module) != manifest.code:
        yield (
            f"the code differs from then: {_commit(manifest.provenance)}, and now "
            f"{code_commit()[0][:_DIGITS] or 'unknown'}"
        )
    names = manifest.libraries.keys() - {"python"}  # which comes without being asked for
    yield from _library_changes(manifest, library_versions(*names))


def _source_notes(corpus: Result, call: Call, found: ModelLineage, anyway: bool) -> list[str]:
    if corpus.place not in found.files:
        return [f"{corpus.place}: its list of source files is gone, so they can't be checked first"]
    settings = SourceSettings.read(call.recipe["source"], corpus.uri)
    then, now = found.files[corpus.place], list_source(settings)
    changes = describe_changes(*([replace(file, modified="") for file in f] for f in (then, now)))
    if not changes:
        return []
    message = f"{corpus.place}: source files: {changes}"
    if not anyway:
        raise SourceError(
            f"{message}. The model can't come out equal. Put the files back as they were, or give "
            "--anyway to see what differs."
        )
    return [message]


def _call_of(result: Result) -> Call:
    provenance = result.manifest.provenance
    if provenance is None or provenance.call is None:
        raise IntegrityError(
            f"{result.uri} does not say how the stage was called: it was made by an earlier "
            "version of this project, or as a function. It can't be repeated."
        )
    return provenance.call


def _model_digests(stages: Sequence[Rebuilt]) -> set[str]:
    """Return the digests of the models among what was rebuilt."""
    from albert_core.conversion.model_files import model_digest

    manifests = [s.manifest for s in stages if s.stage in (PRETRAINING, FINETUNING)]
    return {
        model_digest(storage.join(uri.rpartition("/")[0], read_manifest(uri).facts["model_folder"]))
        for uri in manifests
    }


def _commit(provenance: Provenance | None) -> str:
    if provenance is None or not provenance.commit:
        return "an unknown commit"
    changes = " with local changes" if provenance.has_local_changes else ""
    return f"commit {provenance.commit[:_DIGITS]}{changes}"


def folder_name(found: ModelLineage) -> str:
    """Return what to call the folder that it is rebuilt in."""
    if found.version is None:
        return place_in(found.title).replace("/", "-") or "model"
    return f"{found.version.name}-{found.version.version}"
