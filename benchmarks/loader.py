"""The loader against Hugging Face's `datasets` with `DataCollatorForLanguageModeling`.

    python benchmarks/loader.py [--mb 20] [--results FILE]

Examples of 128 and of 512 pieces, with the lengths that the stages give them on real English text.
Real pieces per CPU second, of all threads together: random packed batches, with the shards' masks
and with fresh ones, and whole updates by `UpdateLoader`. All are run in turn; a rate is the best
round's, which others on the machine disturbed least, a ratio the median of the rounds' ratios.

The peer shuffles, masks single pieces and pads; it has no n-grams, no sentence order and is not
asked for segments, all of which it would pay for. It is run where `datasets` is installed, in that
of its formats that is fastest.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from _real_examples import make_examples
from _stage_runs import hardware
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from albert_core.conversion.model_folder import tokenizer_files
from albert_core.text.ragged import Ints
from albert_core.text.records import NUM_SPECIAL
from albert_core.text.tokenizer import Tokenizer
from albert_core.training.loader import FreshMasks, UpdateLoader
from albert_core.training.order import LENGTH_MULTIPLE, padded_length
from albert_core.training.shards import ExampleShards

RESULTS = Path(__file__).parent / "results" / "loader.json"
LENGTHS = (128, 512)
BATCH_SIZE = 256
"""Of a random batch, the same for ours and theirs."""
UPDATE_SIZE, MICRO_BATCH_SIZE = 4096, 32
NUM_RANKS = 8
"""Of the run that shows what one rank pays for knowing the others' predictions."""
ROUNDS = 5
GOALS = {"fresh_m_pieces_per_cpu_s": 20.0, "fresh_times_peer": 10.0}
PEER = "datasets + DataCollatorForLanguageModeling"

_PEER_EXAMPLES = 4096
"""As many suffice for it."""
_MEANINGS = {
    "shards": "random packed batches, masks of the shards",
    "fresh": "random packed batches, fresh masks",
    "loader_shards": "whole updates by length, masks of the shards",
    "loader_fresh": "whole updates by length, fresh masks",
    f"loader_fresh_one_of_{NUM_RANKS}": f"the same, one rank's part of {NUM_RANKS}",
    "peer": PEER,
}
_PADDING = {
    "padding_share_to_full_length": "padding to the full length",
    "padding_share_random": "padding in random micro-batches",
}

Work = Callable[[], int]
"""Does some work and returns the number of real pieces it gave."""


