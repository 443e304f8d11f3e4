"""Fine-tuning and scoring on SST-2 and SQuAD 1.1 against Hugging Face's `Trainer`.

    PYTHONPATH=<folder of accelerate> python benchmarks/finetuning.py [--size base] [--results FILE]

The same weights, examples, batch sizes and longest lengths, on the CPU, in turn in one process.
The peer twice: as its examples run_glue.py and run_qa.py have it by default, every sequence padded
to the longest length; and at its best, with dynamic padding and batches by length
(`group_by_length`). Training is one epoch of updates with the optimizer and the clipping; scoring
is the prediction of as many others, and for us of SQuAD also the search for the answers.
Speed is in examples (of SQuAD windows) per CPU second, as the median of the rounds' ratios.

`Trainer` needs `accelerate`, which is no dependency of this project:
``pip install --target /tmp/hftrain --no-deps accelerate psutil``.
Without the files of the tasks, sequences of such lengths are made up.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait take no CPU time

import numpy as np
import torch
from _stage_runs import PUBLISHED_MODEL, hardware, report
from transformers import (
    AlbertConfig,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from albert_core.config import FinetuningSettings, ModelSettings
from albert_core.conversion.huggingface import hf_config
from albert_core.conversion.model_folder import encoder_to_hf_state
from albert_core.finetuning.hyperparameters import Hyperparameters
from albert_core.finetuning.loop import Finetuner
from albert_core.model.albert import AlbertModel
from albert_core.tasks.catalogue import TASKS, TaskFiles, read_examples
from albert_core.tasks.problem import Head, Inputs
from albert_core.tasks.problems import problem_of
from albert_core.tasks.sequences import Sequences
from albert_core.text.tokenizer import Tokenizer

RESULTS = Path(__file__).parent / "results" / "finetuning.json"
DATA = Path(os.environ.get("ALBERT_BENCH_TASKS", "/work/shared/data/tasks"))
SIZES = {
    "small": ModelSettings(
        hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024
    ),
    "base": ModelSettings(),
}
VOCAB_SIZE, GOAL, ROUNDS, LEARNING_RATE = 30_000, 1.5, 3, 2e-5
PEERS = {"padded": "random", "by length": "group_by_length"}
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A task as its example script has it by default."""

    task: str
    files: dict[str, str]
    batch_size: int
    max_seq_length: int
    num_units: int
    """Texts or windows of an epoch, and as many to score."""
    made_length: tuple[float, float]
    """Mean and deviation of made sequences, in pieces."""


CASES = {
    "SST-2": Case(
        "sst-2",
        {split: f"glue/SST-2/{split}.tsv" for split in ("train", "dev")},
        batch_size=32,
        max_seq_length=128,
        num_units=256,
        made_length=(14, 9),
    ),
    "SQuAD 1.1": Case(
        "squad-1.1",
        {
            "train": "squad/train_prefix/train-v1.1.prefix_recovered.json",
            "dev": "squad/squad-v1.1-articles-0-35.json",
        },
        batch_size=12,
        max_seq_length=384,
        num_units=48,
        made_length=(170, 60),
    ),
}


@dataclass(frozen=True)
class Split:
    """Some units of a split, and what scores them."""

    inputs: Inputs
    score: Callable[[dict[str, Any]], object]


def read_split(case: Case, split: str, seed: int) -> Split:
    """Return ``num_units`` units drawn from the task's files, or made up."""
    task = TASKS[case.task]
    problem, path = problem_of(task, FinetuningSettings()), DATA / case.files[split]
    if not (path.exists() and PUBLISHED_MODEL.exists()):
        return Split(_made_inputs(case, seed), lambda outputs: None)
    files = TaskFiles(task, {split: (str(path),)})
    examples = _some(read_examples(task, files, split), case.num_units, seed)
    tokenizer = Tokenizer(PUBLISHED_MODEL.read_bytes())
    inputs = problem.inputs(examples, tokenizer, case.max_seq_length)
    return Split(inputs, lambda outputs: problem.score(outputs, inputs, examples))


