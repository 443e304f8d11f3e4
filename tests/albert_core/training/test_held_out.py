from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.command import RunAgain
from albert_core.stage.manifest import Account, read_manifest
from albert_core.tasks.likelihoods import is_right
from albert_core.tasks.minimal_pairs import read_pairs
from albert_core.text.records import CLS, MASK, SEP
from albert_core.tracking.server import open_client
from albert_core.training import held_out
from albert_core.training.held_out import PAIRS_ACCURACY, PairSample, evaluate, evaluate_pairs
from albert_core.training.ranks import Ranks
from albert_core.training.shards import ExampleShards
from tests.albert_core import training_runs as runs
from tests.albert_core.made_examples import write_rows
from tests.albert_core.made_pairs import write_pairs
from tests.albert_core.tiny_model import logits_of, random_model, spread, tiny_settings
from tests.albert_core.tiny_vocab import tiny_vocab
from tests.albert_core.training.conftest import AroundStep, tell_to_stop_at

VOCAB_SIZE = 30
NUM_EXAMPLES = 70
"""More than one batch of the evaluation."""


def example(number: int) -> dict[str, Any]:
    """Return a row with one or two predictions; two rows make a document."""
    draw = np.random.default_rng(number)
    a, b = (draw.integers(5, VOCAB_SIZE, draw.integers(2, 9)).tolist() for _ in range(2))
    input_ids = [CLS, *a, SEP, *b, SEP]
    positions = [1, len(a) + 2][: 1 + number % 2]
    labels = [input_ids[position] for position in positions]
    for position in positions:
        input_ids[position] = MASK
    return {
        "input_ids": input_ids,
        "segment_b_start": len(a) + 2,
        "masked_lm_positions": positions,
        "masked_lm_labels": labels,
        "sentence_order_label": number % 3 % 2,
        "document_id": f"d{number // 2}",
    }


TASKS = ("masked_lm", "sentence_order")
ROWS = [example(number) for number in range(NUM_EXAMPLES)]


@pytest.fixture
def shards(tmp_path: Path) -> ExampleShards:
    """The examples above in two shards."""
    return ExampleShards(write_rows(str(tmp_path), [ROWS[:20], ROWS[20:]]), "train")


@pytest.fixture
def model() -> AlbertForPretraining:
    """A tiny model whose weights are far from zero."""
    settings = tiny_settings(hidden_dropout_prob=0.5, max_position_embeddings=32)
    torch.manual_seed(0)
    model = AlbertForPretraining(settings, VOCAB_SIZE)
    spread(model, 0.3)
    return model


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The sums of the ranks so far, which are added as they would be over a network."""
    parts: list[torch.Tensor] = []

    def sent(_: Ranks, sums: torch.Tensor) -> torch.Tensor:
        parts.append(sums)
        return torch.stack(parts).sum(0)

    monkeypatch.setattr(Ranks, "sum", sent)
    return parts


def by_hand(model: AlbertForPretraining, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Score one example at a time, without padding."""
    model.eval()
    sums: dict[str, list[float]] = {
        f"{task}_{measure}": [] for task in TASKS for measure in ("loss", "accuracy")
    }
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        types = (torch.arange(ids.shape[1]) >= row["segment_b_start"]).long()[None]
        with torch.no_grad():
            logits = logits_of(model, ids, None, types, torch.tensor([row["masked_lm_positions"]]))
        labels = row["masked_lm_labels"], [row["sentence_order_label"]]
        for task, its_logits, its_labels in zip(
            TASKS, (logits[0][0], logits[1]), labels, strict=True
        ):
            for probabilities, label in zip(its_logits.softmax(-1), its_labels, strict=True):
                sums[f"{task}_loss"].append(-float(probabilities[label].log()))
                sums[f"{task}_accuracy"].append(int(probabilities.argmax()) == label)
    return {name: float(np.mean(values)) for name, values in sums.items()}


@pytest.mark.parametrize("max_examples", [7, 1000])
def test_scores_are_those_of_one_example_at_a_time(
    model: AlbertForPretraining, shards: ExampleShards, max_examples: int
) -> None:
    scores = evaluate(model, shards, max_examples)
    expected = by_hand(model, ROWS[:max_examples])
    assert {name: score.value for name, score in scores.items()} == pytest.approx(
        expected, abs=1e-5
    )


