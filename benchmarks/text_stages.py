"""Text to shards against its limit: SentencePiece encoding the same sentences, and nothing else.

    python benchmarks/text_stages.py [source]

Prints CPU seconds of each stage, over all its processes, and the ratio of SentencePiece alone to
the stages that clean and make examples (1 would be: everything else costs nothing). The source is
the recipe tiny's, unless one is given.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from albert_core.contract.arrow_files import read_arrow
from albert_core.contract.manifest import read_manifest
from albert_core.contract.stage_command import stage_argv
from albert_core.contract.tokenizer import Tokenizer, normalise_for_pieces
from flows.recipe import load_recipe
from flows.stage_process import run_stage_process


def cpu_seconds_of_children() -> float:
    """Return user and system time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_stage(module: str, recipe: str, **inputs: str) -> tuple[str, float]:
    """Return the manifest of a stage and its CPU seconds."""
    before = cpu_seconds_of_children()
    manifest = run_stage_process(stage_argv(module, recipe, **inputs), lambda line: None)
    return manifest, cpu_seconds_of_children() - before


def sentencepiece_seconds(corpus: str, vocab: str) -> tuple[float, int, int]:
    """Return CPU seconds to encode the corpus once, its bytes and its pieces."""
    tokenizer = Tokenizer.load(str(Path(vocab).parent))
    tables = [
        read_arrow(str(Path(corpus).parent / shard.path))
        for shard in read_manifest(corpus).shards_of("documents")
    ]
    texts = [text.split("\n") for table in tables for text in table["text"].to_pylist()]
    sentences = [normalise_for_pieces(sentence, True) for text in texts for sentence in text]
    begin = time.process_time()
    pieces = tokenizer.processor.encode(sentences, num_threads=1)
    seconds = time.process_time() - begin
    return seconds, sum(len(s.encode()) for s in sentences), sum(map(len, pieces))


def main() -> None:
    """Run the three stages and print a line of JSON."""
    overrides = ["examples.dupe_factor=1", "examples.tfrecord=false"]
    recipe = load_recipe("tiny", overrides, sys.argv[1] if len(sys.argv) > 1 else None)
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "recipe.json"
        path.write_text(recipe.model_dump_json())
        corpus, clean = run_stage("pipelines.clean_corpus", str(path), work=work)
        vocab, train = run_stage("pipelines.train_vocab", str(path), corpus=corpus, work=work)
        _, make = run_stage(
            "pipelines.make_examples", str(path), corpus=corpus, vocab=vocab, work=work
        )
        limit, num_bytes, num_pieces = sentencepiece_seconds(corpus, vocab)
    result = {
        "text_mb": round(num_bytes / 1e6, 1),
        "pieces": num_pieces,
        "clean_corpus_cpu_s": round(clean, 1),
        "train_vocab_cpu_s": round(train, 1),
        "make_examples_cpu_s": round(make, 1),
        "sentencepiece_cpu_s": round(limit, 2),
        "ratio_to_limit_make_examples": round(limit / make, 2),
        "ratio_to_limit_clean_and_make": round(limit / (clean + make), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
