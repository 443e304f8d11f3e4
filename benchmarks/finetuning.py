"""Fine-tuning, scoring and minimal pairs against Hugging Face's classes and `Trainer`.

    PYTHONPATH=<folder of accelerate> python -m benchmarks.finetuning
        [--only finetuning minimal_pairs] [--tasks sst-2 squad-1.1] [--rounds 3] [--results FOLDER]

finetuning: SST-2 and SQuAD 1.1 on the CPU, with a model of 6 layers of width 256, and the same
weights, examples, batch sizes and longest lengths. The peer twice: with its examples' defaults
(run_glue.py, run_qa.py), which pad every sequence to the longest length; and at its best, with
dynamic padding and batches by length (`group_by_length`). Training is one epoch of updates with the
optimizer and the clipping; scoring is the prediction of as many others, and for us also the scores,
of SQuAD with the search for the answers. Speed is in examples (of SQuAD windows) per CPU second.
`Trainer` needs `accelerate`, which is no dependency of this project: ``pip install --target
/tmp/hftrain --no-deps accelerate psutil``.

minimal_pairs: random weights of the demo's shape, a vocabulary of 8,000 pieces from real English
text, and some pairs of each paradigm of BLiMP; without BLiMP, made from the text. One thread each.
The peer scores a sentence at a time, as people do: the copies of a sentence are a batch, the logits
of all its pieces are computed. Pieces are those of all copies, [CLS] and [SEP] included.
"""

import argparse
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait take no CPU time

import numpy as np
import torch
import transformers

from albert_core.config import FinetuningSettings, ModelSettings
from albert_core.conversion.huggingface import encoder_to_hf_state, to_hf_state
from albert_core.finetuning import finetuned_model, finetuning
from albert_core.model.albert import AlbertForPretraining, AlbertModel
from albert_core.stage.manifest import read_manifest
from albert_core.tasks import catalogue, likelihoods, minimal_pairs
from albert_core.tasks.problem import TARGET, Head, Inputs, Problem
from albert_core.text.records import CLS, MASK, SEP
from albert_core.text.tokenizer import WORD_MARK, Tokenizer
from benchmarks import harness, pretraining, stages
from flows.recipe import load_recipe

MODEL = ModelSettings(
    hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024
)
DEMO = load_recipe("tiny").model
VOCAB_SIZE, LEARNING_RATE = 30_000, 2e-5
PAIRS_TEXT_BYTES = 2_000_000
PAIRS_OF_A_PARADIGM = 5
MADE_PAIRS = 600
PAIRS_GOAL = "150,000 pieces, 4.7 times the peer"
SQUAD = harness.DATA / "tasks/squad"


@dataclass(frozen=True)
class Case:
    """A task as its example script has it by default."""

    files: dict[str, str]
    batch_size: int
    max_seq_length: int
    num_examples: int
    """Of an epoch, and as many to score."""


CASES = {
    "sst-2": Case(
        {split: str(harness.DATA / f"tasks/glue/SST-2/{split}.tsv") for split in ("train", "dev")},
        batch_size=32,
        max_seq_length=128,
        num_examples=256,
    ),
    "squad-1.1": Case(
        {
            "train": str(SQUAD / "train_prefix/train-v1.1.prefix_recovered.json"),
            "dev": str(SQUAD / "squad-v1.1-articles-0-35.json"),
        },
        batch_size=12,
        max_seq_length=384,
        num_examples=48,
    ),
}


@cache
def given(task_name: str, split: Any) -> tuple[Problem[Any], Inputs, Any]:
    """Return the task's problem, some examples drawn at random, and their inputs."""
    case, task = CASES[task_name], catalogue.TASKS[task_name]
    problem = finetuned_model.problem_of(task, FinetuningSettings())
    every = catalogue.read_examples(catalogue.TaskFiles(task, {split: (case.files[split],)}), split)
    draw = np.random.default_rng(["train", "dev"].index(split))
    rows = np.sort(draw.permutation(len(every))[: case.num_examples])
    per_example = {
        name: values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
        for name, values in vars(every).items()
        if name not in ("paragraphs", "skipped") and isinstance(values, list | np.ndarray)
    }
    examples = type(every)(**vars(every) | per_example)
    tokenizer = Tokenizer(harness.PUBLISHED_MODEL.read_bytes())
    return problem, problem.inputs(examples, tokenizer, case.max_seq_length), examples


