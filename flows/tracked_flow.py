"""The MLflow run of a flow run; the runs of its stages are nested in it.

A stage that trains or scores tracks itself, and learns from its environment whose child it is. The
text stages know no MLflow: what they made is logged here, from their manifests. A stage that was
done before is not logged again; a tag points to its run.

Nothing here stops a flow: a server that is away gets it all later, see `albert_core.tracking.run`.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run as this_flow_run

from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError
from albert_core.stage.log import FLOW_RUN
from albert_core.stage.manifest import MANIFEST, Manifest, read_manifest

if TYPE_CHECKING:
    from albert_core.tracking.run import TrackedRun

FLOW_RUNS = "flow_runs"
"""Folder in the work folder, with a folder for each flow run."""
NOTE_TAG = "mlflow.note.content"
"""What MLflow shows at the head of a run's page."""

_FILES = (".html", ".json", ".md", ".model", ".png", ".txt", ".vocab")
"""Of a stage's own files, those that MLflow gets: reports, pictures, the vocabulary. Shards stay
where they are; the manifest has their digests."""
_MAX_NOTE_CHARACTERS = 5000
_STATUS = {"COMPLETED": "FINISHED", "FAILED": "FAILED"}

log = logging.getLogger("tracking")

_flows: dict[str, "TrackedFlow"] = {}
"""By the id of the flow run."""


class TrackedFlow:
    """The MLflow run of one flow run."""

    def __init__(
        self, work: str, recipe: str, tags: Mapping[str, str], params: Mapping[str, Any]
    ) -> None:
        from albert_core.tracking.run import TrackedRun

        self._work = work
        self._children: list[TrackedRun] = []
        self._times: Counter[str] = Counter()
        self._counting = Lock()
        folder = storage.join(work, FLOW_RUNS, str(this_flow_run.id))
        name = f"{this_flow_run.flow_name}: {this_flow_run.name}"
        self._run = TrackedRun(work, folder, name, tags)
        self._run.log_params(params)
        self._run.log_artifact(recipe)

    def environment(self) -> dict[str, str]:
        """Return what tells a stage's process whose child it is, if that is known yet."""
        from albert_core.tracking.run import PARENT_VARIABLE

        parent = self._run.known_run_id
        return {PARENT_VARIABLE: parent} if parent else {}

    def note_stage(self, uri: str, began: float) -> None:
        """Have the run of a stage nested here, and log one for it if it tracks nothing itself.

        Args:
            uri: of its manifest.
            began: when it was started, in seconds since 1970.
        """
        from albert_core.tracking.server import RUN_ID

        manifest, folder = read_manifest(uri), uri.rpartition("/")[0]
        tracks_itself = "mlflow_run_id" in manifest.facts
        if not tracks_itself and not storage.exists(storage.join(folder, RUN_ID)):
            self._children.append(self._logged(manifest, uri, began))
        else:
            self._run.adopt(manifest.stage, folder, manifest.facts.get("mlflow_run_id"))
        for name, value in headlines(manifest).items():
            with self._counting:
                number, self._times[name] = self._times[name], self._times[name] + 1
            self._run.log_metrics(number, {name: value})  # several seeds of a task
        self._run.log_tags({f"stage.{manifest.stage}": uri})

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
        from albert_core.tracking.run import PARENT_VARIABLE, TrackedRun
        from albert_core.tracking.server import PARENT_TAG

        folder = uri.rpartition("/")[0]
        parent = self.environment().get(PARENT_VARIABLE)
        tags = {PARENT_TAG: parent} if parent else {}
        run = TrackedRun(self._work, folder, f"{manifest.stage}-{manifest.key}", tags, began)
        run.log_params(manifest.settings)
        run.log_metrics(0, dict(numbers(manifest)))
        for name, digest in manifest.inputs.items():
            source = manifest.input_manifests.get(name, uri)
            run.log_dataset(name, digest, source, "input")
        run.log_dataset(manifest.stage, manifest.content, uri, "made here")
        for name in storage.list_names(folder):
            if name == MANIFEST or name.endswith(_FILES):
                run.log_artifact(storage.join(folder, name))
        if not parent:
            self._run.adopt(manifest.stage, folder)
        run.end("FINISHED")
        return run


