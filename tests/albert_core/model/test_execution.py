"""Each fast path against the plain version beside it."""

import gc
import os
import weakref
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from albert_core.model import albert, attention, execution, losses
from albert_core.stage.errors import ConfigError
from albert_core.tasks.likelihoods import encode_at
from tests.albert_core.tiny_model import tiny_settings

MASKS = [None, torch.tensor([[True, True, False], [True, True, True]])[:, None, None]]
needs_products = pytest.mark.skipif(
    not execution._has_products(torch.bfloat16), reason="oneDNN has no such products here"
)


@pytest.mark.parametrize(
    ("path", "device", "dtype", "is_fast"),
    [
        ("layout", "cpu", torch.float64, False),
        ("table", "cpu", torch.bfloat16, True),
        ("products", "cpu", torch.float32, False),
        ("buckets", "cpu", torch.float32, True),
        ("rows", "cuda", torch.float32, False),
        ("kernel", "cuda", torch.float32, False),
        ("casts", "cuda", torch.float32, False),
        ("stream", "cuda", torch.float32, False),
    ],
)
def test_a_fast_path_is_taken_where_the_table_says(
    path: execution.FastPath, device: str, dtype: torch.dtype, is_fast: bool
) -> None:
    assert execution.is_fast(path, torch.device(device), dtype, 64) is is_fast


