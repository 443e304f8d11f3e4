"""Which sentence of each minimal pair a pretrained model finds more likely, as files."""

import logging

import numpy as np
import pyarrow as pa

from albert_core.conversion.huggingface import check_vocabulary, read_tokenizer
from albert_core.conversion.initial_weights import read_source
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.execution import device_here
from albert_core.stage import errors, manifest, results, storage
from albert_core.stage.log import report_progress
from albert_core.tasks.likelihoods import is_right
from albert_core.tasks.minimal_pairs import PairFiles, pair_scores, read_pairs, that_fit
from albert_core.text.arrow_files import write_arrow
from albert_core.text.tokenizer import Tokenizer

OUTCOMES = "outcomes"
"""The kind, and the folder, of the files."""
_HEAD = "masked_lm."
_PAIRS_AT_A_TIME = 5000
"""Pairs that are scored between two reports of the progress."""

log = logging.getLogger("zero-shot")


def write_outcomes(plan: manifest.StagePlan, work: str, model_folder: str, files: PairFiles) -> str:
    """Score the model on all sets; write outcomes and result; return the manifest.

    Args:
        plan: the plan of the stage.
        work: folder for all results.
        model_folder: the model's folder.
        files: the files of each set.

    Raises:
        IntegrityError: a file of the model is damaged.
        TaskError: a file of pairs is malformed, no pair fits the model, or the model has no masked
            LM head.
    """
    model, tokenizer = load_with_head(model_folder)
    device = device_here("float32")
    model.to(device).eval()
    folder = plan.folder(work)
    max_pieces = model.encoder.settings.max_position_embeddings
    shards, accounts, scores = [], [], {}
    for name, uris in files.items():
        pairs, account = that_fit(name, read_pairs(name, uris), tokenizer, max_pieces)
        accounts.append(account)
        if not pairs:
            log.warning("zero-shot: %s: no pair fits %d positions", name, max_pieces)
            continue
        parts = []
        for begin in range(0, len(pairs), _PAIRS_AT_A_TIME):
            some = pairs[begin : begin + _PAIRS_AT_A_TIME]
            parts.append(is_right(model, tokenizer, some, device))
            report_progress(begin + len(some), len(pairs), f"pairs of {name}")
        right = np.concatenate(parts)
        scores[name], uri = pair_scores(pairs, right), storage.join(folder, OUTCOMES, name)
        log.info("zero-shot: %s: accuracy %s", name, scores[name].accuracy)
        good, bad, paradigms, phenomena = zip(*pairs, strict=True)
        columns = {"phenomena": phenomena, "paradigms": paradigms, "good": good, "bad": bad}
        write_arrow(pa.table({**columns, "is_right": right}), f"{uri}.arrow", "zstd")
        shards.append(manifest.shard_of(f"{uri}.arrow", folder, OUTCOMES, len(pairs)))
    if not scores:
        raise errors.TaskError(
            f"no pair of {', '.join(files)} fits the {max_pieces} positions of the model in "
            f"{model_folder}. Give shorter sentences, or tasks without minimal pairs."
        )
    return plan.write(work, shards, accounts, results.ZeroShotResult(sets=scores))


def load_with_head(folder: str) -> tuple[AlbertForPretraining, Tokenizer]:
    """Return the model in a folder, in float32 on the CPU, and its tokenizer.

    Raises:
        IntegrityError: a file is missing or damaged.
        TaskError: the model has no masked LM head.
    """
    source = read_source(folder)
    if not any(name.startswith(_HEAD) for name in source.tensors):
        raise errors.TaskError(
            f"{folder} has no masked LM head, which minimal pairs are scored with. Give the folder "
            "of a pretrained model, or tasks without minimal pairs."
        )
    tokenizer = read_tokenizer(folder)
    check_vocabulary(source.vocab_size, tokenizer, f"the model in {folder}")
    return source.start(source.settings), tokenizer
