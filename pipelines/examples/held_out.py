"""Pure: which documents are held out."""

from albert_core.text.seeds import share_of
from pipelines.config import ExampleSettings


def is_held_out(document_id: str, settings: ExampleSettings) -> bool:
    """Return whether a document is kept from training; the same in every run and copy."""
    return share_of(settings.seed, "held-out", document_id) < settings.held_out_share
