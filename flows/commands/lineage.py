"""What a model was made of: ``albert lineage models:/albert-tiny@champion``.

For a registered version only the registry is asked, so that it works where the work folder is not
mounted. A manifest, or the folder of a result, of a model or of a checkpoint works as well.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from albert_core.stage import storage
from albert_core.stage.lineage import CORPUS, SOURCE_FILES, Lineage, Result, read_lineage
from albert_core.stage.manifest import checked
from albert_core.stage.provenance import UNKNOWN_COMMIT, Provenance
from flows.recipe import Recipe
from flows.report import Report, Row
from pipelines.source_files import SourceFile, parse_files

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