@pytest.mark.parametrize(
    ("head_size", "capability", "is_fast"),
    [(64, (8, 0), True), (64, (7, 5), False), (60, (9, 0), False), (264, (9, 0), False)],
)
def test_the_kernel_needs_a_new_gpu_and_heads_that_fit(
    head_size: int, capability: tuple[int, int], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    found = execution.is_fast("kernel", torch.device("cuda"), torch.bfloat16, head_size)
    assert found is is_fast


def test_a_gpu_that_torch_cannot_use_is_an_error_unless_the_cpu_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    with pytest.raises(ConfigError, match=r"2 NVIDIA GPU.* built without CUDA.*VISIBLE_DEVICES= "):
        execution.device_here("float32")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(execution, "has_fast_bfloat16", lambda: False)
    with caplog.at_level("INFO"):
        assert execution.device_here("bfloat16") == torch.device("cpu")
    assert "on the CPU" in caplog.text
    assert "this processor has no products in bfloat16" in caplog.text


@pytest.fixture
def tesla_t4(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has no products in bfloat16, but emulates them."""
    answers = {
        "is_available": lambda: True,
        "get_device_name": lambda: "Tesla T4",
        "is_bf16_supported": lambda including_emulation: including_emulation,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)


@pytest.mark.usefixtures("tesla_t4")
def test_bfloat16_is_refused_where_it_would_be_emulated() -> None:
    assert execution.device_here("float32", local_rank=1) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match=r'Tesla T4 .* Set precision = "float32"'):
        execution.device_here("bfloat16")


@pytest.mark.usefixtures("tesla_t4")
def test_only_who_asks_for_the_same_bits_on_cuda_pays_for_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr("torch.utils.deterministic.fill_uninitialized_memory", True)
    try:
        with caplog.at_level("INFO"):
            execution.device_here("float32")
            assert not torch.are_deterministic_algorithms_enabled()
            execution.device_here("float32", deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        # With warnings only, the backward pass of flash attention would not be deterministic.
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert [line.rpartition(", ")[2] for line in caplog.messages] == [
            "the same each time up to rounding",
            "the same bits each time",
        ]
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


# Dense layers


def made(num_rows: int = 40) -> tuple[execution.Linear, Tensor]:
    """Return a layer and its input, whose gradient is needed too."""
    torch.manual_seed(0)
    return execution.Linear(24, 24), torch.randn(num_rows, 24, requires_grad=True)


def used_thrice(layer: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output, and the gradients of input, weight and bias."""
    x = x.detach().requires_grad_()
    y = layer(torch.tanh(layer(torch.tanh(layer(x)))))
    of_x, of_weight, of_bias = torch.autograd.grad(
        y.float().square().sum(), [x, layer.weight, layer.bias]
    )
    return y.detach(), of_x, of_weight, of_bias


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Every weight that is laid out, as long as something else holds it."""
    made_ones: list[weakref.ref[Any]] = []
    make = execution._LaidOut.__init__

    def watched(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        made_ones.append(weakref.ref(self))

    monkeypatch.setattr(execution._LaidOut, "__init__", watched)
    return made_ones


@needs_products
def test_a_weight_is_laid_out_once_a_pass_with_the_results_of_the_plain_layer(
    laid_out: list[weakref.ref[Any]],
) -> None:
    layer, x = made()
    for number in (1, 2):
        plain = used_thrice(layer, x)
        with execution.weights_laid_out_once():
            torch.testing.assert_close(used_thrice(layer, x), plain)
        assert len(laid_out) == number
        with torch.no_grad():
            layer.weight.mul_(2)


@needs_products
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_computed_again_after_the_pass_uses_the_same_layout(
    dtype: torch.dtype, laid_out: list[weakref.ref[Any]]
) -> None:
    layer, x = made()
    enabled = dtype == torch.bfloat16
    with torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=False):
        with execution.weights_laid_out_once():
            kept = layer(x)
            again = checkpoint(
                layer, x, use_reentrant=False, context_fn=execution.recomputation_contexts
            )
    gradients = [torch.autograd.grad(y.sum(), [layer.weight, x]) for y in (kept, again)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    assert len(laid_out) == 1


@needs_products
@pytest.mark.parametrize("is_trained", [True, False])
def test_what_is_laid_out_is_freed_with_the_pass(
    is_trained: bool, laid_out: list[weakref.ref[Any]]
) -> None:
    layer, x = made()
    gc.disable()  # by counting references alone
    try:
        with execution.weights_laid_out_once():
            y = layer(torch.tanh(layer(x))).sum()
        if is_trained:
            y.backward()
        del y
        assert [each() for each in laid_out] == [None]
    finally:
        gc.enable()


@needs_products
def test_only_the_uses_that_a_backward_pass_reaches_count_and_none_counts_twice() -> None:
    layer, x = made()
    with execution.weights_laid_out_once():
        first, second, apart = layer(x).sum(), layer(torch.tanh(x)).sum(), layer(x * 2).sum()
    for found, expected in (
        (first + second, layer(x).sum() + layer(torch.tanh(x)).sum()),
        (apart, layer(x * 2).sum()),
    ):
        inputs = [*layer.parameters(), x]
        torch.testing.assert_close(
            torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs)
        )


# The activation


def test_the_value_and_slope_of_every_bfloat16_are_the_exact_ones_rounded() -> None:
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    x = numbers[numbers.isfinite()].clone().requires_grad_()
    exact = x.detach().double().requires_grad_()
    value, exact_value = execution.gelu_tanh(x), F.gelu(exact, approximate="tanh")
    assert torch.equal(value, exact_value.bfloat16())
    value.sum().backward()
    small = exact.detach().abs() < 1e30  # beyond it, the square of float64's slope overflows
    exact_value[small].sum().backward()
    assert x.grad is not None
    assert exact.grad is not None
    assert torch.equal(x.grad[small], exact.grad[small].bfloat16())
    assert x.grad.isfinite().all()


def test_tables_first_used_for_inference_do_for_training() -> None:
    execution._bfloat16_tables.cache_clear()
    with torch.inference_mode():
        execution.gelu_tanh(torch.ones(2, dtype=torch.bfloat16))
    x = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    execution.gelu_tanh(x.t()).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2, 3), 1.0829, dtype=torch.bfloat16))


# Attention


def heads(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values (B, N, S, D)."""
    torch.manual_seed(0)
    drawn = torch.randn(3, 2, 2, 3, 4, dtype=torch.float32).to(dtype)
    query, key, value = (each.clone().requires_grad_() for each in drawn)
    return query, key, value


@pytest.mark.parametrize("mask", MASKS, ids=["unpadded", "padded"])
def test_attention_by_products_is_the_fused_one(
    mask: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention.attend(query, key, value, mask, 0.0)

    inputs = heads(torch.float64)
    fused = seen(*inputs)
    monkeypatch.setattr(execution, "is_fast", lambda *_: True)
    torch.testing.assert_close(seen(*inputs), fused)
    assert torch.autograd.gradcheck(seen, inputs)


@pytest.mark.parametrize("mask", MASKS, ids=["unpadded", "padded"])
def test_attention_in_bfloat16_is_that_of_float32_but_for_rounding(mask: Tensor | None) -> None:
    expected = attention.attend(*heads(torch.float32), mask, 0.0)
    found = attention.attend(*heads(torch.bfloat16), mask, 0.0)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.03)


def test_dropout_drops_weights_in_bfloat16_too() -> None:
    inputs = heads(torch.bfloat16)
    first, second = (attention.attend(*inputs, None, 0.5) for _ in range(2))
    assert not torch.equal(first, second)


# The loss


def test_the_loss_and_its_gradient_a_few_rows_at_a_time_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "_LOGITS_PER_BLOCK", 11)  # two rows of five
    drawn = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 2, 4, losses.IGNORED, 3, 1, 2])
    logits = drawn.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: losses.cross_entropy(x, labels, 3.0), [logits])
    for dtype in (torch.float32, torch.bfloat16):
        found, expected = (drawn.to(dtype, copy=True).requires_grad_() for _ in range(2))
        losses.cross_entropy(found, labels, 6).backward()
        F.cross_entropy(expected.float(), labels).backward()
        assert found.grad is not None
        assert found.grad.dtype == dtype
        torch.testing.assert_close(found.grad, expected.grad)


