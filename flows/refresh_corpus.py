"""Flow: sources -> clean corpus -> vocabulary -> examples -> audit. The schedule runs this."""

import logging
import time
from typing import cast
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.events import Event, emit_event
from prefect.events.filters import EventFilter, EventIDFilter
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run as this_flow_run

from albert_core.stage import command, storage
from albert_core.stage.errors import OutageError, StageError
from flows import flow_run, stage_task, tracking
from flows.recipe import NO_CHANGES, Address, NotDoneError, RecipeChanges, RecipeName, RecipeRun
from flows.report import build_text_report

DEPLOYMENT = "refresh-corpus/refresh-corpus"
WAITED_FOR = "waited-for"
"""Tag of a deployment's run that a pretraining waits for."""
EVENT = "albert.corpus.changed"
_TOLD = "change_was_told"
_ARRIVES_WITHIN_SECONDS = 30.0
_LOOK_SECONDS = 0.5

clean_corpus = stage_task.stage("clean-corpus", "pipelines.clean_corpus")
"""Sources -> documents worth training on."""
train_vocab = stage_task.stage("train-vocab", "pipelines.train_vocab")
"""Documents -> SentencePiece vocabulary."""
make_examples = stage_task.stage("make-examples", "pipelines.make_examples")
"""Documents + vocabulary -> pretraining examples."""
audit_shards = stage_task.stage("audit-shards", "pipelines.audit_shards")
"""Examples -> what the auditor found in them."""

log = logging.getLogger(__name__)


@flow(name="refresh-corpus", **flow_run.FLOW_OPTIONS)
def refresh_corpus(
    recipe: RecipeName = "tiny",
    source: Address | None = None,
    settings: RecipeChanges = NO_CHANGES,
    overrides: list[Address] | None = None,
    work: Address | None = None,
) -> str:
    """Bring the corpus, its vocabulary and its examples up to date.

    Args:
        recipe: name of a shipped recipe, or path or URI of a TOML file.
        source: your own text: a file, folder, glob or URI. Default: the recipe's.
        settings: the usual settings that differ from the recipe's; left empty, one is as there.
        overrides: any settings that differ, `section.field=value` each; they take precedence.
        work: folder for all results. Default: ALBERT_WORK, else `work`.

    Returns:
        The report.
    """
    run = flow_run.start_run(recipe, source, work, overrides, settings)
    check_vocabulary(run)
    corpus = clean_corpus(run)
    vocab = train_vocab(run, corpus=corpus)
    examples = make_examples(run, corpus=corpus, vocab=vocab)
    audit = audit_shards(run, examples=examples)
    receipt = removal_receipt(run, corpus, examples)
    tell_of_change(run, examples)
    return report(run, corpus=corpus, vocab=vocab, examples=examples, audit=audit, receipt=receipt)


@stage_task.task("check-vocabulary")
def check_vocabulary(run: RecipeRun) -> None:
    """Refuse a given vocabulary that can't be used, before any text is read."""
    from pipelines.train_vocab import given_model

    given_model(run.recipe.vocabulary)


@stage_task.task("removal-receipt")
def removal_receipt(run: RecipeRun, corpus: str, examples: str) -> str:
    """Certify that documents gone from the corpus are in no shard; name the affected versions."""
    receipt = stage_task.run_stage("pipelines.removal", run, corpus=corpus, examples=examples)
    if receipt != command.NO_RESULT:
        from flows.commands.document_trace import name_affected_versions

        name_affected_versions(receipt, run.work)
        if tracked := tracking.tracked_flow():
            tracked.note_receipt(receipt)
    return receipt


