"""Minimal pairs: does a pretrained model find the acceptable one of two sentences more likely?

Nothing is fine-tuned. A sentence's score is its pseudo-log-likelihood: each piece is masked in
turn, together with the later pieces of its word, and the log-probabilities that the model gives to
the masked pieces are added up. If the later pieces were not masked, they would give a rare word
away, and it would seem likely.

Dimensions: N sentences, S pieces of a sequence, B masked sequences of a forward pass.

Source: Salazar et al. 2020; Kauf and Ivanova 2023, arXiv 2305.10588, "PLL-word-l2r".
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from albert_core.model.albert import AlbertForPretraining
from albert_core.model.execution import weights_laid_out_once
from albert_core.model.one_position import encode_at
from albert_core.stage.errors import TaskError
from albert_core.tasks.minimal_pairs import Pair
from albert_core.text.records import CLS, MASK, SEP, Ints
from albert_core.text.tokenizer import WORD_MARK, Tokenizer

_SPECIAL_PIECES = 2
"""[CLS] sentence [SEP]."""
_MAX_PIECES = 8192
"""Of a forward pass. More gain little, and logits of many short sequences take much memory."""


def is_right(
    model: AlbertForPretraining, tokenizer: Tokenizer, pairs: Sequence[Pair], device: torch.device
) -> NDArray[np.bool_]:
    """Return for each pair whether the acceptable sentence is strictly more likely, bool (N,).

    Args:
        model: see `log_likelihoods`, as for the others.
        tokenizer: of the model.
        pairs: N of them. If both sentences have the same score, the model is wrong.
        device: where to compute.

    Raises:
        TaskError: a sentence is too long for the model.
    """
    sentences = [*(pair.good for pair in pairs), *(pair.bad for pair in pairs)]
    scores = log_likelihoods(model, tokenizer, sentences, device)
    return scores[: len(pairs)] > scores[len(pairs) :]


@torch.no_grad()
def log_likelihoods(
    model: AlbertForPretraining,
    tokenizer: Tokenizer,
    sentences: Sequence[str],
    device: torch.device,
    max_pieces: int = _MAX_PIECES,
) -> NDArray[np.float64]:
    """Return the pseudo-log-likelihood of each sentence, in nats, float64 (N,).

    The model sees [CLS] sentence [SEP]. What else is scored changes a score by rounding only.

    Args:
        model: on ``device``, in evaluation mode, float32.
        tokenizer: of the model.
        sentences: N of them. A word begins at a piece with the mark of a blank, so the full stop
            after a word belongs to it. Sentences of the same pieces are scored once.
        device: where to compute.
        max_pieces: of a forward pass.

    Raises:
        TaskError: a sentence has more pieces than the model has positions.
    """
    encoded = [tuple(pieces) for pieces in tokenizer.encode(sentences)]
    room = model.encoder.settings.max_position_embeddings - _SPECIAL_PIECES
    for sentence, ids in zip(sentences, encoded, strict=True):
        if len(ids) > room:
            raise TaskError(
                f"sentence {sentence!r} has {len(ids)} pieces, expected at most {room}, for which "
                "the model has positions. Shorten or remove it."
            )
    begins_word = np.array([piece.startswith(WORD_MARK) for piece in tokenizer.pieces])
    by_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for ids in filter(None, dict.fromkeys(encoded)):
        by_length[len(ids)].append(ids)
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    with weights_laid_out_once():
        for length, same_length in by_length.items():
            pieces = np.array(same_length, np.int64)
            words = np.cumsum(begins_word[pieces], axis=1)
            step = max(1, max_pieces // (length + _SPECIAL_PIECES))
            batches = np.split(np.arange(pieces.size), range(step, pieces.size, step))
            log_p = [_log_p(model, pieces, words, masked, device) for masked in batches]
            found = np.concatenate(log_p).reshape(pieces.shape).sum(axis=1)
            scores.update(zip(same_length, found.tolist(), strict=True))
    return np.array([scores[ids] for ids in encoded], np.float64)


def _log_p(
    model: AlbertForPretraining, pieces: Ints, words: Ints, masked: Ints, device: torch.device
) -> NDArray[np.float64]:
    """Return the log-probabilities of B pieces, each in a copy of its sentence without it.

    Args:
        model: see `log_likelihoods`.
        pieces: (N, S - 2), sentences without special pieces.
        words: (N, S - 2), the number of each piece's word in its sentence.
        masked: (B,), places in ``pieces`` laid end to end.
        device: where to compute.

    Returns:
        (B,).
    """
    sentence, place = np.divmod(masked, pieces.shape[1])
    in_word = words[sentence] == words[sentence, place][:, None]
    is_later = np.arange(pieces.shape[1]) >= place[:, None]
    input_ids = np.pad(
        np.where(in_word & is_later, MASK, pieces[sentence]),
        ((0, 0), (1, 1)),
        constant_values=((0, 0), (CLS, SEP)),
    )
    ids, positions, labels = (
        torch.from_numpy(each).to(device) for each in (input_ids, place + 1, pieces.flat[masked])
    )
    x = encode_at(model.encoder, ids, positions)
    logits = model.masked_lm(x, model.encoder.embeddings.word.weight)
    log_p = torch.log_softmax(logits.float(), dim=1).gather(1, labels[:, None])[:, 0]
    return log_p.cpu().double().numpy()
