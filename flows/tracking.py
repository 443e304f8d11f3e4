"""The run of MLflow that each flow run has, in which those of its stages are nested.

A stage that trains or scores tracks itself; its environment tells it which run is its parent. The
text stages do not know MLflow: what they made is logged here, from their manifests. A stage that
was done before is not logged again; a tag points to its run. Tracking never stops a flow: an
unavailable server gets everything later, see `albert_core.tracking.journal`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from glob import has_magic
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

from prefect.runtime import flow_run as this_flow_run
from pydantic import BaseModel

from albert_core.stage import errors, storage
from albert_core.stage.log import FLOW_RUN
from albert_core.stage.manifest import MANIFEST, Manifest, read_manifest
from flows.recipe import Recipe

if TYPE_CHECKING:
    from albert_core.tracking.run import TrackedRun

FLOW_RUNS = "flow_runs"
"""Folder in the work folder, with a folder for each flow run."""
NOTE_TAG = "mlflow.note.content"
"""The tag that MLflow shows at the head of a run's page."""
_FILES = (".html", ".json", ".md", ".model", ".png", ".txt", ".vocab")
"""Endings of the files of a stage that are copied to MLflow: reports, pictures, the vocabulary.
Shards stay where they are; the manifest has their digests."""
_MAX_NOTE_CHARACTERS = 5000
_STATUS = {"COMPLETED": "FINISHED", "FAILED": "FAILED"}


class TrackedFlow:
    """The MLflow run of the present flow run.

    Args:
        work: folder for all results.
        recipe: the resolved recipe.
        recipe_uri: where it was saved.
    """

    def __init__(self, work: str, recipe: Recipe, recipe_uri: str) -> None:
        from albert_core.tracking.run import TrackedRun

        self._work = work
        self._children: list[TrackedRun] = []
        self._times = defaultdict[str, Iterator[int]](count)
        flow, page = str(this_flow_run.flow_name), str(this_flow_run.ui_url)
        parameters = this_flow_run.parameters
        self._about = about(recipe, parameters.get("model"))
        tags = {
            **self._about,
            "flow": flow,
            "mlflow.source.name": flow,
            "prefect_flow_run": str(this_flow_run.id),
            **({"prefect_page": page} if page.startswith("http") else {}),
        }
        folder = storage.join(work, FLOW_RUNS, str(this_flow_run.id))
        self._run = TrackedRun(work, folder, flow, tags)
        self._run.log_params({**given(parameters), "recipe": recipe.name, "work": work})
        self._run.log_artifact(recipe_uri)

    @property
    def refusal(self) -> errors.ConfigError | None:
        """Why MLflow takes none of the flow's runs, if it said so at their start."""
        return self._run.refusal

    def environment(self) -> dict[str, str]:
        """Return the variables for a stage's run: its tags, and its parent if it is known yet."""
        from albert_core.tracking.run import PARENT_VARIABLE, TAGS_VARIABLE

        parent = self._run.known_run_id or ""
        return {TAGS_VARIABLE: json.dumps(self._about), PARENT_VARIABLE: parent}

    def note_stage(self, uri: str, began: float) -> None:
        """Nest the MLflow run of a stage in this one; log it here if it does not track itself.

        Args:
            uri: URI of its manifest.
            began: when it was started, in seconds since 1970.
        """
        from albert_core.tracking.server import RUN_ID

        try:
            manifest, folder = read_manifest(uri), uri.rpartition("/")[0]
        except (errors.IntegrityError, OSError):  # a command that leaves no manifest
            return
        tracks_itself = "mlflow_run_id" in manifest.result
        if tracks_itself or storage.exists(storage.join(folder, RUN_ID)):
            self._run.adopt(manifest.stage, folder, manifest.result.get("mlflow_run_id"))
        else:
            self._children.append(self._logged(manifest, uri, began))
        for name, value in _headlines(manifest).items():
            number = next(self._times[name])  # a task has several seeds
            self._run.log_metrics(number, {name: value})
        self._run.log_tags({f"stage.{manifest.stage}": uri})

    def note_receipt(self, uri: str) -> None:
        """Keep the receipt of a removal with the run."""
        self._run.log_artifact(uri, "receipts")
        self._run.log_tags({"removal_receipt": uri})

    def note_report(self, markdown: str) -> None:
        """Show the flow's report at the head of the run's page."""
        self._run.log_tags({NOTE_TAG: markdown[:_MAX_NOTE_CHARACTERS]})

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED; wait for a limited time until all is sent."""
        self._run.end(status)
        for run in [*self._children, self._run]:
            run.finish(status)

    def _logged(self, manifest: Manifest, uri: str, began: float) -> "TrackedRun":
        """Log a text stage's run; return it ended, with its last entries on their way."""
        from albert_core.tracking.run import TrackedRun
        from albert_core.tracking.server import PARENT_TAG

        folder = uri.rpartition("/")[0]
        parent = self._run.known_run_id
        tags = {**self._about, **({PARENT_TAG: parent} if parent else {})}
        run = TrackedRun(self._work, folder, manifest.stage, tags, began)
        run.log_params(manifest.settings)
        run.log_metrics(0, dict(_numbers(manifest)))
        for name, digest in manifest.inputs.items():
            run.log_dataset(name, digest, manifest.input_manifests.get(name, uri), "input")
        run.log_dataset(manifest.stage, manifest.content, uri, "made here")
        for name in storage.list_names(folder):
            if name == MANIFEST or name.endswith(_FILES):
                run.log_artifact(storage.join(folder, name))
        if not parent:
            self._run.adopt(manifest.stage, folder)
        run.end("FINISHED")
        return run


