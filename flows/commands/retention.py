"""Delete what no registered version and no current result needs: `albert retention`.

It keeps the results that registered versions were made of, the newest of each stage, everything
that is young or being made, and everything that one of these was made of. It never touches
receipts, databases and MLflow's files.
"""

import errno
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, Literal

from albert_core.stage import errors, lock, results, servers, storage
from albert_core.stage.lineage import Lineage, place_in, read_made_with, read_work
from albert_core.stage.manifest import BEGUN, MANIFEST, Account, digest_of, modified_at
from albert_core.stage.results import PARTS, UNIT_DONE, UNITS
from flows.recipe import RECIPES
from flows.report import Report

AREAS = (*results.STAGES, UNITS, PARTS, RECIPES)
"""The folders of a work folder that retention looks at."""
_SAVING_WORK = {UNITS, PARTS}
"""Caches: the units of a corpus and the parts of examples."""
_ONLY_READ = {errno.EACCES, errno.EPERM, errno.EROFS}
"""Error numbers of a folder in which this process may not write."""
_SECONDS_PER_DAY = 86_400
_COMPLETING = (MANIFEST, UNIT_DONE)
"""The files that complete a result or a unit."""
_ALWAYS_FINISHED = (f"{PARTS}/", f"{RECIPES}/")


@dataclass(frozen=True)
class Rules:
    """What to keep besides what a kept result was made of."""

    keep_newest: int = 2
    """Number of finished results of each stage."""
    keep_days: float = 30.0
    """Everything younger is kept, finished or not."""
    registered: Literal["all", "aliased"] = "all"
    """Whose results to keep: those of all versions, or only of versions with an alias."""


@dataclass(frozen=True)
class Entry:
    """The folder of a result, or an entry of a cache."""

    name: str
    """Area and name below the work folder; a result's place."""
    num_bytes: int
    modified: float
    """When its newest file changed, in seconds since 1970."""
    is_finished: bool
    files: tuple[str, ...] = ()
    """URIs of all its files."""

    @property
    def area(self) -> str:
        """The folder that it is in."""
        return self.name.partition("/")[0]

    @property
    def is_result(self) -> bool:
        """Whether it is in the folder of a stage's results."""
        return self.area in results.STAGES


@dataclass
class RetentionPlan:
    """What is kept, with the reason, and what is not needed."""

    kept: dict[Entry, str]
    superfluous: list[Entry]
    """In the order of deletion: nothing before what was made of it."""

    @property
    def account(self) -> Account:
        """Bytes before, kept and superfluous."""
        kept, dropped = (sum(e.num_bytes for e in each) for each in (self.kept, self.superfluous))
        gone = {"not needed": dropped}
        return Account(what="bytes", total=kept + dropped, kept=kept, dropped=gone)


def plan_retention(
    entries: Collection[Entry],
    lineage: Lineage,
    made_with: Mapping[str, Collection[str]],
    being_made: Collection[str],
    registered: Mapping[str, str],
    rules: Rules,
    now: float,
) -> RetentionPlan:
    """Return what to keep and what is not needed.

    Args:
        entries: every result and cache entry of the work folder.
        lineage: all results, unfinished ones too.
        made_with: place of a corpus or of examples -> names of the entries that would save work on
            the next one.
        being_made: places that other processes are making, and recipes of runs that are under way;
            what they may use is kept.
        registered: place -> a version that was made of it.
        rules: what to keep.
        now: seconds since 1970.
    """
    current = dict(_current(entries, rules, now))
    in_use = dict(_in_use(entries, being_made, registered))
    reasons = in_use | current | in_use  # in use comes first, and is the reason to name
    for name in list(reasons):
        for before in lineage.before(name) - reasons.keys():
            reasons[before] = f"{name} is made of it"
    for place in current:
        for name in set(made_with.get(place, ())) - reasons.keys():
            reasons[name] = f"{place} was made with it"
    last_first = {place: -number for number, place in enumerate(lineage.results)}
    left = [entry for entry in entries if entry.name not in reasons]
    return RetentionPlan(
        kept={entry: reasons[entry.name] for entry in entries if entry.name in reasons},
        superfluous=sorted(left, key=lambda entry: (last_first.get(entry.name, 1), entry.name)),
    )


