"""The loader against Hugging Face's `datasets` with `DataCollatorForLanguageModeling`.

    python -m benchmarks.loader [--mb 20] [--rounds 5] [--results FILE]

Examples of 128 and of 512 pieces, with the lengths that the stages give them on real English text.
Real pieces per CPU second, of all threads together: random packed batches, with the shards' masks
and with fresh ones, and whole updates by `UpdateLoader`; each in a process of its own, in turn.

The peer shuffles, masks single pieces and pads; it has no n-grams, no sentence order and is not
asked for segments, all of which it would pay for. It is run where `datasets` is installed, in that
of its formats that is fastest.
"""

import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from albert_core.config import TrainingSettings
from albert_core.conversion.huggingface import tokenizer_files
from albert_core.text.records import NUM_SPECIAL, Ints
from albert_core.text.tokenizer import Tokenizer
from albert_core.training.loader import ExampleShards, FreshMasks, UpdateLoader
from albert_core.training.order import LENGTH_MULTIPLE
from albert_core.training.ranks import Ranks
from benchmarks.english_text import make_examples
from benchmarks.harness import Contestant, Work, arguments, in_turns, report, table

LENGTHS = (128, 512)
BATCH_SIZE = 256
"""Of a random batch, the same for ours and theirs."""
UPDATE_SIZE, MICRO_BATCH_SIZE = 4096, 32
NUM_RANKS = 8
"""Of the run that shows what one rank pays for knowing the others' predictions."""
GOAL = "20 million, 10 times the peer"
PEER = "datasets + DataCollatorForLanguageModeling"
_PEER_EXAMPLES = 4096
"""As many suffice for it."""


@cache
def _examples(manifest: str) -> tuple[ExampleShards, Ints]:
    """Return the examples, and an order of them."""
    torch.set_num_threads(1)
    examples = ExampleShards(manifest, "train")
    return examples, np.random.default_rng(0).permutation(len(examples))


@cache
def random_batches(manifest: str, has_fresh_masks: bool) -> Work:
    """Contestant: all examples, in random packed batches; rows are read by the update."""
    examples, order = _examples(manifest)
    fresh = FreshMasks(examples.manifest, seed=1) if has_fresh_masks else None

    def work() -> int:
        num_pieces = 0
        for indices in np.split(order, range(UPDATE_SIZE, len(order), UPDATE_SIZE)):
            rows = examples.rows(indices)
            if fresh is not None:
                rows = fresh.draw(rows, indices, np.zeros_like(indices))
            ends = [*range(BATCH_SIZE, len(rows), BATCH_SIZE), len(rows)]
            num_pieces += sum(len(part.batch().input_ids) for part in rows.split(ends))
        return num_pieces

    return work


def updates(manifest: str, masks: Literal["shards", "fresh"], ranks: int) -> Work:
    """Contestant: the first rank's part of about one epoch, in whole updates."""
    examples, _ = _examples(manifest)
    settings = TrainingSettings(
        batch_size=UPDATE_SIZE, micro_batch_size=MICRO_BATCH_SIZE, seed=1, masks=masks
    )
    first_of_all = Ranks(0, ranks, torch.device("cpu"))
    num_updates = max(1, len(examples) // UPDATE_SIZE)
    loader = UpdateLoader(
        examples, settings, first_of_all, first_example=0, num_updates=num_updates
    )

    def work() -> int:
        with loader:
            return sum(len(batch.input_ids) for update in loader for batch in update.micro_batches)

    return work


@cache
def peer(manifest: str, folder: str) -> Work:
    """Contestant: one epoch of the peer's batches, from a mapped data set of the same examples."""
    import datasets

    datasets.disable_progress_bars()
    examples, order = _examples(manifest)
    max_seq_length = examples.result.max_seq_length
    vocab = examples.result.vocab_manifest.rpartition("/")[0]
    home = Path(folder, f"peer-{max_seq_length}")
    home.mkdir()
    for name, content in tokenizer_files(Tokenizer.load(vocab), max_seq_length).items():
        (home / name).write_bytes(content)
    rows = examples.rows(np.sort(order)[:_PEER_EXAMPLES])
    ids = np.split(rows.unmasked().astype(np.int32), np.cumsum(rows.lengths)[:-1])
    # With this column the collator need not look for special pieces itself.
    is_special = [(part < NUM_SPECIAL).astype(np.int8) for part in ids]
    columns = {"input_ids": ids, "special_tokens_mask": is_special}
    datasets.Dataset.from_dict(columns).save_to_disk(home / "examples")
    collate = DataCollatorForLanguageModeling(
        AutoTokenizer.from_pretrained(home),
        mlm_probability=0.15,
        pad_to_multiple_of=LENGTH_MULTIPLE,
    )
    stored = datasets.load_from_disk(home / "examples")
    loader = DataLoader(stored, batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate)
    return lambda: sum(int(batch["attention_mask"].sum()) for batch in loader)


def main() -> None:
    """Make the examples, measure, print and write the results."""
    parser = arguments(__doc__, "loader", rounds=5)
    parser.add_argument("--mb", type=float, default=20.0, help="MB of text")
    options = parser.parse_args()
    result: dict[str, Any] = {"batch_size": BATCH_SIZE, "update_size": UPDATE_SIZE}
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
        result["text"], made = make_examples(Path(folder), int(options.mb * 1e6), LENGTHS)
        for length, manifest in made.items():
            works: dict[str, Contestant] = {
                "random packed batches, masks of the shards": (random_batches, manifest, False),
                "random packed batches, fresh masks": (random_batches, manifest, True),
                "whole updates, masks of the shards": (updates, manifest, "shards", 1),
                "whole updates, fresh masks": (updates, manifest, "fresh", 1),
                f"one rank's part of {NUM_RANKS}": (updates, manifest, "fresh", NUM_RANKS),
            }
            if find_spec("datasets"):
                works[PEER] = (peer, manifest, folder)
            found = in_turns(works, options.rounds)
            result[str(length)] = found.result(PEER)
            for name in works:
                times = found.times(name, PEER) if PEER in works else ""
                rows.append([length, name, found.rate(name), times])
    head = ["length", "work", "pieces per CPU second (spread)", f"times the peer (goal {GOAL})"]
    report(result | {"peer": PEER}, table(head, rows), options.results)


if __name__ == "__main__":
    main()