def main() -> None:
    """Make the examples, measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=20.0, help="MB of text")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"batch_size": BATCH_SIZE, "update_size": UPDATE_SIZE}
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
        origin, manifests = make_examples(Path(folder), int(options.mb * 1e6), LENGTHS)
        for length, manifest in manifests.items():
            result[str(length)] = _measure(ExampleShards(manifest, "train"), Path(folder))
    result |= {"text": origin, "peer": _peer_version(), "hardware": hardware()}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(_rounded(result), indent=1) + "\n")
    print(_table(result))
    print(json.dumps(_rounded(result)))


def _measure(examples: ExampleShards, folder: Path) -> dict[str, Any]:
    fresh = FreshMasks(examples.manifest, seed=1)
    order = np.random.default_rng(0).permutation(len(examples))
    works: dict[str, Callable[[], Work]] = {
        "shards": lambda: partial(_random_pieces, examples, order, None),
        "fresh": lambda: partial(_random_pieces, examples, order, fresh),
        "loader_shards": lambda: partial(_update_pieces, _loader(examples, "shards", 1)),
        "loader_fresh": lambda: partial(_update_pieces, _loader(examples, "fresh", 1)),
        f"loader_fresh_one_of_{NUM_RANKS}": lambda: partial(
            _update_pieces, _loader(examples, "fresh", NUM_RANKS)
        ),
    }
    if peer := _peer(examples, folder):
        works["peer"] = lambda: peer
    rates = _rates(works)
    result: dict[str, Any] = {}
    for name, rate in rates.items():
        result[f"{name}_m_pieces_per_cpu_s"] = max(rate) / 1e6
        result[f"{name}_m_pieces_per_cpu_s_median"] = statistics.median(rate) / 1e6
    if peer:
        for name in works:
            ratios = [a / b for a, b in zip(rates[name], rates["peer"], strict=True)]
            result[f"{name}_times_peer"] = statistics.median(ratios)
    return result | _padding_shares(examples, order)


def _rates(works: dict[str, Callable[[], Work]]) -> dict[str, list[float]]:
    """Return pieces per CPU second of each round, after one that does not count.

    To get the work ready is not part of it.
    """
    rates: dict[str, list[float]] = {name: [] for name in works}
    for number in range(ROUNDS + 1):
        for name, prepare in works.items():
            work = prepare()
            begin = time.process_time()
            num_pieces = work()
            if number:
                rates[name].append(num_pieces / (time.process_time() - begin))
    return rates


def _random_pieces(examples: ExampleShards, order: Ints, fresh: FreshMasks | None) -> int:
    """Return the pieces of all examples, in random batches; rows are read by the update."""
    num_pieces = 0
    for indices in np.split(order, range(UPDATE_SIZE, len(order), UPDATE_SIZE)):
        rows = examples.rows(indices)
        if fresh is not None:
            rows = fresh.draw(rows, indices, np.zeros_like(indices))
        ends = [*range(BATCH_SIZE, len(rows), BATCH_SIZE), len(rows)]
        num_pieces += sum(part.batch().num_pieces for part in rows.split(ends))
    return num_pieces


def _update_pieces(loader: UpdateLoader) -> int:
    with loader:
        return sum(batch.num_pieces for update in loader for batch in update.micro_batches)


def _loader(examples: ExampleShards, masks: Literal["shards", "fresh"], ranks: int) -> UpdateLoader:
    """Return the first rank's loader of about one epoch, in updates."""
    return UpdateLoader(
        examples,
        batch_size=UPDATE_SIZE,
        micro_batch_size=MICRO_BATCH_SIZE,
        seed=1,
        rank=0,
        world_size=ranks,
        first_example=0,
        num_updates=max(1, len(examples) // UPDATE_SIZE),
        masks=masks,
        pin_memory=False,
    )


def _padding_shares(examples: ExampleShards, order: Ints) -> dict[str, float]:
    """Return what padding would be: to the full length, and to the longest of a micro-batch."""
    lengths, _ = examples.sizes(order)
    full = padded_length(examples.manifest.facts["max_seq_length"])
    parts = np.split(lengths, range(MICRO_BATCH_SIZE, len(lengths), MICRO_BATCH_SIZE))
    random = sum(len(part) * padded_length(int(part.max())) for part in parts)
    return {
        "padding_share_to_full_length": 1 - lengths.sum() / (len(lengths) * full),
        "padding_share_random": 1 - lengths.sum() / random,
    }


def _peer(examples: ExampleShards, folder: Path) -> Work | None:
    """Return one epoch of the peer's batches, from a mapped data set of the same examples."""
    if find_spec("datasets") is None:
        return None
    import datasets

    datasets.disable_progress_bars()
    vocab = examples.manifest.facts["vocab_manifest"].rpartition("/")[0]
    max_seq_length = examples.manifest.facts["max_seq_length"]
    home = folder / f"peer-{max_seq_length}"
    home.mkdir()
    for name, content in tokenizer_files(Tokenizer.load(vocab), max_seq_length).items():
        (home / name).write_bytes(content)
    rows = examples.rows(np.arange(len(examples))[:_PEER_EXAMPLES])
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
    loader = DataLoader(
        datasets.load_from_disk(home / "examples"),
        batch_size=BATCH_SIZE,
        shuffle=True,
        collate_fn=collate,
    )
    return lambda: sum(int(batch["attention_mask"].sum()) for batch in loader)


def _peer_version() -> str:
    if find_spec("datasets") is None:
        return f"not run: {PEER} is not installed"
    return f"{PEER}: datasets {version('datasets')}, transformers {version('transformers')}"


def _table(result: dict[str, Any]) -> str:
    """Return the figures of both lengths, the goals beside them, in Markdown."""
    lines = [
        f"| million pieces per CPU second (times the peer) | {' | '.join(map(str, LENGTHS))} |",
        "| --- " * (1 + len(LENGTHS)) + "|",
    ]
    for name, meaning in _MEANINGS.items():
        cells = [_cell(result[str(length)], name) for length in LENGTHS]
        if any(cells):
            lines.append(f"| {meaning} | {' | '.join(cells)} |")
    for name, meaning in _PADDING.items():
        shares = [f"{result[str(length)][name]:.1%}" for length in LENGTHS]
        lines.append(f"| {meaning} | {' | '.join(shares)} |")
    return "\n".join(lines)


def _cell(figures: dict[str, float], name: str) -> str:
    rate = f"{name}_m_pieces_per_cpu_s"
    if rate not in figures:
        return ""
    times = figures.get(f"{name}_times_peer")
    missed = any(
        figures[g] < goal for g, goal in GOALS.items() if g.startswith(f"{name}_") and g in figures
    )
    return (
        f"{figures[rate]:.1f}"
        + (f" ({times:.0f})" if times and name != "peer" else "")
        + (" MISSED" if missed else "")
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