@stage_task.task("refresh-corpus")
def refresh_in_its_pool(run: RecipeRun) -> None:
    """Run the deployment `refresh-corpus` and wait for it, if it has another pool than this run.

    A machine with GPUs then cleans no text. It does nothing if the text is ready, or if no worker
    started this run.

    Raises:
        OutageError: the run was killed, or made another text than is needed here.
        StageError: it failed or was cancelled.
    """
    if not (stage_task.in_flow_run() and _is_elsewhere()) or _has_text(run):
        return
    log.info("waiting for a run of %s, for which its pool needs a worker", DEPLOYMENT)
    parameters = dict(run.given)
    made = cast(FlowRun, run_deployment(DEPLOYMENT, parameters=parameters, tags=[WAITED_FOR]))
    state, named = made.state, f"{DEPLOYMENT}, run {made.name}"
    if state is None or state.is_crashed():
        raise OutageError(f"{named}, was killed")
    if not state.is_completed():
        raise StageError(f"{named}: {state.name}. {state.message or ''}")
    if not _has_text(run):
        raise OutageError(
            f"{named}, has ended, but its text is not in {run.work}. The source has changed since, "
            "or the pools differ: both need the same version of the code and the same ALBERT_WORK"
        )


def _is_elsewhere() -> bool:
    """Return whether this run has a pool, and the deployment of this flow has another one."""
    with get_client(sync_client=True) as client:
        own = client.read_flow_run(UUID(this_flow_run.id)).work_pool_name
        try:
            return bool(own) and own != client.read_deployment_by_name(DEPLOYMENT).work_pool_name
        except ObjectNotFound:
            return False


def _has_text(run: RecipeRun) -> bool:
    """Return whether the examples that the run needs are there."""
    corpus = run.find_done("pipelines.clean_corpus")
    vocab = run.find_done("pipelines.train_vocab", corpus=corpus) if corpus else None
    inputs = {"corpus": corpus or "", "vocab": vocab or ""}
    return bool(vocab and run.find_done("pipelines.make_examples", **inputs))


def tell_of_change(run: RecipeRun, examples: str) -> bool:
    """Tell Prefect's server, once, that the corpus has changed; return whether the event arrived.

    An automation may react to the event. A file beside the examples records that it arrived: after
    a killed run or an unavailable server, the next run sends it. No event is sent if a pretraining
    waits for this run.

    Args:
        run: run of the refresh.
        examples: URI of the manifest.

    Raises:
        NotDoneError: the event was not sent yet, and there is no flow run to send it in.
    """
    manifest, folder = stage_task.read_stage(examples)
    told = storage.join(folder, _TOLD)
    if storage.exists(told):
        return False
    if not stage_task.in_flow_run():
        raise NotDoneError(EVENT)
    if WAITED_FOR in this_flow_run.tags:
        storage.write_bytes(told, b"")
        return False
    event = emit_event(
        EVENT,
        resource={
            "prefect.resource.id": f"albert.examples.{manifest.key}",
            "prefect.resource.name": f"examples of {run.recipe.name}",
            "albert.manifest": examples,
        },
        payload={**run.given, "work": run.work},
    )
    if event is None or not _has_arrived(event):
        log.warning(
            "Prefect's server did not confirm the event that the corpus has changed. The next "
            "refresh sends it again."
        )
        return False
    storage.write_bytes(told, b"")
    return True


def _has_arrived(event: Event) -> bool:
    """Wait for ``event`` to reach the server, which Prefect sends in the background."""
    wanted = EventFilter(id=EventIDFilter(id=[event.id]))
    end = time.monotonic() + _ARRIVES_WITHIN_SECONDS
    with get_client(sync_client=True) as client:
        while time.monotonic() < end:
            if client.read_events(wanted, limit=1).events:
                return True
            time.sleep(_LOOK_SECONDS)
    return False


def report(run: RecipeRun, **uris: str) -> str:
    """Show what was done on Prefect's and MLflow's pages, and return it as text."""
    affected: list[str] = []
    if uris["receipt"] != command.NO_RESULT:
        from flows.commands.document_trace import named_versions

        affected = named_versions(uris["receipt"])
    done = build_text_report(run.recipe.name, uris, affected)
    return flow_run.show_report(done, "refresh-corpus")
