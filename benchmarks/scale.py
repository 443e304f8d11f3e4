"""What large corpora would take: hours and cost, from the rates that `data_pipeline.py` measured.

    python benchmarks/scale.py [--price 0.04] [--dupe-factor 10] [--results FILE]

An extrapolation, not a measurement: CPU seconds are taken to grow with the text, which holds for
all steps that see a document or an example; what grows otherwise is listed below the table with
its numbers. Only the reads of the shuffle grow with the square of the text: every example shard
opens every part. What is sent and grouped, a name for each part and each shard, grows with the
text. Start-up and the vocabulary, which is trained on a sample, are left out.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "data_pipeline.json"
TEXTS = {"16 GB (Wikipedia, books)": 16e9, "160 GB": 160e9, "10 TB": 10e12}
CORES = (16, 256, 4096)
MIN_SLICE_BYTES = 16_000
"""Below this the shuffle's slices cost more to find and open than to read."""
REPORT_BYTES = 1_000
"""Of a shard, in a manifest and in what the workers report to one place."""
TALLY_BYTES = 240_000
"""Of a part: how often each of 30,000 pieces is in it, at 8 bytes."""
HASH_BYTES = 100
"""Of a document's hashes and place, while they are grouped: some 25 bytes, four times in Beam's
local runner. Source: DESIGN.md section 6."""


@dataclass(frozen=True)
class Rates:
    """Costs for each byte of text, measured on one core."""

    clean_s: float
    first_copy_s: float
    further_copy_s: float
    documents: float
    example_bytes: float
    """Of uncompressed Arrow shards, one copy."""
    efficiency: float
    """Wall speed-up of two workers over one, for each worker: at most 1."""

    def cpu_hours(self, text_bytes: float, dupe_factor: int) -> float:
        """Return core hours of clean_corpus and make_examples together."""
        make_s = self.first_copy_s + (dupe_factor - 1) * self.further_copy_s
        return text_bytes * (self.clean_s + make_s) / 3600


def rates_of(result: dict[str, Any]) -> Rates:
    """Return the rates in a results file."""
    text_bytes = result["text_mb"] * 1e6
    return Rates(
        clean_s=result["clean_cpu_s"] / text_bytes,
        first_copy_s=result["make_cpu_s"] / text_bytes,
        further_copy_s=result["make_cpu_s_per_further_copy"] / text_bytes,
        documents=result["documents"] / text_bytes,
        example_bytes=result["mb_per_million_pieces_none"] * result["pieces"] / text_bytes,
        efficiency=min(1.0, result["speed_up_of_2_workers"] / 2),
    )


def cost_table(rates: Rates, dupe_factor: int, price: float) -> list[str]:
    """Return hours and cost of each text on each number of cores, in Markdown."""
    head = ["text", "core hours", *(f"hours on {cores:,} cores" for cores in CORES), "cost, USD"]
    rows = [head, ["---"] * len(head)]
    for name, text_bytes in TEXTS.items():
        paid = rates.cpu_hours(text_bytes, dupe_factor) / rates.efficiency
        hours = [_number(paid / cores) for cores in CORES]
        rows.append([name, _number(paid), *hours, _number(paid * price)])
    return [f"| {' | '.join(row)} |" for row in rows]


def growth_table(rates: Rates, dupe_factor: int, part_mb: float, shard_mb: float) -> list[str]:
    """Return what does not simply grow with the text for each core, in Markdown."""
    rows = [
        ["", *TEXTS],
        ["---"] * (1 + len(TEXTS)),
        ["examples on disk, GB; as much again while they are shuffled"],
        ["documents, million"],
        [f"their hashes while they are grouped, GB (at {HASH_BYTES} bytes)"],
        [f"parts of the corpus, {part_mb:g} MB each"],
        [f"example shards, {shard_mb:g} MB each"],
        ["names sent through the shuffle, thousand: parts + shards"],
        ["reads of the shuffle, million: parts x shards, so with the square of the text"],
        ["mean slice that is read, bytes"],
        [f"shard_mb from which slices have {MIN_SLICE_BYTES:,} bytes"],
        ["reports and manifest, read in one place, MB"],
        ["tallies of the parts, read in one place one by one, GB"],
    ]
    for text_bytes in TEXTS.values():
        examples = text_bytes * rates.example_bytes * dupe_factor
        parts = max(1.0, text_bytes / (part_mb * 1e6))
        shards = max(1.0, examples / (shard_mb * 1e6))
        column = [
            examples / 1e9,
            text_bytes * rates.documents / 1e6,
            text_bytes * rates.documents * HASH_BYTES / 1e9,
            parts,
            shards,
            (parts + shards) / 1e3,
            parts * shards / 1e6,
            examples / (parts * shards),
            MIN_SLICE_BYTES * parts / 1e6,
            (parts + shards) * REPORT_BYTES / 1e6,
            parts * TALLY_BYTES / 1e9,
        ]
        for row, value in zip(rows[2:], column, strict=True):
            row.append(_number(value))
    return [f"| {' | '.join(row)} |" for row in rows]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    """Print the tables and what they rest on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="of data_pipeline.py")
    parser.add_argument("--price", type=float, default=0.04, help="USD a core hour")
    parser.add_argument("--dupe-factor", type=int, default=10, help="copies with their own masks")
    parser.add_argument("--part-mb", type=float, default=8.0, help="MB of text in a corpus shard")
    parser.add_argument("--shard-mb", type=float, default=64.0, help="MB of an example shard")
    options = parser.parse_args()
    if not options.results.exists():
        parser.error(f"{options.results} is missing: run benchmarks/data_pipeline.py first")
    result = json.loads(options.results.read_text())
    rates, hardware = rates_of(result), result["hardware"]
    print(
        f"From {result['text_mb']:.0f} MB measured on {hardware['date']}, {hardware['cpu']}, "
        f"{hardware['cores']} cores. dupe_factor {options.dupe_factor}, {options.price:g} USD a "
        f"core hour, {rates.efficiency:.0%} of a core's time of use (two workers measured; more "
        "were not).\n"
    )
    print("\n".join(cost_table(rates, options.dupe_factor, options.price)))
    print("\nWhat to look at besides:\n")
    print("\n".join(growth_table(rates, options.dupe_factor, options.part_mb, options.shard_mb)))


if __name__ == "__main__":
    main()
