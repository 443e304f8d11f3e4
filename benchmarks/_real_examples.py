"""Examples as the stages make them of real English text, for benchmarks of what takes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _english_text import write_english
from _stage_runs import run_stage, write_recipe


def make_examples(
    folder: Path, num_bytes: int, lengths: Sequence[int], **settings: Any
) -> tuple[str, dict[int, str]]:
    """Return where the text is from, and the manifest of its examples of each length.

    Args:
        folder: for the text and all results.
        num_bytes: of text.
        lengths: max_seq_length of each set of examples.
        **settings: of the stages, by their path, that differ from `write_recipe`'s.
    """
    origin = write_english(folder / "text", num_bytes)
    manifests, work = {}, str(folder / "work")
    for length in lengths:
        recipe = write_recipe(
            folder / f"{length}.json",
            folder / "text",
            **{"examples.max_seq_length": length} | settings,
        )
        corpus = run_stage("pipelines.clean_corpus", recipe, 2, work=work).manifest
        vocab = run_stage("pipelines.train_vocab", recipe, 2, corpus=corpus, work=work).manifest
        inputs = {"corpus": corpus, "vocab": vocab, "work": work}
        manifests[length] = run_stage("pipelines.make_examples", recipe, 2, None, **inputs).manifest
    return origin, manifests