def _some(examples: Any, number: int, seed: int) -> Any:
    """Return ``number`` of the examples, drawn at random."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(examples))[:number])
    per_example = {
        name: values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
        for name, values in vars(examples).items()
        if name not in ("paragraphs", "skipped") and values is not None
    }
    return type(examples)(**vars(examples) | per_example)


def _made_inputs(case: Case, seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    lengths = draw.normal(*case.made_length, case.num_units).round().astype(np.int64)
    lengths = lengths.clip(6, case.max_seq_length)
    sequences = Sequences(
        draw.integers(5, VOCAB_SIZE, lengths.sum()).astype(np.int32), lengths, lengths // 3
    )
    if case.task == "sst-2":
        return Inputs(sequences, {"target": draw.integers(0, 2, case.num_units)}, [])
    ends = lengths - 2
    targets = {"start_positions": ends, "end_positions": ends, "is_impossible": ends < 0}
    return Inputs(sequences, targets, [])


class Ours:
    """Our fine-tuning and prediction."""

    def __init__(self, case: Case, encoder: AlbertModel, head: Head, train: Split) -> None:
        self.num_steps = train.inputs.num_units // case.batch_size
        wanted = Hyperparameters(
            num_steps=self.num_steps,
            batch_size=case.batch_size,
            learning_rate=LEARNING_RATE,
            warmup_steps=0,
            encoder_dropout_prob=0.0,
            classifier_dropout_prob=0.1,
            max_seq_length=case.max_seq_length,
            evaluation_steps=self.num_steps,
        )
        self.finetuner = Finetuner(
            encoder, head, train.inputs, wanted, FinetuningSettings(), 0, CPU
        )

    def train(self) -> None:
        """Do an epoch of updates."""
        for _ in range(self.num_steps):
            self.finetuner.update()

    def score(self, dev: Split) -> None:
        """Predict and score all of ``dev``."""
        dev.score(self.finetuner.outputs(dev.inputs))


class Peer:
    """`Trainer` on Hugging Face's class for the task, with the weights of ours."""

    def __init__(
        self, case: Case, encoder: AlbertModel, head: Head, train: Split, how: str, scratch: str
    ) -> None:
        config = hf_config(encoder.settings, VOCAB_SIZE) | {"num_labels": 2}
        config.pop("albert_core")
        is_squad = case.task != "sst-2"
        model_class = AlbertForQuestionAnswering if is_squad else AlbertForSequenceClassification
        model = model_class(AlbertConfig(**config))
        missing, _ = model.load_state_dict(
            encoder_to_hf_state(encoder) | head.state_dict(), strict=False
        )
        assert not missing
        self.width = case.max_seq_length if how == "padded" else None
        self.trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=scratch,
                per_device_train_batch_size=case.batch_size,
                per_device_eval_batch_size=case.batch_size,
                max_steps=train.inputs.num_units // case.batch_size,
                learning_rate=LEARNING_RATE,
                weight_decay=0.01,
                train_sampling_strategy=PEERS[how],
                use_cpu=True,
                report_to="none",
                logging_strategy="no",
                save_strategy="no",
                disable_tqdm=True,
                remove_unused_columns=False,
            ),
            train_dataset=_features(train.inputs),
            data_collator=self._padded,
        )

    def train(self) -> None:
        """Do an epoch of updates."""
        self.trainer.train()

    def score(self, dev: Split) -> None:
        """Predict all of ``dev``, which is sorted by length unless padded to the longest."""
        features = _features(dev.inputs)
        if self.width is None:
            features.sort(key=lambda feature: -len(feature["input_ids"]))
        self.trainer.predict(features)

    def _padded(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = self.width or max(len(feature["input_ids"]) for feature in features)
        batch = {}
        for name in features[0]:
            values = [feature[name] for feature in features]
            if isinstance(values[0], list):
                values = [value + [0] * (width - len(value)) for value in values]
            batch[name] = torch.tensor(values)
        return batch


def _features(inputs: Inputs) -> list[dict[str, Any]]:
    sequences, targets = inputs.sequences, inputs.targets
    ends = np.cumsum(sequences.lengths)
    features = []
    for row, (end, length) in enumerate(zip(ends, sequences.lengths, strict=True)):
        in_b = np.arange(length) >= sequences.segment_b_starts[row]
        feature = {
            "input_ids": sequences.input_ids[end - length : end].tolist(),
            "token_type_ids": in_b.astype(int).tolist(),
            "attention_mask": [1] * int(length),
        }
        if "target" in targets:
            feature["labels"] = int(targets["target"][row])
        else:
            feature |= {n: int(targets[n][row]) for n in ("start_positions", "end_positions")}
        features.append(feature)
    return features


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(case: Case, settings: ModelSettings, scratch: str) -> dict[str, Any]:
    """Return the figures of one task."""
    torch.manual_seed(0)
    train, dev = (read_split(case, split, seed) for seed, split in enumerate(("train", "dev")))
    encoder = AlbertModel(settings, VOCAB_SIZE)
    head = problem_of(TASKS[case.task], FinetuningSettings()).head(settings, 0.1)
    seconds: dict[str, dict[str, list[float]]] = {"train": {}, "score": {}}
    for number in range(ROUNDS + 1):
        contestants: dict[str, Ours | Peer] = {
            how: Peer(case, encoder, head, train, how, scratch) for how in PEERS
        }
        contestants["ours"] = Ours(case, encoder, head, train)
        for name, contestant in contestants.items():
            spent = {
                "train": cpu_seconds(contestant.train),
                "score": cpu_seconds(lambda c=contestant: c.score(dev)),
            }
            if number:  # the first round fetches memory
                for what, value in spent.items():
                    seconds[what].setdefault(name, []).append(value)
    mean_length = float(train.inputs.sequences.lengths.mean())
    figures: dict[str, Any] = {"mean_length": mean_length, "num_train": train.inputs.num_units}
    for what, split in (("train", train), ("score", dev)):
        ours = seconds[what]["ours"]
        figures[f"{what}_per_cpu_s"] = split.inputs.num_units / statistics.median(ours)
        for peer in PEERS:
            ratios = [a / b for a, b in zip(seconds[what][peer], ours, strict=True)]
            figures[f"{what}_times_{peer.replace(' ', '_')}"] = statistics.median(ratios)
    return figures


def table(result: dict[str, Any]) -> str:
    """Return the figures with their goal, in Markdown."""
    lines = [
        "| task | work | examples per CPU s | times the padded peer | times the peer by length |",
        "| --- | --- | --- | --- | --- |",
    ]
    for task, figures in result["cases"].items():
        lines += [
            f"| {task} | {what} | {figures[f'{what}_per_cpu_s']:,.1f} | "
            f"{figures[f'{what}_times_padded']:.2f} (goal {GOAL}) | "
            f"{figures[f'{what}_times_by_length']:.2f} |"
            for what in ("train", "score")
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure both tasks; print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file to write")
    options = parser.parse_args()
    cases = {}
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as scratch:
        for name, case in CASES.items():
            cases[name] = measure(case, SIZES[options.size], scratch)
            print(name, cases[name], file=sys.stderr)
    result = {
        "cases": cases,
        "size": options.size,
        "data": str(DATA) if DATA.exists() else "made up",
        "threads": torch.get_num_threads(),
        "hardware": hardware() | {"torch": torch.__version__},
    }
    report(result, table(result), options.results)


if __name__ == "__main__":
    main()
