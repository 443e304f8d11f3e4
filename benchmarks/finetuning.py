"""Fine-tuning and scoring on SST-2 and SQuAD 1.1 against Hugging Face's `Trainer`.

    PYTHONPATH=<folder of accelerate> python -m benchmarks.finetuning [--size base]
        [--tasks sst-2 squad-1.1] [--rounds 3] [--results FILE]

The same weights, examples, batch sizes and longest lengths, on the CPU, each in a process of its
own, in turn. The peer twice: as its examples run_glue.py and run_qa.py have it by default, every
sequence padded to the longest length; and at its best, with dynamic padding and batches by length
(`group_by_length`). Training is one epoch of updates with the optimizer and the clipping; scoring
is the prediction of as many others, and for us also the scores, of SQuAD with the search for the
answers. Speed is in examples (of SQuAD windows) per CPU second.

`Trainer` needs `accelerate`, which is no dependency of this project:
``pip install --target /tmp/hftrain --no-deps accelerate psutil``.
"""

import os
import tempfile
from dataclasses import dataclass
from functools import cache
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait take no CPU time

import numpy as np
import torch

from albert_core.config import FinetuningSettings, ModelSettings
from albert_core.conversion.huggingface import encoder_to_hf_state
from albert_core.finetuning.finetuned_model import problem_of
from albert_core.finetuning.finetuning import Finetuner, Hyperparameters
from albert_core.model.albert import AlbertModel
from albert_core.tasks.catalogue import TASKS, TaskFiles, read_examples
from albert_core.tasks.problem import Head, Inputs, Problem
from albert_core.text.tokenizer import Tokenizer
from benchmarks import harness
from benchmarks.training_step import in_transformers

SMALL = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4}
SIZES = {"small": ModelSettings(**SMALL, intermediate_size=1024), "base": ModelSettings()}
VOCAB_SIZE, GOAL, LEARNING_RATE = 30_000, 1.5, 2e-5
PEERS = {"padded peer": "random", "peer by length": "group_by_length"}
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
def given(task_name: str, split: str) -> tuple[Problem, Inputs, Any]:
    """Return the task's problem, some examples drawn at random, and their inputs."""
    case, task = CASES[task_name], TASKS[task_name]
    problem = problem_of(task, FinetuningSettings())
    every = read_examples(TaskFiles(task, {split: (case.files[split],)}), split)
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


def models(task: str, size: str) -> tuple[AlbertModel, Head]:
    """Return the encoder and the head, the same in every process."""
    torch.manual_seed(0)
    return AlbertModel(SIZES[size], VOCAB_SIZE), given(task, "train")[0].head(SIZES[size], 0.1)


def ours(task: str, size: str, what: str) -> harness.Work:
    """Contestant: our fine-tuning, or our prediction and scores."""
    case, inputs = CASES[task], given(task, "train")[1]
    problem, dev, examples = given(task, "dev")
    num_steps = inputs.num_units // case.batch_size
    wanted = Hyperparameters(
        num_steps=num_steps,
        batch_size=case.batch_size,
        learning_rate=LEARNING_RATE,
        warmup_steps=0,
        encoder_dropout_prob=0.0,
        classifier_dropout_prob=0.1,
        max_seq_length=case.max_seq_length,
        evaluation_steps=num_steps,
    )
    given_to = (*models(task, size), inputs, wanted, FinetuningSettings(), 0, torch.device("cpu"))
    finetuner = Finetuner(*given_to)

    def work() -> int:
        if what == "score":
            problem.score(finetuner.outputs(dev), dev, examples)
            return dev.num_units
        for _ in range(num_steps):
            finetuner.update()
        return inputs.num_units

    return work


def theirs(task: str, size: str, what: str, how: str) -> harness.Work:
    """Contestant: `Trainer` on Hugging Face's class for the task, with the weights of ours."""
    import transformers

    case, (encoder, head), is_padded = CASES[task], models(task, size), how == "random"
    kind = "SequenceClassification" if task == "sst-2" else "QuestionAnswering"
    state = encoder_to_hf_state(encoder) | head.state_dict()
    model = in_transformers(kind, encoder.settings, VOCAB_SIZE, state, num_labels=2)
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

    def work() -> int:
        if what == "score":
            trainer.predict(dev)
            return len(dev)
        trainer.train()
        return len(train)

    return work


def _features(inputs: Inputs) -> list[dict[str, Any]]:
    sequences, names = inputs.sequences, {"target": "labels"}
    targets = {names.get(n, n): t for n, t in inputs.targets.items() if n != "is_impossible"}
    return [
        {
            "input_ids": sequences.input_ids[begin : begin + length].tolist(),
            "token_type_ids": (np.arange(length) >= sequences.segment_b_starts[row])
            .astype(int)
            .tolist(),
            "attention_mask": [1] * int(length),
            **{name: int(values[row]) for name, values in targets.items()},
        }
        for row, (begin, length) in enumerate(zip(sequences.begins, sequences.lengths, strict=True))
    ]


def main() -> None:
    """Measure the tasks; print and write the results."""
    parser = harness.arguments(__doc__, "finetuning", rounds=3)
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model")
    parser.add_argument("--tasks", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    if not harness.PUBLISHED_MODEL.is_file():
        print(f"not run: {harness.PUBLISHED_MODEL} is absent; set ALBERT_BENCH_DATA")
        return
    cases: dict[str, Any] = {}
    rows: list[list[object]] = []
    for task in options.tasks:
        for what in ("train", "score"):
            case = (task, options.size, what)
            contestants: dict[str, harness.Contestant] = {"ours": (ours, *case)}
            contestants |= {peer: (theirs, *case, how) for peer, how in PEERS.items()}
            found = harness.in_turns(contestants, options.rounds)
            times = {peer: found.times("ours", peer) for peer in PEERS}
            rows.append([task, what, found.rate("ours"), *times.values()])
            cases[f"{task}, {what}"] = found.result() | {
                "times": {peer: vars(figure) for peer, figure in times.items()}
            }
    result = {"cases": cases, "size": options.size}
    result["hardware"] = {"threads": torch.get_num_threads()}
    head = ["task", "work", "examples per CPU s", f"times the padded peer (goal {GOAL})"]
    head.append("times the peer by length")
    harness.report(result, harness.table(head, rows), options.results)


if __name__ == "__main__":
    main()
