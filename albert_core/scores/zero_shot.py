"""Stage: a pretrained model and sets of minimal pairs -> how often it is right, without training.

It writes the outcome of every pair, a file for each set.
"""

import json
import logging
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from albert_core.conversion.model_files import (
    WEIGHTS,
    check_model,
    manifest_beside,
    model_digest,
)
from albert_core.stage import manifest, storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import TaskError
from albert_core.stage.manifest import StagePlan
from albert_core.stage.progress import report_progress
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import ZERO_SHOT, ZeroShotResult
from albert_core.tasks import minimal_pairs
from albert_core.text.arrow_files import write_arrow
from albert_core.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from albert_core.model.albert import AlbertForPretraining

OUTCOMES = "outcomes"
"""The kind, and the folder, of the files."""
_HEAD = "masked_lm."
_HEADS_THERE = ("predictions.", "cls.predictions.")
"""How the names of the head's weights begin in files of ALBERT and of BERT."""
_MAX_NAMES = 100_000_000
"""The most bytes that safetensors has for the names in a file."""
_PAIRS_AT_A_TIME = 5000
"""Pairs that are scored between two reports of the progress."""

log = logging.getLogger(ZERO_SHOT)


def run(model_folder: str, task_folder: str, work: str) -> str:
    """Score the model on every set of minimal pairs that is there; return the manifest.

    Args:
        model_folder: the pretrained model, in Hugging Face's layout.
        task_folder: the folder that the sets are in; see `find_pairs`.
        work: folder for all results.

    Raises:
        IntegrityError: a file of the model is missing, or changed after it was written.
        TaskError: there are no pairs that the model can score, a file of them is malformed, or the
            model has no masked LM head.
    """
    plan = stage_plan(model_folder, task_folder)
    if done := plan.find(work):
        return done
    check_model(model_folder, plan.inputs["model"])
    return _write_outcomes(plan, work, model_folder, task_folder)


def has_head(model_folder: str) -> bool:
    """Return whether the model has a masked LM head, from the names of its weights alone.

    Where these can't be read it is taken to have one: the stage says what is wrong.
    """
    fs, path = storage.filesystem(storage.join(model_folder, WEIGHTS))
    try:
        with fs.open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            names = json.loads(file.read(min(length, _MAX_NAMES)))
    except (OSError, ValueError):
        return True
    return any(name.startswith(_HEADS_THERE) for name in names)


def stage_plan(model_folder: str, task_folder: str) -> StagePlan:
    """Return what the scores depend on."""
    files = minimal_pairs.find_pairs(task_folder)
    if not files:
        raise TaskError(
            f"{task_folder} has no minimal pairs: expected blimp/*.jsonl, zorro/*.txt or "
            "minimal_pairs/*.jsonl. Give the folder that they are in."
        )
    folders = {"pretraining": model_folder, "task": task_folder}
    digests = minimal_pairs.pair_digests(files).items()
    return StagePlan(
        stage=ZERO_SHOT,
        settings={},
        inputs={
            "model": model_digest(model_folder),
            **{f"{name}-pairs": digest for name, digest in digests},
        },
        code=code_digest(__name__),
        libraries=library_versions("sentencepiece", "torch"),
        input_manifests={n: uri for n, each in folders.items() if (uri := manifest_beside(each))},
    )


def _write_outcomes(plan: StagePlan, work: str, model_folder: str, task_folder: str) -> str:
    """Score the model on all sets; write outcomes and result; return the manifest."""
    from albert_core.model.execution import device_here
    from albert_core.tasks.likelihoods import is_right

    files = minimal_pairs.find_pairs(task_folder)
    sets = {name: minimal_pairs.read_pairs(name, uris) for name, uris in files.items()}
    model, tokenizer = _load_with_head(model_folder)
    device = device_here("float32")
    model.to(device).eval()
    folder = plan.folder(work)
    max_pieces = model.encoder.settings.max_position_embeddings
    shards, accounts, scores = [], [], {}
    for name, read in sets.items():
        pairs, account = minimal_pairs.that_fit(name, read, tokenizer, max_pieces)
        accounts.append(account)
        if not pairs:
            log.warning("zero-shot: no score for %s", account)
            continue
        parts = []
        for begin in range(0, len(pairs), _PAIRS_AT_A_TIME):
            some = pairs[begin : begin + _PAIRS_AT_A_TIME]
            parts.append(is_right(model, tokenizer, some, device))
            report_progress(begin + len(some), len(pairs), f"pairs of {name}")
        right = np.concatenate(parts)
        scores[name] = minimal_pairs.pair_scores(pairs, right)
        log.info("zero-shot: %s: accuracy %s", name, scores[name].accuracy)
        good, bad, paradigms, phenomena = zip(*pairs, strict=True)
        columns = {"phenomena": phenomena, "paradigms": paradigms, "good": good, "bad": bad}
        uri = storage.join(folder, OUTCOMES, f"{name}.arrow")
        write_arrow(pa.table({**columns, "is_right": right}), uri, "zstd")
        shards.append(manifest.shard_of(uri, folder, OUTCOMES, len(pairs)))
    if not scores:
        raise TaskError(
            f"the model in {model_folder}, which has {max_pieces} positions, can score no pair: "
            f"{'; '.join(map(str, accounts))}. Give shorter sentences that its vocabulary tells "
            "apart, or tasks without minimal pairs."
        )
    return plan.write(work, shards, accounts, ZeroShotResult(sets=scores))


def _load_with_head(folder: str) -> tuple["AlbertForPretraining", Tokenizer]:
    """Return the model in a folder, in float32 on the CPU, and its tokenizer.

    Raises:
        IntegrityError: a file is missing or damaged.
        TaskError: the model has no masked LM head.
    """
    from albert_core.conversion.huggingface import check_vocabulary, read_tokenizer
    from albert_core.conversion.initial_weights import read_source

    source = read_source(folder)
    if not any(name.startswith(_HEAD) for name in source.tensors):
        raise TaskError(
            f"{folder} has no masked LM head, which minimal pairs are scored with. Give the folder "
            "of a pretrained model, or tasks without minimal pairs."
        )
    tokenizer = read_tokenizer(folder)
    check_vocabulary(source.vocab_size, tokenizer, f"the model in {folder}")
    return source.start(source.settings), tokenizer


if __name__ == "__main__":
    stage_main(run)
