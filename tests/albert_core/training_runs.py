"""Runs of pretraining for tests: examples that can be learned, small settings, processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import PretrainingResult
from albert_core.training import pretrain
from pipelines import clean_corpus, make_examples, train_vocab
from pipelines.config import CleaningSettings, ExampleSettings, SourceSettings, VocabularySettings
from tests.generated_order import write_days

MODEL = ModelSettings(
    embedding_size=32,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=96,
    initializer_range=0.1,
)
TRAINING = TrainingSettings(
    num_steps=12,
    batch_size=8,
    micro_batch_size=4,
    learning_rate=0.01,
    warmup_steps=2,
    log_steps=4,
    checkpoint_steps=4,
    evaluation_steps=6,
    max_evaluation_examples=50,
)


def make_days(work: Path, seed: int, num_documents: int, **settings: Any) -> str:
    """Return the manifest of examples of a corpus whose order can be learned."""
    work.mkdir(parents=True, exist_ok=True)
    source = SourceSettings(uri=str(write_days(work / "days.jsonl", seed, num_documents)))
    values = {
        "max_seq_length": 96,
        "dupe_factor": 2,
        "held_out_share": 0.1,
        "short_seq_prob": 0.0,
        "seed": seed,
    }
    corpus = clean_corpus.run(source, CleaningSettings(), str(work))
    vocab = train_vocab.run(VocabularySettings(vocab_size=95), corpus, str(work))
    return make_examples.run(ExampleSettings(**values | settings), corpus, vocab, str(work))


def made_again(examples: str, work: Path, vocab: str = "", **settings: Any) -> str:
    """Return the manifest of examples of the same corpus, with another vocabulary or settings."""
    made = read_manifest(examples)
    corpus, own = (made.input_manifests[name] for name in ("corpus", "vocab"))
    settings = made.settings | settings
    return make_examples.run(ExampleSettings(**settings), corpus, vocab or own, str(work))


def with_settings(**values: Any) -> TrainingSettings:
    """Return the settings above with some changed."""
    return TrainingSettings(**TRAINING.model_dump() | values)


def train(
    examples: str,
    work: Path | str,
    model: ModelSettings = MODEL,
    task_folder: Path | str = "",
    **values: Any,
) -> str:
    """Run the stage in this process, with some of the settings above changed."""
    return pretrain.run(model, with_settings(**values), examples, str(work), str(task_folder))


def result_of(manifest: str) -> PretrainingResult:
    """Return what a run tells its readers."""
    return read_manifest(manifest).result_as(PretrainingResult)


def content_of(manifest: str) -> str:
    """Return a digest of all that a run made."""
    return read_manifest(manifest).content


def recipe_file(folder: Path, settings: TrainingSettings, model: ModelSettings = MODEL) -> str:
    """Write a resolved recipe to ``folder``; return its path."""
    path = folder / "recipe.json"
    sections = {"model": model.model_dump(), "training": settings.model_dump()}
    path.write_text(json.dumps(sections))
    return str(path)


def weights_of(manifest: str) -> dict[str, torch.Tensor]:
    """Return the trained weights."""
    return load_file(Path(manifest).parent / "model" / "model.safetensors")


def run_with_faults(
    folder: Path,
    settings: TrainingSettings,
    examples: str,
    num_ranks: int = 1,
    faults: dict[str, Any] | None = None,
    *,
    model: ModelSettings = MODEL,
    python: str = sys.executable,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run the stage as processes, with results below ``folder``/work.

    Args:
        folder: of the test.
        settings: of the training.
        examples: manifest.
        num_ranks: more than one are started by the launcher.
        faults: see `training_with_faults`.
        model: settings.
        python: interpreter.
        variables: of the environment.
    """
    launcher = ["albert_core.training.launcher", "--standalone", f"--nproc-per-node={num_ranks}"]
    return subprocess.run(
        [
            *(python, "-m"),
            *([*launcher, "-m"] if num_ranks > 1 else []),
            "tests.albert_core.training_with_faults",
            f"--recipe={recipe_file(folder, settings, model)}",
            f"--examples={examples}",
            f"--work={folder / 'work'}",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "FAULTS": json.dumps(faults or {}), **variables},
    )
