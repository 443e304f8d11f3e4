"""What results were made of: the results in a work folder, or those behind one of them, in order.

A result is named by its place, which is stage and key: ``corpus/0123456789abcdef``. The place is
the same wherever the work folder is, and in the registry's copies of the manifests.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter

from albert_core.stage import errors, storage
from albert_core.stage.credentials import texts_in
from albert_core.stage.manifest import BEGUN, KEY_DIGITS, MANIFEST, Manifest, checked, read_manifest
from albert_core.stage.results import CORPUS, SOURCE_FILES, STAGES, VOCAB

MADE_WITH = "made_with.txt"
"""The list of the units and parts that a result was made with, beside its manifest. Each line is
``units/NAME`` or ``parts/NAME``."""

_PLACE = re.compile(rf"(?:^|/)({'|'.join(STAGES)})/([0-9a-f]{{{KEY_DIGITS}}})(?=/|$)")

log = logging.getLogger("lineage")


@dataclass(frozen=True)
class Result:
    """A result of a stage, as its manifest describes it."""

    uri: str
    """URI of its manifest."""
    manifest: Manifest
    source_list: bytes | None = None
    """Content of a corpus's `SOURCE_FILES`, if the registry has a copy."""

    @property
    def place(self) -> str:
        """Its stage and key."""
        return f"{self.manifest.stage}/{self.manifest.key}"

    @property
    def folder(self) -> str:
        """The folder of the manifest."""
        return self.uri.rpartition("/")[0]

    def read_source_list(self) -> bytes | None:
        """Return the content of a corpus's `SOURCE_FILES`; None if it has no copy and isn't here.

        Raises:
            IntegrityError: the file changed after it was written.
        """
        uri = storage.join(self.folder, SOURCE_FILES)
        if self.source_list is None and storage.exists(uri):
            return storage.read_bytes(checked(uri))
        return self.source_list

    @property
    def is_finished(self) -> bool:
        """Whether the stage was done to its end; else its manifest is from its beginning."""
        return not self.uri.endswith(f"/{BEGUN}")

    @cached_property
    def addresses(self) -> dict[str, str]:
        """Place -> an address in it, as its inputs, its settings or the call that made it say."""
        call = self.manifest.provenance.call
        named = [call.options, call.recipe] if call else []
        named += [self.manifest.settings, self.manifest.input_manifests]
        addresses = {place_in(text): text for _, text in texts_in(named)}
        return {p: address for p, address in addresses.items() if p not in ("", self.place)}

    @property
    def inputs(self) -> frozenset[str]:
        """Places that its inputs, its settings or the call that made it name."""
        return frozenset(self.addresses)

    @property
    def sources(self) -> frozenset[str]:
        """Those of `inputs` of which something may be in it.

        A vocabulary that was given or kept has nothing of the corpus that it is used for.
        """
        if self.manifest.stage != VOCAB or self.manifest.result.get("trained", True):
            return self.inputs
        return frozenset(p for p in self.inputs if not p.startswith(f"{CORPUS}/"))


class Lineage:
    """Results by place, each after everything that it was made from."""

    def __init__(self, results: Iterable[Result]) -> None:
        by_place = {result.place: result for result in results}
        edges = {p: sorted(result.inputs & by_place.keys()) for p, result in by_place.items()}
        self.results = {p: by_place[p] for p in TopologicalSorter(edges).static_order()}

    def of_stage(self, stage: str) -> list[Result]:
        """Return the results of one stage."""
        return [each for each in self.results.values() if each.manifest.stage == stage]

    def lost_sources(self, result: Result) -> list[str]:
        """Return the places of the sources of ``result`` that are nowhere any more."""
        missing = sorted(result.sources - self.results.keys())
        folders = {place: result.addresses[place].partition(place)[0] + place for place in missing}
        return [place for place in missing if not storage.is_there(folders[place])]

    def before(self, place: str) -> set[str]:
        """Return ``place`` and everything known that it was made from, directly or indirectly."""
        found = {place} & self.results.keys()
        for other in reversed(self.results):
            if other in found:
                found |= self.results[other].inputs & self.results.keys()
        return found


def write_made_with(uris: Iterable[str], work: str, folder: str) -> None:
    """Write the list `MADE_WITH` to ``folder``, with those of ``uris`` that are in ``work``."""
    root = storage.join(work, "")
    names = sorted({uri.removeprefix(root) for uri in uris if uri.startswith(root)})
    content = "".join(f"{name}\n" for name in names)
    storage.write_bytes(storage.join(folder, MADE_WITH), content.encode())


def read_made_with(folder: str) -> set[str]:
    """Return the names that `write_made_with` wrote, without suffixes."""
    uri = storage.join(folder, MADE_WITH)
    if not storage.exists(uri):
        return set()
    lines = storage.read_bytes(checked(uri)).decode().splitlines()
    return {name.partition(".")[0] for name in lines}


def place_in(uri: str) -> str:
    """Return the place of the result that ``uri`` belongs to; empty if it belongs to none."""
    found = _PLACE.findall(uri)
    return "/".join(found[-1]) if found else ""


def manifest_of(address: str) -> str | None:
    """Return the manifest's URI of the result that ``address`` belongs to, if there is one.

    For an unfinished result this is the URI of `BEGUN`.
    """
    uri = storage.absolute(address)
    place = place_in(uri)
    return _manifest_in(f"{uri[: uri.rindex(place)]}{place}", begun=True) if place else None


def read_work(work: str, *, stages: Sequence[str] = STAGES, begun: bool = False) -> Lineage:
    """Return the finished results in ``work``; log and skip those that can't be read.

    Args:
        work: folder for all results.
        stages: stages to read.
        begun: whether to return unfinished results too, whose manifests list no files.
    """
    return Lineage(_results(work, stages, begun))


def read_lineage(address: str) -> Lineage:
    """Return the result that ``address`` belongs to and everything that it was made from.

    Raises:
        IntegrityError: a manifest is missing.
    """
    uri = storage.absolute(address)
    manifest = uri if uri.endswith(f"/{MANIFEST}") else manifest_of(uri)
    if manifest is None:
        raise errors.IntegrityError(
            f"there is no {MANIFEST} at {uri} or above it. Give models:/<name>@<alias>, or a "
            "folder below a work folder."
        )
    found: dict[str, Result] = {}
    queue = [manifest]
    while queue:
        uri = queue.pop(0)
        result = Result(uri, read_manifest(uri))
        found[result.place] = result
        made_of = result.manifest.input_manifests.values()
        queue += [uri for uri in made_of if place_in(uri) not in found]
    return Lineage(found.values())


def _manifest_in(folder: str, begun: bool) -> str | None:
    names = (MANIFEST, BEGUN) if begun else (MANIFEST,)
    uris = (storage.join(folder, name) for name in names)
    return next(filter(storage.exists, uris), None)


def _results(work: str, stages: Sequence[str], begun: bool) -> Iterator[Result]:
    for stage in stages:
        for name in storage.list_names(storage.join(work, stage)):
            if uri := _manifest_in(storage.join(work, stage, name), begun):
                try:
                    yield Result(uri, read_manifest(uri))
                except errors.IntegrityError as error:
                    log.warning("skipping %s", error)
