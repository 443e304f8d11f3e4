"""The last layer at one position of each sequence, for many sequences that are much alike.

A pseudo-likelihood encodes a sentence once for each of its pieces. This does not compute

- what goes into the first attention again and again: it depends on a piece and its position alone;
- keys and values of the last layer, where a single query looks at each sequence. Its score of a
  piece is q . (K x), which is (q K) . x. What it sees is the mean of V x, which is V times the mean
  of x.

Dimensions: B sequences of S pieces each, R different pairs of a piece and its position, H hidden,
N heads, D head size.
"""

import torch
from torch import Tensor

from albert_core.model.albert import AlbertModel, Attention
from albert_core.model.attention import Layout
from albert_core.model.execution import attend


def encode_at(encoder: AlbertModel, input_ids: Tensor, positions: Tensor) -> Tensor:
    """Return what `AlbertModel.forward` does at one position of each sequence, up to rounding.

    It is faster inside `weights_laid_out_once`.

    Args:
        encoder: in evaluation mode.
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
    """Return what the heads of ``asking`` (B, H) see in the sequences ``x`` (B, S, H), as (B, H).

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