def begin_tracking(work: str, recipe_name: str, recipe_uri: str) -> None:
    """Open the MLflow run of the present flow run, once; without MLflow do nothing.

    Args:
        work: folder for all results.
        recipe_name: of the recipe.
        recipe_uri: where it was saved, resolved.
    """
    flow_run_id = this_flow_run.id
    if flow_run_id is None or flow_run_id in _flows or find_spec("mlflow") is None:
        return
    page = this_flow_run.ui_url
    tags = {
        "flow": str(this_flow_run.flow_name),
        "mlflow.source.name": str(this_flow_run.flow_name),
        "prefect_flow_run": flow_run_id,
        "recipe": recipe_name,
        **({"prefect_page": page} if page else {}),
    }
    given = {name: value for name, value in this_flow_run.parameters.items() if value is not None}
    params = {**given, "recipe": recipe_name, "work": work}
    _flows[flow_run_id] = TrackedFlow(work, recipe_uri, tags, params)


def stage_environment() -> dict[str, str]:
    """Return the variables that a stage's process gets of the present flow run."""
    flow_run_id = str(this_flow_run.id or "")
    tracked = _flows.get(flow_run_id)
    return {FLOW_RUN: flow_run_id, **(tracked.environment() if tracked else {})}


def note_stage(uri: str, began: float) -> None:
    """Have a stage of the present flow run shown in MLflow; see `TrackedFlow.note_stage`."""
    tracked = _flows.get(str(this_flow_run.id))
    if tracked is None:
        return
    try:
        tracked.note_stage(uri, began)
    except (IntegrityError, OSError) as error:  # a command that leaves no manifest
        log.debug("%s is not shown in MLflow: %s", uri, error)


def note_report(markdown: str) -> None:
    """Show the report of the present flow run in MLflow."""
    if tracked := _flows.get(str(this_flow_run.id)):
        tracked.note_report(markdown)


def end_tracking(_: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """End the MLflow run of a flow run: a hook for all ends of a flow."""
    if tracked := _flows.pop(str(flow_run.id), None):
        tracked.end(_STATUS.get(state.type.value, "KILLED"))


def headlines(manifest: Manifest) -> dict[str, float]:
    """Return the few numbers of a stage that its flow run shows as well."""
    facts = manifest.facts
    found = {
        f"{manifest.stage}/{account.what} kept": float(account.kept)
        for account in manifest.accounts[:1]
    }
    for name, estimate in facts.get("after", {}).items():
        found[f"held_out/{name}"] = estimate["value"]
    if "score" in facts and "metric" in facts:
        found[f"{facts['task']}/{facts['metric']}"] = facts["score"]
    if facts.get("average") is not None:
        found["average"] = facts["average"]
    return {allowed_name(name): value for name, value in found.items()}


def numbers(manifest: Manifest) -> Iterator[tuple[str, float]]:
    """Yield the accounts of a manifest and its facts that are numbers, with MLflow's names."""
    for account in manifest.accounts:
        yield allowed_name(f"{account.what}/in"), float(account.total)
        yield allowed_name(f"{account.what}/kept"), float(account.kept)
        for reason, dropped in account.dropped.items():
            yield allowed_name(f"{account.what}/dropped/{reason}"), float(dropped)
    for name, value in manifest.facts.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield allowed_name(name), float(value)
    yield "shards", float(len(manifest.shards))
    yield "shard_megabytes", sum(shard.num_bytes for shard in manifest.shards) / 1e6


def allowed_name(name: str) -> str:
    """Return ``name`` with the characters alone that MLflow allows in a metric's name."""
    return re.sub(r"[^\w. :/-]", "", name)