def test_long_examples_are_scored_few_at_a_time(
    model: AlbertForPretraining, shards: ExampleShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 3 * shards.result.max_seq_length
    monkeypatch.setattr(held_out, "_BATCH_PIECES", most)
    seen: list[int] = []
    forward = model.forward

    def noted(**batch: Any) -> Any:
        seen.append(len(batch["input_ids"]))
        return forward(**batch)

    monkeypatch.setattr(model, "forward", noted)
    scores = evaluate(model, shards, NUM_EXAMPLES)
    assert max(seen) <= most
    monkeypatch.undo()
    whole = evaluate(model, shards, NUM_EXAMPLES)
    values = [[score.value for score in each.values()] for each in (scores, whole)]
    assert values[0] == pytest.approx(values[1], abs=1e-5)


def test_ranks_that_share_the_work_find_the_same_scores(
    model: AlbertForPretraining, shards: ExampleShards, sums: list[torch.Tensor]
) -> None:
    alone = evaluate(model, shards, NUM_EXAMPLES)
    sums.clear()
    for rank in range(3):
        ranks = Ranks(rank, 3, torch.device("cpu"))
        together = evaluate(model, shards, NUM_EXAMPLES, "sentence_order", ranks)
    assert together == alone
    assert all(len(part.any(0).nonzero()) < NUM_EXAMPLES for part in sums)


def test_examples_of_one_document_count_as_one_witness(
    model: AlbertForPretraining, tmp_path: Path
) -> None:
    alike = [ROWS[number // 10] for number in range(NUM_EXAMPLES)]
    apart = [row | {"document_id": f"d{number}"} for number, row in enumerate(alike)]
    together = [row | {"document_id": f"d{number // 10}"} for number, row in enumerate(alike)]
    wide, narrow = (
        evaluate(model, ExampleShards(write_rows(str(tmp_path / name), [rows]), "train"), 1000)
        for name, rows in (("together", together), ("apart", apart))
    )
    for name, score in wide.items():
        assert score.value == pytest.approx(narrow[name].value)
    ends = [(each["masked_lm_loss"].low, each["masked_lm_loss"].high) for each in (wide, narrow)]
    widths = [high - low for low, high in ends if low is not None and high is not None]
    assert widths[0] > 2 * widths[1]


def test_scoring_leaves_no_gradient_and_dropout_as_it_was(
    model: AlbertForPretraining, shards: ExampleShards
) -> None:
    model.train()
    first, again = (evaluate(model, shards, 10) for _ in range(2))
    assert first == again
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_ranks_that_share_the_pairs_find_what_one_finds(
    tmp_path: Path, sums: list[torch.Tensor]
) -> None:
    uri = f"{write_pairs(tmp_path, 25)}/minimal_pairs/made.jsonl"
    pairs = read_pairs("made", [uri])
    sample = PairSample(pairs, tiny_vocab(), Account(what="pairs", total=25, kept=25))
    model = random_model(max_position_embeddings=64, hidden_dropout_prob=0.5).train()
    alone = evaluate_pairs(model, sample)
    assert model.training
    right = is_right(model.eval(), tiny_vocab(), pairs, torch.device("cpu"))
    assert alone[PAIRS_ACCURACY].value == pytest.approx(right.mean())
    assert 0 < right.mean() < 1
    sums.clear()
    for rank in range(3):
        together = evaluate_pairs(model, sample, Ranks(rank, 3, torch.device("cpu")))
    assert together == alone


NAMES = {f"minimal_pairs_accuracy{end}" for end in ("", "_low", "_high")}


@pytest.fixture(scope="module", autouse=True)
def _small_sample() -> Iterator[None]:
    """A sample has 20 pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "_MAX_PAIRS", 20)
        yield


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 30 pairs, more than a sample has."""
    return write_pairs(tmp_path_factory.mktemp("tasks"), 30)


@pytest.fixture(scope="module")
def measured(
    examples: str, pairs: Path, _small_sample: None, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The manifest of a run that is scored on them."""
    return runs.train(examples, tmp_path_factory.mktemp("measured"), task_folder=pairs)


def test_a_sample_is_scored_at_each_evaluation_and_the_weights_are_the_same(
    measured: str, uninterrupted: str
) -> None:
    result = runs.result_of(measured)
    for point in result.evaluations:
        value = point["minimal_pairs_accuracy"]
        assert point["minimal_pairs_accuracy_low"] < value < point["minimal_pairs_accuracy_high"]
    assert [point["step"] for point in result.evaluations] == [6, 12]
    assert result.before.keys() == result.after.keys() >= {"minimal_pairs_accuracy"}
    account = read_manifest(measured).account("minimal pairs")
    assert (account.total, account.kept) == (30, 20)
    for name, weights in runs.weights_of(uninterrupted).items():
        assert torch.equal(runs.weights_of(measured)[name], weights), name
    run = open_client(str(Path(measured).parents[2])).get_run(str(result.mlflow_run_id))
    assert run.data.metrics.keys() >= {f"held_out/{name}" for name in NAMES}


def test_with_other_pairs_a_run_is_measured_again_and_not_trained_again(
    examples: str, measured: str, tmp_path: Path, around_step: AroundStep
) -> None:
    around_step(lambda _: pytest.fail("an update was made"))
    work = Path(measured).parents[2]
    again = runs.train(examples, work, task_folder=write_pairs(tmp_path, 7, seed=1))
    assert again != measured
    result, before = runs.result_of(again), runs.result_of(measured)
    key = "minimal_pairs_accuracy"
    assert read_manifest(again).account("minimal pairs").kept == 7
    assert {**result.after, key: None} == {**before.after, key: None}
    assert not any(point.keys() & NAMES for point in result.evaluations)


def test_an_unfinished_run_without_pairs_is_gone_on_with(
    examples: str,
    pairs: Path,
    uninterrupted: str,
    tmp_path: Path,
    around_step: AroundStep,
    caplog: pytest.LogCaptureFixture,
) -> None:
    around_step(tell_to_stop_at(8))
    with pytest.raises(RunAgain):
        runs.train(examples, tmp_path)
    around_step(lambda _: None)
    caplog.set_level("INFO")
    again = runs.train(examples, tmp_path, task_folder=pairs)
    assert "step-00000008" in caplog.text
    assert [point.keys() >= NAMES for point in runs.result_of(again).evaluations] == [False, True]
    for name, weights in runs.weights_of(uninterrupted).items():
        assert torch.equal(runs.weights_of(again)[name], weights), name