def models(task: str) -> tuple[AlbertModel, Head]:
    """Return the encoder and the head, the same in every process."""
    torch.manual_seed(0)
    return AlbertModel(MODEL, VOCAB_SIZE), given(task, "train")[0].head(MODEL, 0.1)


def ours(task: str, what: str) -> harness.Work:
    """Contestant: our fine-tuning, or our prediction and scores."""
    case, inputs = CASES[task], given(task, "train")[1]
    problem, dev, examples = given(task, "dev")
    num_steps = inputs.num_units // case.batch_size
    wanted = finetuning.Hyperparameters(
        num_steps=num_steps,
        batch_size=case.batch_size,
        learning_rate=LEARNING_RATE,
        warmup_steps=0,
        encoder_dropout_prob=0.0,
        classifier_dropout_prob=0.1,
        max_seq_length=case.max_seq_length,
        evaluation_steps=num_steps,
    )
    given_to = (*models(task), inputs, wanted, FinetuningSettings(), 0, torch.device("cpu"))
    finetuner = finetuning.Finetuner(*given_to)

    def train() -> None:
        for _ in range(num_steps):
            finetuner.update()

    if what == "train":
        return harness.units(inputs.num_units, train)
    return harness.units(
        dev.num_units, lambda: problem.score(finetuner.outputs(dev), dev, examples)
    )