def _in_use(
    entries: Collection[Entry], being_made: Collection[str], registered: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the names of what versions and other processes need, and why."""
    recipes = [entry for entry in entries if entry.area == RECIPES and entry.name in being_made]
    began = min((recipe.modified for recipe in recipes), default=inf)
    for entry in entries:
        if entry.name in registered:
            yield entry.name, f"{registered[entry.name]} is made of it"
        elif entry in recipes:
            yield entry.name, "a run of it is under way"
        elif entry.name in being_made:
            yield entry.name, "it is being made"
        elif entry.modified >= began:
            yield entry.name, "a run that is under way may have made or found it"
        elif being_made and entry.area in _SAVING_WORK:
            yield entry.name, "a stage is being made, which may use it"


def _current(entries: Iterable[Entry], rules: Rules, now: float) -> Iterator[tuple[str, str]]:
    """Yield the names of what is kept for its own sake, and why."""
    newest = Counter[str]()
    for entry in sorted(entries, key=lambda entry: -entry.modified):
        newest[entry.area] += entry.is_finished
        is_new = entry.is_finished and newest[entry.area] <= rules.keep_newest
        if entry.is_result and place_in(entry.name) != entry.name:
            yield entry.name, "no stage made it"
        elif is_new and entry.area not in _SAVING_WORK:
            yield entry.name, f"among the newest {rules.keep_newest} of {entry.area}"
        elif now - entry.modified < rules.keep_days * _SECONDS_PER_DAY:
            yield entry.name, f"younger than {rules.keep_days:g} days"


def plan_for(work: str, rules: Rules, now: float) -> RetentionPlan:
    """Return which entries of a work folder to keep and which are not needed.

    Raises:
        RegistryError: the registry does not answer.
    """
    lineage, entries = read_work(work, begun=True), find_entries(work)
    is_local = storage.local_path(work) is not None  # elsewhere recipes are not locked
    unfinished = (
        entry
        for entry in entries
        if (entry.is_result and not entry.is_finished) or (entry.area == RECIPES and is_local)
    )
    made_with = {place: read_made_with(made.folder) for place, made in lineage.results.items()}
    being_made = {entry.name for entry in unfinished if _is_held(entry, work)}
    registered = _registered(work, rules, lineage)
    return plan_retention(entries, lineage, made_with, being_made, registered, rules, now)


def find_entries(work: str) -> list[Entry]:
    """Return every result and cache entry of a work folder."""
    files: dict[str, dict[str, Mapping[str, Any]]] = {}
    for area in AREAS:
        folder = storage.join(work, area)
        fs, path = storage.filesystem(folder)
        for file, info in storage.find(fs, path).items():
            inner = str(file).removeprefix(path).lstrip("/")
            name = inner.partition("/")[0]
            if area == PARTS:  # an entry is several files that differ in their endings
                name = name.partition(".")[0] or name
            files.setdefault(f"{area}/{name}", {})[storage.join(folder, inner)] = info
    return [
        Entry(
            name=name,
            num_bytes=sum(int(info["size"] or 0) for info in found.values()),
            modified=max(map(modified_at, found.values())),
            is_finished=name.startswith(_ALWAYS_FINISHED)
            or any(storage.join(work, name, file) in found for file in _COMPLETING),
            files=tuple(sorted(found)),
        )
        for name, found in sorted(files.items())
    ]


def check_registry(work: str) -> None:
    """Raise an error if results were registered in another registry than the present one.

    Raises:
        RegistryError: a result was registered elsewhere, where its version would not be seen, or
            the registry has none of those that were registered.
    """
    from albert_core.registry.versions import registered_versions
    from albert_core.tracking.server import REGISTRATION_TAG

    names = (servers.tracking_name, servers.shown_tracking_uri, servers.tracking_uri)
    here = {digest_of(name(work)) for name in names}  # the last two by earlier releases
    registrations = read_work(work).of_stage(results.REGISTRATION)
    elsewhere = [r for r in registrations if r.manifest.inputs.get("registry") not in here]
    versions = registered_versions(work) if registrations else []
    keys = {version.tags.get(REGISTRATION_TAG) for version in versions}
    for result in elsewhere:
        if result.manifest.key not in keys:
            raise errors.RegistryError(
                f"{result.uri} was registered elsewhere than in "
                f"{servers.shown_tracking_uri(work)}: what its version needs would not be seen. "
                "Set MLFLOW_TRACKING_URI as it was then, or, if only the address of the registry "
                "changed, give --other-registry."
            )
    if registrations and not keys.intersection(r.manifest.key for r in registrations):
        raise errors.RegistryError(
            f"{len(registrations)} models were registered from {work}, and the registry at "
            f"{servers.shown_tracking_uri(work)} has none of them: what they need would go. Put it "
            "back, or set MLFLOW_TRACKING_URI. If all of its versions were deleted, give "
            "--other-registry."
        )


def delete(plan: RetentionPlan, work: str) -> None:
    """Delete what is not needed; keep what another process has begun to make since.

    A result loses its manifest first, so that one that is half deleted is an unfinished one, and
    last what names its inputs.
    """
    for entry in list(plan.superfluous):
        if why := _needed_since(entry, work):
            plan.superfluous.remove(entry)
            plan.kept[entry] = why
            continue
        folder = storage.join(work, entry.name)
        completing = [storage.join(folder, name) for name in _COMPLETING]
        for uri in (*completing, *entry.files):
            if uri != storage.join(folder, BEGUN):
                storage.remove(uri)
        storage.remove(folder)
        lock.release(work, entry.name)


def _needed_since(entry: Entry, work: str) -> str:
    """Return why an entry is needed that was not when it was planned; else lock it.

    What only saves work is deleted last, and made again where a run that has begun misses it.
    """
    if not (entry.is_result or entry.area == RECIPES):
        return ""
    if _is_held(entry, work, hold=True):
        return "it is being made" if entry.is_result else "a run of it is under way"
    fs, begun = storage.filesystem(storage.join(work, entry.name, BEGUN))
    with suppress(FileNotFoundError, NotADirectoryError):  # a recipe is a file
        if modified_at(fs.info(begun)) > entry.modified:
            lock.release(work, entry.name)
            return "a run that is under way may have found it"
    return ""


def as_json(plan: RetentionPlan) -> dict[str, Any]:
    """Return the plan as JSON values."""

    def shown(entry: Entry) -> dict[str, Any]:
        return {name: value for name, value in asdict(entry).items() if name != "files"}

    return {
        "bytes": plan.account.model_dump(),
        "kept": [{**shown(entry), "why": why} for entry, why in plan.kept.items()],
        "not_needed": list(map(shown, plan.superfluous)),
    }


def as_text(plan: RetentionPlan, work: str, is_done: bool) -> str:
    """Return the plan as text."""
    account, gone = plan.account, "deleted" if is_done else "may go"
    sizes = {"before": account.total, "kept": account.kept, gone: account.total - account.kept}
    groups = {
        "Bytes": [(name, f"{size:>16,}") for name, size in sizes.items()],
        gone.capitalize(): [(entry.name, _described(entry)) for entry in plan.superfluous],
        "Kept": [(entry.name, f"{_described(entry)}  {why}") for entry, why in plan.kept.items()],
    }
    is_dry = plan.superfluous and not is_done
    note = "Nothing was deleted. --delete=yes does it." if is_dry else ""
    return Report(f"{work}: what {'was ' * is_done}{gone}", groups, note=note).text()


def _described(entry: Entry) -> str:
    day = datetime.fromtimestamp(entry.modified, UTC).date()
    return f"{entry.num_bytes:>16,}  {day}{'' if entry.is_finished else '  unfinished'}"


def _registered(work: str, rules: Rules, lineage: Lineage) -> dict[str, str]:
    """Return the places that registered versions need, each with one of those versions."""
    from albert_core.registry.versions import registered_versions

    registered_as: dict[str, list[str]] = {}
    for result in lineage.of_stage(results.REGISTRATION):
        uri = result.manifest.result.get("model_uri", "")
        registered_as.setdefault(uri, []).append(result.place)
    return {
        place: str(version)
        for version in registered_versions(work)
        if version.aliases or rules.registered == "all"
        for place in (*version.made_of, *registered_as.get(version.uri, []))
    }


def _is_held(entry: Entry, work: str, hold: bool = False) -> bool:
    """Return whether another process is making the entry; if not, lock it if ``hold`` is set."""
    try:
        if not lock.take_at_once(work, entry.name):
            return True
    except OSError as error:
        if hold or error.errno not in _ONLY_READ:
            raise
        return lock.is_noted(work, entry.name)
    if not hold:
        lock.release(work, entry.name)
    return False
