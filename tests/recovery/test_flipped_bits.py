"""A bit of a finished work folder is flipped: it is found before it is passed on, and healed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from albert_core.checkpoint import load_checkpoint
from albert_core.conversion.model_files import read_task
from albert_core.conversion.model_folder import load_encoder
from albert_core.finetuning import finetune
from albert_core.registry import register
from albert_core.scores import tabulate, zero_shot
from albert_core.stage import lock
from albert_core.stage.errors import AlbertError
from albert_core.stage.lineage import STAGES, model_folder_of, read_made_with
from albert_core.stage.manifest import BEGUN, MANIFEST, read_manifest, sha256_of, unsealed
from albert_core.training import pretrain
from flows.recipe import load_recipe
from pipelines import clean_corpus, make_examples, make_task, train_vocab
from pipelines.engine import kept_files
from pipelines.source_files import read_files
from tests.generated_text import write_jsonl
from tests.test_end_to_end import SMALLER

NUM_FLIPS = int(os.environ.get("ALBERT_TEST_FLIPS", "200"))
_CACHES = ("units", "parts")
_NOT_RESULTS = ("claims", "mlartifacts", "mlflow.db", "mlflow.db.lock", "mlflow_journals")
_NOT_READ = ("mlflow_run_id", BEGUN, "machines.json", "curves.png")
"""Beside a manifest, for people and for MLflow: no result depends on them."""


def run_all(work: str, source: str) -> dict[str, str]:
    """Run the stages of the flow in this process; return the manifest of each."""
    recipe = load_recipe("tiny", [f"{name}={value}" for name, value in SMALLER.items()], source)
    made: dict[str, str] = {}
    try:
        made["corpus"] = corpus = clean_corpus.run(recipe.source, recipe.cleaning, work)
        made["vocab"] = vocab = train_vocab.run(recipe.vocabulary, corpus, work)
        made["examples"] = examples = make_examples.run(recipe.examples, corpus, vocab, work)
        made["task"] = make_task.run(recipe.task, examples, corpus, work)
        task = made["task"].rpartition("/")[0]
        made["pretraining"] = pretrain.run(recipe.model, recipe.training, examples, work, task)
        model = model_folder_of(made["pretraining"])
        made["zero-shot"] = zero_shot.run(model, task, work)
        made["finetuning"] = finetune.run(
            *(recipe.finetuning, recipe.evaluation, model, task, "passage-source", "1", work)
        )
        made["scores"] = tabulate.run(
            *(recipe.scoring, "albert-tiny", json.dumps([made["finetuning"]])),
            zero_shot=made["zero-shot"],
            work=work,
        )
        made["registration"] = register.run(
            recipe.registry, made["pretraining"], made["scores"], work=work
        )
    finally:
        lock.release_all()
    return made


def contents(made: dict[str, str]) -> dict[str, str]:
    """Return the digest of each stage's result."""
    return {stage: read_manifest(uri).content for stage, uri in made.items()}


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def read(path: Path) -> None:
    """Read a file of a work folder as the stages do that read it."""
    folder, uri = path.parent, str(path)
    if path.name in (MANIFEST, BEGUN):
        read_manifest(uri)
    elif "checkpoints" in path.parts:
        load_checkpoint(str(folder))
    elif folder.parent.name in _CACHES or folder.name in _CACHES:
        notes = [folder / "unit.json", *folder.glob(f"{path.name.partition('.')[0]}.json")]
        for note in filter(Path.exists, notes):
            if damaged := kept_files.damage(str(note)):
                raise AlbertError(damaged)
    elif path.name == "before.json":
        unsealed(uri)
    elif path.name == "source_files.jsonl":
        read_files(uri)
    elif path.name == "made_with.txt":
        read_made_with(str(folder))
    elif path.name == "task.json":
        read_task(str(folder))
    elif folder.name == "model" and not path.name.startswith(("special", "tokenizer.json")):
        load_encoder(str(folder))
    else:
        sha256_of(uri)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A work folder, and its source."""
    os.environ["ALBERT_WORKERS"] = "1"
    folder = tmp_path_factory.mktemp("flips")
    (folder / "source").mkdir()
    for number in range(3):
        write_jsonl(folder / f"source/{number}.jsonl", range(number * 40, number * 40 + 40))
    run_all(f"{folder}/work", f"{folder}/source")
    return f"{folder}/work", f"{folder}/source"


def results_in(work: str) -> list[Path]:
    """Return the files that results and caches consist of."""
    return sorted(
        path
        for path in Path(work).rglob("*")
        if path.is_file()
        and path.relative_to(work).parts[0] in (*STAGES, *_CACHES)
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
        except AlbertError:
            shutil.rmtree(result_of(path) / "damaged", ignore_errors=True)
        for file, content in before.items():
            if not file.exists() or file.read_bytes() != content:
                file.write_bytes(content)
    return passed_on


@pytest.mark.long
def test_every_flipped_bit_is_found_by_who_reads_the_file(finished: tuple[str, str]) -> None:
    assert passed_on_by_readers(finished[0], NUM_FLIPS) == []


HEALED: dict[str, Callable[[Path], bool]] = {
    "the corpus": lambda path: path.match("corpus/*/documents*.arrow"),
    "the model": lambda path: path.match("pretraining/*/model/model.safetensors"),
    "a manifest": lambda path: path.match("examples/*/manifest.json"),
    "the task": lambda path: path.match("task/*/passage-source/dev.jsonl"),
}


@pytest.mark.long
@pytest.mark.parametrize("what", HEALED)
def test_what_was_damaged_is_made_again_with_the_same_digest(
    what: str, finished: tuple[str, str]
) -> None:
    work, source = finished
    before = contents(run_all(work, source))
    [path] = filter(HEALED[what], results_in(work))
    readers = [stage for stage in STAGES if stage not in path.parts]
    flip(path, 8 * (path.stat().st_size // 2))
    for stage in readers:  # so that all that read it are to be done again
        for manifest in Path(work).glob(f"{stage}/*/{MANIFEST}"):
            manifest.unlink()
    if what != "a manifest":  # that is found, and made again, at once
        with pytest.raises(AlbertError, match="is set aside in"):
            run_all(work, source)
    assert contents(run_all(work, source)) == before
    assert not list(Path(work).rglob("damaged"))
