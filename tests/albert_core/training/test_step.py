"""One update, on real examples: how it is cut and computed does not change it."""

import math
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from albert_core.config import ModelSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.execution import set_layer_execution
from albert_core.model.losses import IGNORED, num_right
from albert_core.stage.errors import ShapeError
from albert_core.training.batches import Batch
from albert_core.training.loader import UpdateBatch
from albert_core.training.optimizer import build_optimizer
from albert_core.training.order import example_order
from albert_core.training.ranks import ALONE
from albert_core.training.shards import ExampleShards
from albert_core.training.step import (
    TrainState,
    layers_at,
    masked_lm_loss,
    sentence_order_loss,
    train_step,
)
from tests.albert_core.made_examples import sizes_of
from tests.albert_core.training_runs import MODEL, TRAINING


@pytest.fixture(scope="module")
def shards(examples: str) -> ExampleShards:
    return ExampleShards(examples, "train")


def new_model(shards: ExampleShards, settings: ModelSettings = MODEL) -> AlbertForPretraining:
    torch.manual_seed(1)
    return AlbertForPretraining(settings, shards.result.vocab_size)


def begun(model: AlbertForPretraining) -> TrainState:
    return TrainState(model=model, optimizer=build_optimizer(model, "lamb", 0.01, 0.01))


def after_one_step(
    shards: ExampleShards,
    model: AlbertForPretraining,
    cuts: Sequence[int] = (),
    pair_task: str | None = "sentence_order",
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return weights and metrics after a step over 8 examples, cut at ``cuts``."""
    order = example_order(0, 8, len(shards), 1)
    parts = [shards.rows(order[a:b]).batch() for a, b in zip([0, *cuts], [*cuts, 8], strict=True)]
    batch = UpdateBatch(sizes=sizes_of(shards.rows(order)), micro_batches=iter(parts))
    update = train_step(begun(model), batch, TRAINING, ALONE, pair_task)
    assert not update.skipped
    return model.state_dict(), list(update.metrics.values())


@pytest.mark.parametrize("cuts", [[1, 6], [4], [1, 2, 3, 4, 5, 6, 7]])
def test_cutting_the_batch_unevenly_changes_nothing(shards: ExampleShards, cuts: list[int]) -> None:
    whole, whole_metrics = after_one_step(shards, new_model(shards).double())
    cut, cut_metrics = after_one_step(shards, new_model(shards).double(), cuts)
    torch.testing.assert_close(cut, whole, rtol=1e-11, atol=1e-11)
    assert cut_metrics == pytest.approx(whole_metrics, rel=1e-5)  # sums of float32


def test_without_pairs_to_learn_from_their_head_stays_as_it_is(shards: ExampleShards) -> None:
    before = new_model(shards).state_dict()
    after, metrics = after_one_step(shards, new_model(shards), pair_task=None)
    still = {name for name, weight in after.items() if torch.equal(weight, before[name])}
    parts = ("sentence_order", "encoder.pooler")
    assert still == {f"{part}.{each}" for part in parts for each in ("weight", "bias")}
    assert len(metrics) == 3  # masked LM loss and accuracy, gradient norm


def test_a_batch_of_any_size_needs_the_room_of_one_micro_batch(shards: ExampleShards) -> None:
    """Nothing that a micro-batch made is alive when the one after the next is asked for."""
    model = new_model(shards)
    state, numbers = begun(model), np.arange(512) % len(shards)
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    model.masked_lm.register_forward_hook(
        lambda _module, _inputs, logits: made.append(weakref.ref(logits))
    )

    def micro_batches() -> Iterator[Batch]:
        for part in np.split(numbers, 32):
            alive.append(sum(each() is not None for each in made))
            yield shards.rows(part).batch()

    batch = UpdateBatch(sizes=sizes_of(shards.rows(numbers)), micro_batches=micro_batches())
    train_step(state, batch, TRAINING, ALONE)
    assert (len(made), state.examples_taken) == (32, 512)
    assert max(alive) == 0


def test_activations_computed_again_give_the_same_gradients(shards: ExampleShards) -> None:
    found = []
    for again in (False, True):
        model = new_model(shards, MODEL.model_copy(update={"hidden_dropout_prob": 0.2}))
        set_layer_execution(model.encoder.blocks, compiled=False, activation_checkpointing=again)
        query, calls = model.get_submodule("encoder.attentions.0.query"), Mock(return_value=None)
        query.register_forward_hook(calls)
        found.append(after_one_step(shards, model)[0])
        assert calls.call_count == MODEL.num_hidden_layers * (1 + again)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")  # what torch.compile itself does
def test_compiled_layers_do_the_update_of_plain_ones(
    shards: ExampleShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced only: `test_compiled_layers_learn_what_plain_ones_do` makes code of them too."""
    trace = Mock(side_effect=partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(torch, "compile", trace)
    plain, _ = after_one_step(shards, new_model(shards))
    model = new_model(shards)
    set_layer_execution(model.encoder.blocks, compiled=True, activation_checkpointing=False)
    assert trace.call_count == 2  # the attention and the feed-forward block that all layers share
    compiled, _ = after_one_step(shards, model)
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("num_layers", "share", "expected"),
    [
        (1, 0.5, [1] * 10),
        (2, 0.5, [1] * 5 + [2] * 5),
        (3, 0.8, [1] * 4 + [2] * 4 + [3] * 2),
        (12, 0.8, [1, 1, 2, 2, 4, 4, 8, 8, 12, 12]),
        (12, 0.0, [12] * 10),
        (3, 0.99, [1] * 5 + [2] * 4 + [3]),
    ],
)
def test_layers_come_in_powers_of_two_until_all_are_there(
    num_layers: int, share: float, expected: list[int]
) -> None:
    assert [layers_at(step, 10, share, num_layers) for step in range(10)] == expected


# The losses


LOGITS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 2, 4, 3, 3, 1, 2])
ORDER_LABELS = torch.tensor([0, 1, 1, 0, 1, 0, 0])


