"""Name in the receipt of a removal the registered versions that were made of its documents."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from albert_core.stage import storage
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import CORPUS, place_in, read_work
from albert_core.stage.manifest import sealed, unsealed
from pipelines.removal import VERSIONS

if TYPE_CHECKING:
    from albert_core.registry.versions import RegisteredVersion

MADE_OF_THEM, NOT_LOOKED_THROUGH = "made_of_them", "not_looked_through"
_HOLDING = ("earlier_results_with_them", "models_made_of_them", "vocabularies_made_of_them")

log = logging.getLogger("removal")


def name_affected_versions(receipt: str, work: str) -> list[str]:
    """Add to the receipt at this URI the versions made of what it names; return them.

    Versions of corpora that are not in ``work`` are listed separately, because nobody can tell
    whether they contain the documents. If there is no registry, or it does not answer, nothing is
    added.
    """
    from albert_core.registry.versions import has_registry, registered_versions

    if not has_registry(work):
        return []
    try:
        versions = registered_versions(work)
    except RegistryError as error:
        log.warning("removal: the receipt names no registered versions: %s", error)
        return []
    content = unsealed(receipt)
    here = {result.place for result in read_work(work).of_stage(CORPUS)}
    found = affected_versions(content, versions, here)
    if content.get(VERSIONS) != found:
        content[VERSIONS] = found
        storage.write_bytes(receipt, sealed(content))
    for version in found[MADE_OF_THEM]:
        log.warning("removal: %s was made of removed documents", version)
    return found[MADE_OF_THEM]


def named_versions(receipt: str) -> list[str]:
    """Return the versions that the receipt at this URI says were made of what it names."""
    content = unsealed(receipt)
    return list(content.get(VERSIONS, {}).get(MADE_OF_THEM, []))


def affected_versions(
    receipt: dict[str, Any], versions: Iterable["RegisteredVersion"], corpora: set[str]
) -> dict[str, list[str]]:
    """Return the versions that were made of what a receipt names, and those where it is unknown.

    Args:
        receipt: as `pipelines.removal` writes it.
        versions: all registered versions.
        corpora: places of the corpora that were searched.
    """
    clean = {place_in(checked["manifest"]) for checked in receipt["in_no_shard_of"]}
    holding = {place_in(uri) for name in _HOLDING for uri in receipt[name]} - clean - {""}
    made_of_them, unknown = [], []
    for version in versions:
        places = version.made_of.keys()
        if places & holding:
            made_of_them.append(str(version))
        elif any(place.startswith(f"{CORPUS}/") for place in places - corpora):
            unknown.append(str(version))
    return {MADE_OF_THEM: sorted(made_of_them), NOT_LOOKED_THROUGH: sorted(unknown)}
