"""Tell the Prefect server, once, that the corpus has changed: an automation may react to it."""

import logging
import time

from prefect.client.orchestration import get_client
from prefect.events import Event, emit_event
from prefect.events.filters import EventFilter, EventIDFilter

from albert_core.stage import storage
from flows.done_before import RecipeRun
from flows.stage_task import read_stage

EVENT = "albert.corpus.changed"
_TOLD = "change_was_told"
_ARRIVES_WITHIN_SECONDS = 30.0
_LOOK_SECONDS = 0.5

log = logging.getLogger(__name__)


def tell_of_change(
    run: RecipeRun, examples: str, recipe: str, source: str | None, overrides: list[str] | None
) -> bool:
    """Emit the event if nobody was told of these examples yet; return whether it arrived.

    That is noted beside the examples: a run that was killed before it told, or told a server that
    was away, is made up for by the next one.

    Args:
        run: of the refresh.
        examples: URI of the manifest.
        recipe: parameter of the flow, as are ``source`` and ``overrides``.
        source: the same.
        overrides: the same.
    """
    manifest, folder = read_stage(examples)
    told = storage.join(folder, _TOLD)
    if storage.exists(told):
        return False
    event = emit_event(
        EVENT,
        resource={
            "prefect.resource.id": f"albert.examples.{manifest.key}",
            "prefect.resource.name": f"examples of {run.recipe.name}",
            "albert.manifest": examples,
        },
        payload={"recipe": recipe, "source": source, "work": run.work, "overrides": overrides},
    )
    if event is None or not _has_arrived(event):
        log.warning(
            "Prefect's server was not told that the corpus has changed: it does not say that it "
            "has the event. The next refresh tells it again."
        )
        return False
    storage.write_bytes(told, b"")
    return True


def _has_arrived(event: Event) -> bool:
    """Return whether the server has ``event`` soon: Prefect sends it in the background."""
    wanted = EventFilter(id=EventIDFilter(id=[event.id]))
    end = time.monotonic() + _ARRIVES_WITHIN_SECONDS
    with get_client(sync_client=True) as client:
        while time.monotonic() < end:
            if client.read_events(wanted, limit=1).events:
                return True
            time.sleep(_LOOK_SECONDS)
    return False
