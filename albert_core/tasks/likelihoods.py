"""Minimal pairs: does a pretrained model find the acceptable one of two sentences more likely?

Nothing is fine-tuned. A sentence's score is its pseudo-log-likelihood: each piece is masked in
turn, together with the later pieces of its word, and the log-probabilities that the model gives to
the masked pieces are added up. If the later pieces were not masked, they would give a rare word
away, and it would seem likely.

A sentence is encoded once for each of its pieces, and these sequences are much alike. Two things
are not computed:

- the input of the first attention per sequence: it depends on a piece and its position only;
- keys and values of the last layer, where a single query looks at each sequence. Its score of a
  piece is q . (K x), which is (q K) . x. What it sees is the mean of V x, which is V times the mean
  of x.

Dimensions: N sentences, S pieces of a sequence, B masked sequences of a forward pass; in
`encode_at` R different pairs of a piece and its position, H hidden, N heads, D head size.

Source: Salazar et al. 2020; Kauf and Ivanova 2023, arXiv 2305.10588, "PLL-word-l2r".
"""

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_core.model.albert import AlbertForPretraining, AlbertModel, Attention
from albert_core.model.attention import Layout, attend
from albert_core.model.execution import weights_laid_out_once
from albert_core.stage.errors import TaskError
from albert_core.tasks.minimal_pairs import Pair
from albert_core.text.records import CLS, MASK, SEP, Bools, Ints
from albert_core.text.scripts import UNSPACED
from albert_core.text.tokenizer import WORD_MARK, Tokenizer

_BEGINS_WORD = re.compile(rf"\A{WORD_MARK}|[{UNSPACED}]")
_SPECIAL_PIECES = 2
"""[CLS] sentence [SEP]."""
_MAX_PIECES = 8192
"""Pieces of a forward pass. More gain little, and logits of many short sequences take memory."""


def is_right(
    model: AlbertForPretraining, tokenizer: Tokenizer, pairs: Sequence[Pair], device: torch.device
) -> Bools:
    """Return for each pair whether the acceptable sentence is strictly more likely, bool (N,).

    Args:
        model: see `log_likelihoods`.
        tokenizer: the model's tokenizer.
        pairs: the N pairs. If both sentences have the same score, the model is wrong.
        device: the device to compute on.

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

    The model sees [CLS] sentence [SEP]. The other sentences change a score by rounding only.

    Args:
        model: on ``device``, in evaluation mode.
        tokenizer: the model's tokenizer.
        sentences: the N sentences. A word begins at a piece with the mark of a blank, so a full
            stop belongs to the word before it, or with a character of a script that has no blanks,
            where a sentence would be one word. Sentences of the same pieces are scored once.
        device: the device to compute on.
        max_pieces: the most pieces of a forward pass.

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
    begins_word = np.array([_BEGINS_WORD.search(piece) is not None for piece in tokenizer.pieces])
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
        device: the device to compute on.

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
    dtype = torch.promote_types(logits.dtype, torch.float32)
    log_p = torch.log_softmax(logits, 1, dtype).gather(1, labels[:, None])[:, 0]
    return log_p.cpu().double().numpy()


def encode_at(encoder: AlbertModel, input_ids: Tensor, positions: Tensor) -> Tensor:
    """Return the output of `AlbertModel.forward` at one position of each sequence, up to rounding.

    It is faster inside `weights_laid_out_once`.

    Args:
        encoder: the encoder, in evaluation mode.
        input_ids: int64 (B, S), without padding; all pieces have token type 0.
        positions: int64 (B,), in 0..S-1.

    Returns:
        (B, H).
    """
    number, length = input_ids.shape
    piece_at_position = input_ids * length + torch.arange(length, device=input_ids.device)
    different, places = piece_at_position.flatten().unique(return_inverse=True)
    ids, layout = different // length, Layout((), positions=different % length)
    x = encoder.projection(encoder.embeddings(ids, torch.zeros_like(ids), layout))  # (R, H)
    *inner, last = encoder.route[: encoder.num_layers * encoder.settings.inner_group_num]
    for step, (attention, feed_forward) in enumerate(inner):
        block = encoder.attentions[attention]
        assert isinstance(block, Attention)
        rows = [projection(x) for projection in (block.query, block.key, block.value)]
        if step == 0:
            x, *rows = (each.index_select(0, places) for each in (x, *rows))
        query, key, value = (
            each.view(number, length, block.num_heads, -1).transpose(1, 2) for each in rows
        )  # (B, N, S, D)
        seen = attend(query, key, value, None, 0.0).transpose(1, 2).reshape(x.shape)
        x = encoder.feed_forwards[feed_forward](block.norm(x + block.output(seen)))
    if not inner:
        x = x.index_select(0, places)
    attention, feed_forward = last
    block = encoder.attentions[attention]
    assert isinstance(block, Attention)
    whole = x.unflatten(0, (number, length))
    x = whole[torch.arange(number, device=positions.device), positions]
    x = block.norm(x + block.output(_seen_by_one(block, x, whole)))
    result: Tensor = encoder.feed_forwards[feed_forward](x)
    return result


def _seen_by_one(attention: Attention, asking: Tensor, x: Tensor) -> Tensor:
    """Return the attention output of ``asking`` (B, H) over the sequences ``x`` (B, S, H), (B, H).

    The bias of the keys adds the same to all scores of a query, so it has no effect.
    """
    heads = (attention.num_heads, -1)
    query = attention.query(asking).unflatten(1, heads).transpose(0, 1)  # (N, B, D)
    query = query * query.shape[-1] ** -0.5
    query = (query @ attention.key.weight.unflatten(0, heads)).transpose(0, 1)  # (B, N, H)
    weights = torch.softmax(query @ x.transpose(1, 2), dim=-1)  # (B, N, S)
    mean = (weights @ x).transpose(0, 1)  # (N, B, H)
    values = mean @ attention.value.weight.unflatten(0, heads).transpose(1, 2)  # (N, B, D)
    seen: Tensor = values.transpose(0, 1).flatten(1) + attention.value.bias
    return seen
