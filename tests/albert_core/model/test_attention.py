from functools import partial
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

from albert_core.model import albert, attention, execution
from albert_core.tasks.likelihoods import encode_at
from tests.albert_core.tiny_model import tiny_settings

NUM_HEADS, HEAD_SIZE = 2, 4
CPU = torch.device("cpu")
RUNS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=5)
ALLOWED = st.sampled_from([0, 20, 10_000])
"""Padding in a bucket: none, some, so much that all lies in one."""


def drawn(number: int) -> Tensor:
    return torch.randn(number, NUM_HEADS, HEAD_SIZE, dtype=torch.float64, requires_grad=True)


def one_by_one(query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> Tensor:
    """Return the attention of each sequence by itself."""
    parts = zip(*(each.split(lengths) for each in (query, key, value)), strict=True)
    heads_first = ([each.transpose(0, 1) for each in part] for part in parts)
    return torch.cat([F.scaled_dot_product_attention(*p).transpose(0, 1) for p in heads_first])


def with_gradients(seen: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the output, and the gradients of a sum in which no two numbers weigh the same."""
    weights = torch.linspace(-1, 2, seen.numel(), dtype=seen.dtype).view(seen.shape)
    return [seen.detach(), *torch.autograd.grad((seen * weights).sum(), inputs)]


@given(RUNS, ALLOWED, st.data())
@settings(deadline=None)
def test_attention_in_buckets_is_that_of_each_sequence_by_itself(
    runs: list[tuple[int, int]], allowed: int, data: st.DataObject
) -> None:
    lengths = attention.lengths_of(runs)
    num_pieces = sum(lengths)
    inputs = drawn(num_pieces), drawn(num_pieces), drawn(num_pieces)
    rows = data.draw(
        st.none() | st.lists(st.integers(0, num_pieces - 1), min_size=1).map(torch.tensor)
    )  # in any order, some asked for twice, of some sequences none
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(attention, "_PADDING_ALLOWED", allowed)
        layout = attention.layout_of(runs, CPU, NUM_HEADS, HEAD_SIZE)
        asking = inputs[0] if rows is None else inputs[0][rows]
        found = attention.attend_packed(asking, *inputs[1:], layout, None, 0.0, rows)
        result = with_gradients(found, inputs)
    expected = one_by_one(*inputs, lengths)
    if rows is not None:
        expected = expected[rows]
    torch.testing.assert_close(result, with_gradients(expected, inputs))


@given(RUNS)
@settings(max_examples=20, deadline=None)
def test_attention_run_by_run_is_that_of_each_sequence_by_itself(
    runs: list[tuple[int, int]],
) -> None:
    lengths = attention.lengths_of(runs)
    inputs = drawn(sum(lengths)), drawn(sum(lengths)), drawn(sum(lengths))
    found = attention.attend_packed(*inputs, attention.Layout(runs), None, 0.0)
    torch.testing.assert_close(
        with_gradients(found, inputs), with_gradients(one_by_one(*inputs, lengths), inputs)
    )


# All sequences of a batch in one kernel. The kernel itself needs a GPU; here another that obeys
# the same contract stands in for it.

VOCAB_SIZE = 50
MODEL = tiny_settings(num_hidden_layers=3, max_position_embeddings=20)


def as_the_kernel(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, key_ends: Tensor, *longest: int
) -> Tensor:
    """Do what `varlen_attn` does, sequence by sequence."""
    assert ends.dtype == key_ends.dtype == torch.int32
    lengths = ends.diff().tolist()
    assert longest == (max(lengths), max(lengths))
    return one_by_one(query, key, value, lengths)


def use_kernel(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    """Compute as on CUDA in half precision."""
    for module in (albert, attention, execution):
        monkeypatch.setattr(
            module, "is_fast", lambda path, *_: path in ("kernel", "casts", "stream")
        )
    monkeypatch.setattr(execution, "varlen_attn", kernel)


def packed(runs: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """Return random inputs of a packed batch."""
    lengths = torch.tensor(attention.lengths_of(runs))
    first, num_pieces = lengths.cumsum(0) - lengths, int(lengths.sum())
    return {
        "input_ids": torch.randint(0, VOCAB_SIZE, (num_pieces,)),
        "token_type_ids": torch.randint(0, 2, (num_pieces,)),
        "runs": runs,
        "first_positions": first,
        "masked_lm_positions": first + 1,
    }


def test_all_sequences_in_one_kernel_give_what_the_cpu_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = albert.AlbertForPretraining(MODEL, VOCAB_SIZE).double()
    inputs = packed(((2, 20), (3, 7), (1, 5), (1, 2)))
    found = []
    for has_kernel in (False, True):
        if has_kernel:
            use_kernel(monkeypatch, as_the_kernel)
        logits, orders = model.forward_packed(**inputs)
        model.zero_grad()
        (logits.square().sum() + orders.square().sum()).backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append((logits, orders, gradients))
    torch.testing.assert_close(found[1], found[0], rtol=1e-11, atol=1e-11)


def test_padded_sequences_go_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernel(monkeypatch, None)  # to call it would be an error
    layout = attention.layout_of(((2, 3),), CPU, 2, 4)
    query, key, value = torch.randn(3, 6, 2, 4)
    mask = torch.tensor([[True, True, False], [True, True, True]])[:, None, None]
    assert attention.attend_packed(query, key, value, layout, mask, 0.0).shape == (6, 2, 4)


@pytest.mark.parametrize("dropout_prob", [0.0, 0.1])
def test_the_kernel_takes_what_it_is_given(
    dropout_prob: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(execution, "varlen_attn", varlen.varlen_attn)
    with FakeTensorMode():
        query, key, value = (
            torch.empty(30, 4, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )
        ends = torch.empty(4, dtype=torch.int32)
        layout = attention.Layout((), ends=ends, longest=12)
        seen = attention.attend_packed(query, key, value, layout, None, dropout_prob)
        assert (seen.shape, seen.dtype) == ((30, 4, 64), query.dtype)
        for gradient in torch.autograd.grad(seen.sum(), (query, key, value)):
            assert gradient.shape == (30, 4, 64)


# What the compiler makes of the blocks, as on CUDA.


@torch.library.custom_op("tests::kernel", mutates_args={})
def opaque_kernel(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, ends_k: Tensor, longest: int, k: int
) -> Tensor:
    """Stand in for `varlen_attn`, into which the compiler cannot look either."""
    return value.clone()


opaque_kernel.register_fake(lambda _q, _k, value, *_: torch.empty_like(value))
opaque_kernel.register_autograd(lambda _, gradient: (gradient,) * 3 + (None,) * 4)


@pytest.mark.filterwarnings("ignore")  # what torch.compile itself does
@pytest.mark.parametrize("block", ["attention", "attention for some rows", "feed forward"])
def test_a_block_is_one_graph(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernel(monkeypatch, opaque_kernel)
    torch._dynamo.reset()
    encoder = albert.AlbertForPretraining(MODEL, VOCAB_SIZE).encoder
    runs = ((3, 20), (2, 9), (1, 5))
    x = torch.randn(83, MODEL.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    rows = torch.arange(6) if block == "attention for some rows" else None
    arguments = x, attention.layout_of(runs, CPU, NUM_HEADS, HEAD_SIZE), None, rows
    with execution.products_in("bfloat16", CPU):
        if block == "feed forward":
            explained = torch._dynamo.explain(encoder.feed_forwards[0])(x)
        else:
            explained = torch._dynamo.explain(encoder.attentions[0])(*arguments)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)


@pytest.mark.filterwarnings("ignore")  # what torch.compile itself does
@pytest.mark.parametrize(
    ("has_kernel", "sharing", "checkpointing"),
    [(True, "all", False), (True, "none", True), (False, "all", False)],
)
def test_evaluation_training_and_minimal_pairs_share_a_few_compiled_graphs(
    has_kernel: bool, sharing: str, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_kernel:
        use_kernel(monkeypatch, opaque_kernel)
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    model = albert.AlbertForPretraining(MODEL.model_copy(update={"sharing": sharing}), VOCAB_SIZE)
    execution.set_layer_execution(model.encoder.blocks, True, checkpointing)
    draw = Random(0)

    def batch() -> dict[str, Any]:
        lengths = sorted(draw.sample(range(2, 20), draw.randint(2, 6)))
        return packed(tuple((draw.randint(1, 3), length) for length in lengths))

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            for _ in range(4):
                with execution.products_in("bfloat16", CPU):
                    model.forward_packed(**batch())
                ids = torch.randint(0, VOCAB_SIZE, (draw.randint(2, 9), draw.randint(3, 20)))
                encode_at(model.encoder, ids, torch.ones(len(ids), dtype=torch.int64))
        model.train()

    evaluate()
    for _ in range(4):
        with execution.products_in("bfloat16", CPU):
            logits, orders = model.forward_packed(**batch())
        (logits.float().square().sum() + orders.float().square().sum()).backward()
    once = counter.frame_count
    evaluate()
    assert 0 < once == counter.frame_count <= 20
    assert not [reason for reason in counters["unimplemented"] if "recompile" in reason]