_tracked: dict[str, TrackedFlow] = {}
"""Flow run's id -> its tracking."""


def tracked_flow() -> TrackedFlow | None:
    """Return what tracks the present flow run; None without MLflow, or outside of a flow run."""
    return _tracked.get(str(this_flow_run.id))


def begin_tracking(work: str, recipe: Recipe, recipe_uri: str) -> None:
    """Begin to track the present flow run: once, and not without MLflow."""
    flow_run_id = str(this_flow_run.id)
    if flow_run_id not in _tracked and find_spec("mlflow"):
        _tracked[flow_run_id] = TrackedFlow(work, recipe, recipe_uri)


def end_tracking(flow_run_id: str, state: str) -> None:
    """End the MLflow run of a flow run, which ended in this state of Prefect."""
    if tracked := _tracked.pop(flow_run_id, None):
        tracked.end(_STATUS.get(state, "KILLED"))


def note_stage(manifest: str, began: float) -> None:
    """Do what `TrackedFlow.note_stage` does, if the present flow run is tracked."""
    if tracked := tracked_flow():
        tracked.note_stage(manifest, began)


def stage_environment() -> dict[str, str]:
    """Return the variables that tell a stage's process about the present flow run."""
    tracked = tracked_flow()
    known = tracked.environment() if tracked else {}
    return {FLOW_RUN: str(this_flow_run.id or ""), **known}


def about(recipe: Recipe, model: str | None) -> dict[str, str]:
    """Return what a flow run is about, as tags that name its MLflow runs.

    Args:
        recipe: the resolved recipe.
        model: the model that the run evaluates, if it does; its text is not known here.
    """
    if model:
        return {"recipe": recipe.name, "model": model.removeprefix("models:/")}
    tags = {"recipe": recipe.name, "model": recipe.registry.model_name}
    uris = [recipe.source.uri] if isinstance(recipe.source.uri, str) else recipe.source.uri
    if not any(uris):
        return tags
    parts = [part for part in uris[0].rstrip("/").split("/") if part and not has_magic(part)]
    others = f" and {len(uris) - 1} more" if uris[1:] else ""
    return {**tags, "text": (parts or uris)[-1] + others}


def given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a flow run that are not empty, with the filled fields of a form."""
    read = {
        name: each.model_dump(exclude_none=True) if isinstance(each, BaseModel) else each
        for name, each in parameters.items()
    }
    return {name: each for name, each in read.items() if each not in (None, [], {})}


def _headlines(manifest: Manifest) -> dict[str, float]:
    """Return the few metrics of a stage that its flow run shows as well."""
    result, stage = manifest.result, manifest.stage
    found = {f"{stage}/{each.what} kept": float(each.kept) for each in manifest.accounts[:1]}
    for name, estimate in result.get("after", {}).items():
        found[f"held_out/{name}"] = estimate["value"]
    if metric := result.get("metric"):
        found[f"{result['task']}/{metric}"] = result["scores"][metric]["value"]
    if result.get("average") is not None:
        found["average"] = result["average"]
    return {_allowed(name): value for name, value in found.items()}


def _numbers(manifest: Manifest) -> Iterator[tuple[str, float]]:
    """Yield the accounts and the numbers of a stage's result, with names that MLflow allows."""
    for account in manifest.accounts:
        counts = {"in": account.total, "kept": account.kept}
        counts |= {f"dropped/{reason}": number for reason, number in account.dropped.items()}
        for name, number in counts.items():
            yield _allowed(f"{account.what}/{name}"), float(number)
    for name, value in manifest.result.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _allowed(name), float(value)
    yield "shards", float(len(manifest.shards))
    yield "shard_megabytes", sum(shard.num_bytes for shard in manifest.shards) / 1e6


def _allowed(name: str) -> str:
    """Return ``name`` without the characters that MLflow refuses in a metric's name."""
    return re.sub(r"[^\w. :/-]", "", name)