@pytest.mark.parametrize(
    ("dtype", "of_loss"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_losses_are_at_least_float32_also_under_autocast(
    dtype: torch.dtype, of_loss: torch.dtype
) -> None:
    logits = LOGITS.to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        lm = masked_lm_loss(logits, LABELS, 7)
        order = sentence_order_loss(logits[:, :2], ORDER_LABELS, 7)
    assert lm.dtype == order.dtype == of_loss
    exact = logits.to(of_loss)
    torch.testing.assert_close(lm, F.cross_entropy(exact, LABELS))
    torch.testing.assert_close(order, F.cross_entropy(exact[:, :2], ORDER_LABELS))


def test_no_predictions_cost_nothing() -> None:
    logits = torch.zeros(0, 5, requires_grad=True)
    loss = masked_lm_loss(logits, LABELS[:0], 1)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None


def test_a_prediction_is_right_where_no_score_is_above_its_labels() -> None:
    labels = LOGITS.argmax(1)
    labels[1:3] = torch.tensor([IGNORED, 0])  # padding, and a score that is not the highest
    assert labels[2] != LOGITS[2].argmax()
    assert num_right(LOGITS, labels) == 5
    assert num_right(torch.full((2, 5), math.nan), LABELS[:2]) == 0


def test_tensors_that_do_not_fit_are_refused_with_their_shapes() -> None:
    with pytest.raises(ShapeError, match=r"labels \(6,\).*\(7, 5\)"):
        masked_lm_loss(LOGITS, LABELS[:6], 7)
    with pytest.raises(ShapeError, match=r"logits \(M, V\) \(1, 7, 5\)"):
        masked_lm_loss(LOGITS[None], LABELS, 7)
    with pytest.raises(ShapeError, match=r"labels \(7, 1\).*\(7, 2\)"):
        sentence_order_loss(LOGITS[:, :2], torch.zeros(7, 1, dtype=torch.long), 7)


@pytest.mark.filterwarnings("ignore")  # what torch.compile itself does
@pytest.mark.parametrize(
    ("compiled", "most_kernels", "most_gb"),
    [(False, 385, 42), pytest.param(True, 430, 28.5, marks=pytest.mark.long)],
)
def test_an_update_of_base_keeps_within_its_budget_and_waits_for_nothing(
    compiled: bool, most_kernels: int, most_gb: float
) -> None:
    from benchmarks.counted_update import WAITS, counted  # it loads torch's compiler

    update = counted("base-v2", compiled)
    assert not WAITS & (update.of_batch.number | update.of_optimizer.number).keys()
    assert update.of_batch.num_others <= most_kernels, update.of_batch.number
    assert update.of_batch.gb_of_others <= most_gb, update.of_batch.bytes