def theirs(task: str, what: str, how: str) -> harness.Work:
    """Contestant: `Trainer` on Hugging Face's class for the task, with the weights of ours."""
    case, (encoder, head), is_padded = CASES[task], models(task), how == "random"
    kind = "SequenceClassification" if task == "sst-2" else "QuestionAnswering"
    state = encoder_to_hf_state(encoder) | head.state_dict()
    model = pretraining.in_transformers(kind, encoder.settings, VOCAB_SIZE, state, num_labels=2)
    train, dev = (_features(given(task, split)[1]) for split in ("train", "dev"))
    if not is_padded:
        dev.sort(key=lambda feature: -len(feature["input_ids"]))

    def collate(features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = {name: [feature[name] for feature in features] for name in features[0]}
        width = case.max_seq_length if is_padded else max(map(len, batch["input_ids"]))
        for name in ("input_ids", "token_type_ids", "attention_mask"):
            batch[name] = [value + [0] * (width - len(value)) for value in batch[name]]
        return {name: torch.tensor(values) for name, values in batch.items()}

    settings = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=case.batch_size,
        per_device_eval_batch_size=case.batch_size,
        max_steps=len(train) // case.batch_size,
        learning_rate=LEARNING_RATE,
        weight_decay=0.01,
        train_sampling_strategy=how,
        use_cpu=True,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = transformers.Trainer(model, settings, collate, train)
    if what == "train":
        return harness.units(len(train), trainer.train)
    return harness.units(len(dev), trainer.predict, dev)


def _features(inputs: Inputs) -> list[dict[str, Any]]:
    sequences = inputs.sequences
    targets = {n: t for n, t in inputs.targets.items() if n != "is_impossible"}
    ends = zip(sequences.begins, sequences.lengths, sequences.segment_b_starts, strict=True)
    return [
        {
            "input_ids": sequences.input_ids[begin : begin + length].tolist(),
            "token_type_ids": [0] * int(b_start) + [1] * int(length - b_start),
            "attention_mask": [1] * int(length),
            **{"labels" if n == TARGET else n: int(t[row]) for n, t in targets.items()},
        }
        for row, (begin, length, b_start) in enumerate(ends)
    ]


def measure_tasks(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Compare fine-tuning and scoring."""
    if not harness.PUBLISHED_MODEL.is_file():
        return {}, f"not run: {harness.PUBLISHED_MODEL} is absent; set ALBERT_BENCH_DATA"
    if not find_spec("accelerate"):
        return (
            {},
            "not run: Trainer needs accelerate; see the beginning of benchmarks/finetuning.py",
        )
    cases: dict[str, dict[str, harness.Contestant]] = {}
    for task in options.tasks:
        for what in ("train", "score"):
            cases[f"{task}, {what}"] = {
                "ours": (ours, task, what),
                "padded peer": (theirs, task, what, "random"),
                "peer by length": (theirs, task, what, "group_by_length"),
            }
    goals = dict.fromkeys(cases, "1.5 times the padded peer")
    found, shown = harness.compare(cases, options.rounds, "examples", goals)
    return {"cases": found}, shown


# Minimal pairs


def pairs_to_score(corpus: str) -> tuple[list[str], str]:
    """Return sentences and where they are from."""
    files = minimal_pairs.find_pairs(str(harness.DATA / "tasks")).get("blimp", ())
    if not files:
        draw = random.Random(0)
        texts = [" ".join(text.split()[:10]) for _, text in stages.documents_of(corpus)]
        return draw.choices(texts, k=2 * MADE_PAIRS), "beginnings of documents"
    each = [minimal_pairs.read_pairs("blimp", [file]) for file in files]
    chosen = [pair for pairs in each for pair in pairs[:PAIRS_OF_A_PARADIGM]]
    return [text for pair in chosen for text in (pair.good, pair.bad)], "BLiMP"


def num_pieces(tokenizer: Tokenizer, sentences: Sequence[str]) -> int:
    """Return the pieces of all copies of the sentences."""
    return sum(len(ids) * (len(ids) + 2) for ids in tokenizer.encode(sentences))


def random_model(vocab_size: int) -> AlbertForPretraining:
    """Return the demo's model, not trained, for a process with one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return AlbertForPretraining(DEMO, vocab_size).eval()


@cache
def our_likelihoods(vocab: str, sentences: tuple[str, ...]) -> harness.Work:
    """Contestant: `log_likelihoods`."""
    tokenizer = Tokenizer.load(vocab)
    model = random_model(tokenizer.vocab_size)
    given = (model, tokenizer, sentences, torch.device("cpu"))
    return harness.units(num_pieces(tokenizer, sentences), likelihoods.log_likelihoods, *given)


@cache
def their_likelihoods(vocab: str, sentences: tuple[str, ...]) -> harness.Work:
    """Contestant: a sentence at a time by Hugging Face's class."""
    tokenizer = Tokenizer.load(vocab)
    state = to_hf_state(random_model(tokenizer.vocab_size))
    model = pretraining.in_transformers("MaskedLM", DEMO, tokenizer.vocab_size, state).eval()

    @torch.no_grad()
    def score(ids: list[int]) -> float:
        starts = [tokenizer.pieces[piece].startswith(WORD_MARK) for piece in ids]
        copies = torch.tensor([CLS, *ids, SEP]).repeat(len(ids), 1)
        for place, copy in enumerate(copies):
            end = next((n for n in range(place + 1, len(ids)) if starts[n]), len(ids))
            copy[place + 1 : end + 1] = MASK
        logits = model(input_ids=copies, attention_mask=torch.ones_like(copies)).logits
        places = torch.arange(len(ids))
        log_p = torch.log_softmax(logits[places, places + 1], dim=1)
        return float(log_p[places, torch.tensor(ids)].sum())

    return harness.units(
        num_pieces(tokenizer, sentences), lambda: list(map(score, tokenizer.encode(sentences)))
    )


def measure_pairs(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Compare the scoring of minimal pairs."""
    settings = {"vocabulary.vocab_size": 8_000, "vocabulary.model": ""}
    _, examples = stages.make_examples(folder, PAIRS_TEXT_BYTES, [128], **settings)
    inputs = read_manifest(examples[128]).input_manifests
    sentences, origin = pairs_to_score(inputs["corpus"])
    given = (inputs["vocab"].rpartition("/")[0], tuple(sentences))
    case = {"ours": (our_likelihoods, *given), "peer": (their_likelihoods, *given)}
    found, shown = harness.compare({origin: case}, options.rounds, "pieces", {origin: PAIRS_GOAL})
    return {"sentences": len(sentences), "cases": found}, shown


def main() -> None:
    """Measure what is asked for."""
    parser = harness.arguments(__doc__, rounds=3)
    parser.add_argument("--tasks", nargs="+", choices=CASES, default=list(CASES))
    harness.run(parser, {"finetuning": measure_tasks, "minimal_pairs": measure_pairs})


if __name__ == "__main__":
    main()
