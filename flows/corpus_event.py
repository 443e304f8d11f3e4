"""Tell the Prefect server, once, that the corpus has changed: an automation may react to it."""

from prefect.events import emit_event

from albert_core.contract import storage
from flows.stage_task import RecipeRun, read_stage

EVENT = "albert.corpus.changed"
_TOLD = "change_was_told"


def tell_of_change(
    run: RecipeRun, examples: str, recipe: str, source: str | None, overrides: list[str] | None
) -> bool:
    """Emit the event if nobody was told of these examples yet; return whether it was emitted.

    That is noted beside the examples: a run that was killed before it told is made up for by the
    next one.

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
    emit_event(
        EVENT,
        resource={
            "prefect.resource.id": f"albert.examples.{manifest.key}",
            "prefect.resource.name": f"examples of {run.recipe.name}",
            "albert.manifest": examples,
        },
        payload={"recipe": recipe, "source": source, "work": run.work, "overrides": overrides},
    )
    storage.write_bytes(told, b"")
    return True
