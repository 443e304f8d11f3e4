from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from albert_core.model import attention
from albert_core.model.attention import Buckets, attend, attend_packed, layout_of, lengths_of

NUM_HEADS, HEAD_SIZE = 2, 4
RUNS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=5)
ALLOWED = st.sampled_from([0, 20, 10_000])
"""Padding in a bucket: none, some, so much that all lies in one."""


def drawn(number: int) -> Tensor:
    return torch.randn(number, NUM_HEADS, HEAD_SIZE, dtype=torch.float64, requires_grad=True)


def one_by_one(query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> Tensor:
    """Return the attention of each sequence by itself."""
    parts = zip(*(each.split(lengths) for each in (query, key, value)), strict=True)
    heads_first = ([each.transpose(0, 1)[None] for each in part] for part in parts)
    seen = (attend(q, k, v, None, 0.0) for q, k, v in heads_first)
    return torch.cat([each[0].transpose(0, 1) for each in seen])


def with_gradients(seen: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the output, and the gradients of a sum in which no two numbers weigh the same."""
    weights = torch.linspace(-1, 2, seen.numel(), dtype=seen.dtype).view(seen.shape)
    return [seen.detach(), *torch.autograd.grad((seen * weights).sum(), inputs)]


@given(RUNS, ALLOWED, st.data())
def test_attention_in_buckets_is_that_of_each_sequence_by_itself(
    runs: list[tuple[int, int]], allowed: int, data: st.DataObject
) -> None:
    lengths = lengths_of(runs)
    num_pieces = sum(lengths)
    inputs = drawn(num_pieces), drawn(num_pieces), drawn(num_pieces)
    rows = data.draw(
        st.none() | st.lists(st.integers(0, num_pieces - 1), min_size=1).map(torch.tensor)
    )  # in any order, some asked for twice, of some sequences none
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(attention, "_PADDING_ALLOWED", allowed)
        layout = layout_of(runs, torch.device("cpu"), NUM_HEADS, HEAD_SIZE)
        asking = inputs[0] if rows is None else inputs[0][rows]
        found = attend_packed(asking, *inputs[1:], layout, None, 0.0, rows)
    expected = one_by_one(*inputs, lengths)
    if rows is not None:
        expected = expected[rows]
    torch.testing.assert_close(with_gradients(found, inputs), with_gradients(expected, inputs))


@given(RUNS, ALLOWED)
def test_what_is_filled_in_comes_out_again(runs: list[tuple[int, int]], allowed: int) -> None:
    x = drawn(sum(lengths_of(runs)))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(attention, "_PADDING_ALLOWED", allowed)
        slots = Buckets(runs, NUM_HEADS).pieces
    filled = slots.fill(x)
    assert [tuple(bucket.shape[:3]) for bucket in filled] == slots.shapes
    emptied = slots.empty(filled)
    assert torch.equal(emptied, x)
    emptied.sum().backward()
    assert x.grad is not None
    assert (x.grad == 1).all()


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 512)), min_size=1, max_size=30))
def test_a_bucket_has_no_more_padding_than_allowed_and_another_is_begun_for_more(
    runs: list[tuple[int, int]],
) -> None:
    slots = Buckets(runs, NUM_HEADS).pieces
    by_length = iter(sorted(lengths_of(runs), reverse=True))
    following = [[next(by_length) for _ in range(n)] for n, _, _ in slots.shapes]
    for (_, _, length), lengths in zip(slots.shapes, following, strict=True):
        assert length == lengths[0]
        assert sum(length**2 - each**2 for each in lengths) <= attention._PADDING_ALLOWED
    for lengths, after in pairwise(following):
        padding = sum(lengths[0] ** 2 - each**2 for each in [*lengths, after[0]])
        assert padding > attention._PADDING_ALLOWED
    assert next(by_length, None) is None


def test_sequences_of_one_length_need_no_mask() -> None:
    assert Buckets([(3, 7)], NUM_HEADS).key_masks == [None]
    [mask] = Buckets([(1, 2), (1, 3)], NUM_HEADS).key_masks
    assert mask is not None
    assert mask.flatten(1).tolist() == [[True, True, True], [True, True, False]]