def test_the_loss_of_a_label_whose_share_is_too_small_for_a_float_is_finite() -> None:
    logits = torch.tensor([[0.0, 200.0]])
    assert losses.cross_entropy(logits, torch.tensor([0]), 1) == 200


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
def test_attention_in_buckets_and_run_by_run_is_that_of_each_sequence_by_itself(
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
    expected = one_by_one(*inputs, lengths)[slice(None) if rows is None else rows]
    torch.testing.assert_close(result, with_gradients(expected, inputs))
    by_run = attention.attend_packed(*inputs, attention.Layout(runs), None, 0.0)
    whole = one_by_one(*inputs, lengths)
    torch.testing.assert_close(with_gradients(by_run, inputs), with_gradients(whole, inputs))


# All sequences of a batch in one kernel. The kernel itself needs a GPU; here another that obeys
# the same contract stands in for it.

VOCAB_SIZE = 50
MODEL = tiny_settings(num_hidden_layers=3, max_position_embeddings=20)


def as_the_kernel(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, dropout_prob: float
) -> Tensor:
    """Do what `flash_attention` does, sequence by sequence."""
    lengths = ends.diff().tolist()
    assert (ends.dtype, longest, dropout_prob) == (torch.int32, max(lengths), 0)
    return one_by_one(query, key, value, lengths)


def use_kernel(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    """Compute as on CUDA in half precision."""
    monkeypatch.setattr(
        execution, "is_fast", lambda path, *_: path in ("kernel", "casts", "stream")
    )
    monkeypatch.setattr(attention, "flash_attention", kernel)


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
        logits, orders = model(**inputs)
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
def test_the_kernel_takes_what_it_is_given(dropout_prob: float) -> None:
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
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, dropout_prob: float
) -> Tensor:
    """Stand in for `flash_attention`, into which the compiler cannot look either."""
    return value.clone()


opaque_kernel.register_fake(lambda _q, _k, value, *_: torch.empty_like(value))
opaque_kernel.register_autograd(lambda _, gradient: (gradient,) * 3 + (None,) * 3)


@pytest.mark.filterwarnings("ignore")  # what torch.compile itself does
@pytest.mark.parametrize(
    "block", ["attention", "attention with dropout", "attention for some rows", "feed forward"]
)
def test_a_block_is_one_graph(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernel(monkeypatch, opaque_kernel)
    torch._dynamo.reset()
    dropout = {"attention_probs_dropout_prob": 0.1 if "dropout" in block else 0.0}
    shape = MODEL.model_copy(update=dropout)
    encoder = albert.AlbertForPretraining(shape, VOCAB_SIZE).encoder
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
                    model(**batch())
                ids = torch.randint(0, VOCAB_SIZE, (draw.randint(2, 9), draw.randint(3, 20)))
                encode_at(model.encoder, ids, torch.ones(len(ids), dtype=torch.int64))
        model.train()

    evaluate()
    for _ in range(4):
        with execution.products_in("bfloat16", CPU):
            logits, orders = model(**batch())
        (logits.float().square().sum() + orders.float().square().sum()).backward()
    once = counter.frame_count
    evaluate()
    assert 0 < once == counter.frame_count <= 20
    assert not [reason for reason in counters["unimplemented"] if "recompile" in reason]
