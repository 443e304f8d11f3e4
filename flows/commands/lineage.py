"""What a model was made of: ``albert lineage models:/albert-tiny@champion``.

Of a registered version the registry alone is asked, so that it works where the work folder is not
mounted. A manifest, the folder of a stage's result, of a model or of a checkpoint will do as well.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError
from albert_core.stage.lineage import CORPUS, SOURCE_FILES, Lineage, Result, read_lineage
from albert_core.stage.manifest import BEGUN, MANIFEST
from albert_core.stage.provenance import Provenance
from flows.recipe import Recipe
from pipelines.source_files import SourceFile, parse_files

if TYPE_CHECKING:
    from albert_core.registry.version_lineage import RegisteredVersion

_MAX_FILES = 10
_DIGITS = 12


@dataclass(frozen=True)
class ModelLineage:
    """A model and all that it was made of."""

    title: str
    lineage: Lineage
    files: dict[str, list[SourceFile]]
    """Place of a corpus -> its source files, where the list is there."""
    version: "RegisteredVersion | None" = None


def read_model_lineage(model: str, work: str) -> ModelLineage:
    """Return what ``model`` was made of.

    Args:
        model: ``models:/name@alias``, ``models:/name/3``, or a manifest or a folder.
        work: folder for all results, where the registry is if the environment names no server.

    Raises:
        IntegrityError: nothing here says what the folder was made of.
        RegistryError: there is no such version.
    """
    if not model.startswith("models:/"):
        return _of_folder(storage.absolute(model))
    from albert_core.registry.version_lineage import read_version

    found = read_version(model, work)
    files = {place: parse_files(content) for place, content in found.source_lists.items()}
    for corpus in found.lineage.of_stage(CORPUS):
        if corpus.place not in files:
            files |= _files_beside(corpus)
    return ModelLineage(str(found.version), found.lineage, files, found.version)


def as_json(found: ModelLineage) -> dict[str, Any]:
    """Return all of it, for a machine."""
    version = found.version
    return {
        "model": found.title,
        "version": None
        if version is None
        else {
            "uri": version.uri,
            "aliases": list(version.aliases),
            "mlflow_run_id": version.run_id,
            "tags": dict(version.tags),
        },
        "stages": [_stage_as_json(result) for result in found.lineage.results.values()],
        "source_files": {
            place: [
                {n: getattr(file, n) for n in ("name", "uri", "num_bytes", "sha256")}
                for file in files
            ]
            for place, files in found.files.items()
        },
    }


def as_text(found: ModelLineage, all_files: bool = False) -> str:
    """Return it for a person."""
    lines = [found.title, "=" * len(found.title), *_version_lines(found.version)]
    for result in found.lineage.results.values():
        lines += ["", result.place, *(f"  {line}" for line in _stage_lines(result))]
        if result.manifest.stage == CORPUS:
            lines += [f"  {line}" for line in _file_lines(result, found.files, all_files)]
    return "\n".join(lines)


def changed_settings(provenance: Provenance | None) -> dict[str, Any]:
    """Return the settings of a call that differ from the defaults, by their path."""
    if provenance is None or provenance.call is None:
        return {}
    return {
        f"{section}.{name}": value
        for section, values in provenance.call.recipe.items()
        for name, value in values.items()
        if value != _default(section).get(name)
    }


def _default(section: str) -> dict[str, Any]:
    field = Recipe.model_fields.get(section)
    return {} if field is None else field.default.model_dump(mode="json")


def _of_folder(uri: str) -> ModelLineage:
    manifest = next((m for m in _manifests_above(uri) if storage.exists(m)), None)
    if manifest is None:
        raise IntegrityError(
            f"there is no {MANIFEST} at {uri} or above it. Give models:/<name>@<alias>, or a "
            "folder below a work folder."
        )
    lineage = read_lineage(manifest)
    files = {p: f for corpus in lineage.of_stage(CORPUS) for p, f in _files_beside(corpus).items()}
    return ModelLineage(uri, lineage, files)


def _manifests_above(uri: str) -> Iterator[str]:
    """Yield where a manifest may be: ``uri`` itself, or in it, or in a folder above."""
    if uri.endswith((f"/{MANIFEST}", f"/{BEGUN}")):
        yield uri
    while "/" in uri.partition("://")[2] or uri.count("/") > 1:
        yield storage.join(uri, MANIFEST)
        yield storage.join(uri, BEGUN)
        uri = uri.rpartition("/")[0]


def _files_beside(corpus: Result) -> dict[str, list[SourceFile]]:
    uri = storage.join(corpus.folder, SOURCE_FILES)
    return {corpus.place: parse_files(storage.read_bytes(uri))} if storage.exists(uri) else {}


def _stage_as_json(result: Result) -> dict[str, Any]:
    manifest = result.manifest
    return {
        "place": result.place,
        "manifest": result.uri,
        "content": manifest.content,
        "num_files": len(manifest.shards),
        "num_bytes": sum(shard.num_bytes for shard in manifest.shards),
        "made_of": sorted(result.inputs),
        "inputs": manifest.inputs,
        "settings": manifest.settings,
        "differs_from_defaults": changed_settings(manifest.provenance),
        "code": manifest.code,
        "libraries": manifest.libraries,
        "provenance": manifest.provenance and manifest.provenance.model_dump(mode="json"),
        "accounts": [account.model_dump() for account in manifest.accounts],
        "facts": manifest.facts,
    }


def _version_lines(version: "RegisteredVersion | None") -> list[str]:
    if version is None:
        return []
    tags = version.tags
    scores = {n.removeprefix("score."): v for n, v in tags.items() if n.startswith("score.")}
    return [
        f"scores      {_pairs(scores)}" + (f" on {tags['task']}" if "task" in tags else ""),
        f"decision    {tags.get('decision', 'none')}",
        f"MLflow run  {version.run_id}",
    ]


def _stage_lines(result: Result) -> Iterator[str]:
    manifest, provenance = result.manifest, result.manifest.provenance
    num_bytes = sum(shard.num_bytes for shard in manifest.shards)
    kinds = Counter(shard.kind for shard in manifest.shards)
    yield f"manifest    {result.uri}"
    if manifest.shards:
        files = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        yield f"content     {manifest.content[:_DIGITS]}, {num_bytes:,} bytes: {files}"
    yield f"made of     {', '.join(sorted(result.inputs)) or 'source files'}"
    yield f"recipe      {_recipe(provenance)}"
    yield f"code        {manifest.code}{_commit(provenance)}"
    yield f"libraries   {_pairs(manifest.libraries) or 'none that count'}"
    machines = manifest.facts.get("machines")
    for machine in machines or ([provenance.machine] if provenance else []):
        yield f"machine     {_pairs(machine)}"
    for account in manifest.accounts:
        yield f"account     {account}"
    if "scores" in manifest.facts:
        yield f"scores      {_pairs(manifest.facts['scores'])}"
    if "mlflow_run_id" in manifest.facts:
        yield f"MLflow run  {manifest.facts['mlflow_run_id']}"


def _file_lines(
    corpus: Result, files: Mapping[str, Sequence[SourceFile]], all_files: bool
) -> Iterator[str]:
    if corpus.place not in files:
        yield "files       the list was not registered, and the corpus is not here"
        return
    found = files[corpus.place]
    num_bytes = sum(file.num_bytes for file in found)
    yield f"files       {len(found):,} source files, {num_bytes:,} bytes"
    shown = found if all_files else found[:_MAX_FILES]
    for file in shown:
        yield f"  {file.sha256[:_DIGITS]}  {file.num_bytes:>12,}  {file.name}"
    if len(found) > len(shown):
        yield f"  and {len(found) - len(shown):,} more: --files or --json lists them all"


def _recipe(provenance: Provenance | None) -> str:
    if provenance is None or provenance.call is None:
        return "not recorded; --json has what the manifest says of the settings"
    changed = changed_settings(provenance)
    return _pairs({n: json.dumps(v) for n, v in changed.items()}) or "the defaults"


def _commit(provenance: Provenance | None) -> str:
    if provenance is None or not provenance.commit:
        return ", commit not recorded"
    changes = " with local changes" if provenance.has_local_changes else ""
    return f", commit {provenance.commit[:_DIGITS]}{changes}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} ({_pairs(value)})" if isinstance(value, Mapping) else f"{name} {value}"
        for name, value in values.items()
    )
