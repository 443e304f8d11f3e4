"""What Prefect's page of a stage shows: how far it is, and in the end its numbers and links."""

import logging
import re
import threading
from collections.abc import Mapping
from contextvars import copy_context
from types import TracebackType
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError
from albert_core.stage.log import StageProgress
from albert_core.stage.manifest import Manifest, read_manifest

_SECONDS_BETWEEN = 5.0
_CLOSING_SECONDS = 5.0
_WHOLE = 100.0

log = logging.getLogger(__name__)


class ProgressPage:
    """The progress of a stage on Prefect's page, from a thread of its own.

    A server that is slow or away holds nothing up: what it misses is told with the next report.

    Args:
        stage: the name of its module, without the package.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._latest: StageProgress | None = None
        self._artifact: UUID | None = None
        self._over = threading.Event()
        # In this thread's context: there Prefect finds the run whose artifact it is.
        run = copy_context().run
        self._thread = threading.Thread(target=run, args=(self._tell,), daemon=True)

    def report(self, progress: StageProgress) -> None:
        """Take note of the latest."""
        self._latest = progress

    def __enter__(self) -> "ProgressPage":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(_CLOSING_SECONDS)

    def _tell(self) -> None:
        told: StageProgress | None = None
        is_over = False
        while not is_over:
            is_over = self._over.wait(_SECONDS_BETWEEN)
            latest = self._latest
            if latest is None or latest == told:
                continue
            try:
                self._show(latest)
                told = latest
            except Exception as error:  # noqa: BLE001  a page is no reason to end a stage
                log.debug("%s: the progress was not told (%s)", self._stage, error)

    def _show(self, progress: StageProgress) -> None:
        share = _WHOLE * progress.share
        if self._artifact is None:
            description = f"{self._stage}: {progress.total:,.0f} {progress.unit} in all"
            key = f"{artifact_key(self._stage)}-progress"
            found: Any = create_progress_artifact(share, key=key, description=description)
            self._artifact = found
        else:
            update_progress_artifact(self._artifact, share)


def save_stage_page(manifest: str, tracking: str) -> None:
    """Save what a stage made as an artifact of the run; one that can't be saved is no failure.

    Args:
        manifest: URI of its manifest; of a command with another result there is no page.
        tracking: MLflow's tracking URI, for links.
    """
    try:
        made = read_manifest(manifest)
    except IntegrityError:
        return
    try:
        create_markdown_artifact(
            stage_page(made, manifest, tracking),
            key=artifact_key(made.stage),
            description=f"{made.stage} {made.key}",
        )
    except Exception as error:  # noqa: BLE001  the result is there, and counts
        log.warning("%s: its page could not be saved: %s", made.stage, error)


def stage_page(made: Manifest, uri: str, tracking: str) -> str:
    """Return the numbers and links of a manifest, as Markdown."""
    files: dict[str, list[int]] = {}
    for shard in made.shards:
        files.setdefault(shard.kind, []).append(shard.num_bytes)
    tables = {
        "Accounts": [(account.what, _after_colon(str(account))) for account in made.accounts],
        "Numbers": list(_numbers(made.facts)),
        "Files": [
            (kind, f"{len(sizes):,} files, {sum(sizes) / 1e6:,.2f} MB")
            for kind, sizes in sorted(files.items())
        ],
        "Made of": [
            (name, f"`{made.input_manifests.get(name, digest[:12])}`")
            for name, digest in sorted(made.inputs.items())
        ],
    }
    lines = [f"# {made.stage}", "", f"Key `{made.key}`, content `{made.content[:16]}`."]
    for title, rows in tables.items():
        if rows:
            lines += ["", f"## {title}", "", "| | |", "| --- | --- |"]
            lines += [f"| {name} | {_in_cell(value)} |" for name, value in rows]
    return "\n".join([*lines, "", "## Links", "", *_links(made, uri, tracking)]) + "\n"


def artifact_key(name: str) -> str:
    """Return ``name`` as Prefect wants keys: small letters, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def _links(made: Manifest, uri: str, tracking: str) -> list[str]:
    lines = [f"- manifest: `{uri}`"]
    run_id = made.facts.get("mlflow_run_id")
    if run_id and tracking.startswith("http"):
        lines.append(f"- [MLflow run]({tracking}/#/runs/{run_id})")
    elif run_id:
        lines.append(f"- MLflow run: `{run_id}`")
    if "model_uri" in made.facts:
        lines.append(f"- model: `{made.facts['model_uri']}`")
    folder = uri.rpartition("/")[0]
    pictures = [shard.path for shard in made.shards if shard.path.endswith((".png", ".svg"))]
    return lines + [f"- picture: `{storage.join(folder, path)}`" for path in pictures]


def _numbers(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return the facts that are numbers or short texts, those in groups by their path."""
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        label = prefix + name.replace("_", " ")
        if name == "settings":
            continue
        if isinstance(value, Mapping) and {"value", "low", "high"} <= value.keys():
            rows.append((label, f"{value['value']:.4f} [{value['low']:.4f}, {value['high']:.4f}]"))
        elif isinstance(value, Mapping):
            rows += _numbers(value, f"{label}, ")
        elif isinstance(value, bool | str):
            rows.append((label, str(value)))
        elif isinstance(value, int | float):
            rows.append((label, f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"))
    return rows


def _after_colon(sentence: str) -> str:
    return sentence.partition(": ")[2]


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
