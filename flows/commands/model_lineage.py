"""`albert lineage`: from a model back to its source files.

For a registered version it asks only the registry, so it works where the work folder is not
mounted.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from albert_core.stage import manifest, results, storage
from albert_core.stage.lineage import Lineage, Result, read_lineage
from flows.recipe import Recipe
from flows.report import Report, Row
from pipelines import source_files

if TYPE_CHECKING:
    from albert_core.registry.versions import RegisteredVersion

SHOWN_DIGITS = 12
"""Digits of a digest that a text shows."""
_MAX_SOURCE_FILES = 10
"""Source files that a text shows."""


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
    from albert_core.registry.version_files import read_version

    version, lineage = read_version(model, work)
    return ModelLineage(str(version), lineage, version)


def files_of_corpus(corpus: Result) -> list[source_files.SourceFile] | None:
    """Return a corpus's source files; None if the list is neither registered nor here."""
    content = corpus.read_source_list()
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
        of_task = f" on {tags['task']}" if "task" in tags else ""
        groups["Version"] = [
            ("scores", (_pairs(scores) or "none") + of_task),
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
        yield "content", f"{made.content[:SHOWN_DIGITS]}, {num_bytes:,} bytes: {files}"
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
        yield "scores", _pairs(made.result["scores"]) or "none"
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
        yield "", f"{file.sha256[:SHOWN_DIGITS]}  {file.num_bytes:>12,}  {file.name}"
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
