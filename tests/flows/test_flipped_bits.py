"""A bit of a finished work folder is flipped: it is found before it is passed on, and healed."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from albert_core.checkpoint import RECORD, STATE, load_checkpoint
from albert_core.conversion.huggingface import load_encoder
from albert_core.conversion.model_files import MODEL_CONTENT, TASK, read_task
from albert_core.registry.measured import read_measured
from albert_core.registry.version_files import read_version
from albert_core.stage import errors, results
from albert_core.stage.lineage import MADE_WITH, read_made_with
from albert_core.stage.manifest import BEGUN, MANIFEST, read_manifest, sha256_of
from albert_core.stage.results import UNIT_DONE
from albert_core.tracking.server import open_client
from pipelines.engine import work_notes
from pipelines.source_files import read_files
from tests.flows.conftest import Tiny, make_tiny

NUM_FLIPS = 120
VERSION = "models:/albert-tiny/1"
_CACHES = ("units", "parts")
_NOT_READ = ("mlflow_run_id", BEGUN, "machines.json", "curves.png")
"""Beside a manifest, for people and for MLflow: no result depends on them."""


def contents(made: Tiny) -> dict[str, str]:
    """Return the digest of each stage's result."""
    uris = {name: uri for name, uri in made.manifests.items() if name != "recipe"}
    return {stage: read_manifest(uri).content for stage, uri in uris.items()}


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


READERS: dict[str, Callable[[str, str], object]] = {
    **dict.fromkeys((MANIFEST, BEGUN), lambda uri, _: read_manifest(uri)),
    **dict.fromkeys((STATE, RECORD), lambda _, folder: load_checkpoint(folder)),
    results.SOURCE_FILES: lambda uri, _: read_files(uri),
    MADE_WITH: lambda _, folder: read_made_with(folder),
    TASK: lambda _, folder: read_task(folder),
    **dict.fromkeys(MODEL_CONTENT, lambda _, folder: load_encoder(folder)),
}
"""How the stages read a file, by its name; `sha256_of` any other."""


def read(path: Path) -> None:
    """Read a file of a work folder as the stages do that read it."""
    folder, uri = path.parent, str(path)
    if {folder.name, folder.parent.name} & set(_CACHES):
        notes = {folder / UNIT_DONE, folder / f"{path.name.partition('.')[0]}.json"}
        [note] = filter(Path.exists, notes)
        if damaged := work_notes.damage(str(note)):
            raise errors.AlbertError(damaged)
    elif path.name in READERS and path.parts[-3] != "vocab":
        READERS[path.name](uri, str(folder))
    else:
        sha256_of(uri)


def results_in(work: str) -> list[Path]:
    """Return the files that results and caches consist of."""
    return sorted(
        path
        for path in Path(work).rglob("*")
        if path.is_file()
        and path.relative_to(work).parts[0] in (*results.STAGES, *_CACHES)
        and path.name not in _NOT_READ
    )


def passed_on_by_readers(work: str, number: int) -> list[tuple[str, int]]:
    """Flip so many bits, one at a time; return the files and bits that no reader finds."""
    random, passed_on, whole = Random(1), [], results_in(work)

    def result_of(path: Path) -> Path:
        """Return the folder of the result that a file belongs to."""
        return Path(work, *path.relative_to(work).parts[:2])

    by_kind: dict[tuple[str, str], list[Path]] = {}
    for path in whole:
        by_kind.setdefault((path.relative_to(work).parts[0], path.name), []).append(path)
    kinds = sorted(by_kind)
    for turn in range(number):
        path = random.choice(by_kind[kinds[turn % len(kinds)]])
        before = {file: file.read_bytes() for file in whole if result_of(file) == result_of(path)}
        bit = random.randrange(8 * len(before[path]))
        flip(path, bit)
        try:
            read(path)
            passed_on.append((str(path.relative_to(work)), bit))
        except errors.AlbertError:
            shutil.rmtree(result_of(path) / "damaged", ignore_errors=True)
        for file, content in before.items():
            if not file.exists() or file.read_bytes() != content:
                file.write_bytes(content)
    return passed_on


def test_a_flipped_bit_in_any_kind_of_file_is_found_by_who_reads_it(copied: Tiny) -> None:
    assert passed_on_by_readers(copied.work, NUM_FLIPS) == []


@pytest.mark.parametrize(
    "name",
    ["lineage/corpus-*/source_files.jsonl", "lineage/corpus-*/manifest.json", "measured.json"],
)
def test_a_flipped_bit_in_a_file_of_a_version_is_found_by_who_reads_it(
    name: str, tiny: Tiny
) -> None:
    [path] = Path(tiny.work).glob(f"mlartifacts/models/*/artifacts/{name}")
    before, version = path.read_bytes(), read_version(VERSION, tiny.work)[0]

    def read_it() -> None:
        read_version(VERSION, tiny.work)
        read_measured(open_client(tiny.work), version)

    flip(path, 8 * (len(before) // 2))
    try:
        with pytest.raises(errors.RegistryError, match=f"{VERSION} is damaged: .*{path.name}"):
            read_it()
    finally:
        path.write_bytes(before)


HEALED: dict[str, tuple[str, ...]] = {
    "corpus/*/documents*.arrow": ("vocab", "examples", "task"),
    "vocab/*/spiece.model": ("examples",),
    "examples/*/train*.arrow": ("pretraining",),
    "task/*/passage-source/dev.jsonl": ("finetuning",),
    "pretraining/*/model/model.safetensors": ("zero-shot", "finetuning", "registration"),
}
"""File of a result -> the stages that read it, also for a first version."""


@pytest.mark.long
@pytest.mark.parametrize("damaged", HEALED)
def test_what_was_damaged_is_made_again_by_the_next_run(damaged: str, copied: Tiny) -> None:
    before = contents(make_tiny(copied.source, copied.work))
    [path] = Path(copied.work).glob(damaged)
    flip(path, 8 * (path.stat().st_size // 2))
    for stage in HEALED[damaged]:
        for manifest in Path(copied.work).glob(f"{stage}/*/{MANIFEST}"):
            manifest.unlink()
    with suppress(errors.StageError):  # if a stage reads it
        make_tiny(copied.source, copied.work)
    assert contents(make_tiny(copied.source, copied.work)) == before
    read(path)
    assert not list(Path(copied.work).rglob("damaged"))
