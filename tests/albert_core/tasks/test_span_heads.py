"""The heads that find spans agree with the reference's, computed on padded batches."""

import numpy as np
import pytest
import torch
from torch import Tensor

from albert_core.model.albert import AlbertModel
from albert_core.tasks import problem
from albert_core.tasks.span_heads import BEAM_SIZE, AnswerabilityHead, StartEndHead, best
from tests.albert_core.tiny_model import encoded, spread, tiny_settings

VOCAB_SIZE = 50
LENGTHS = [(2, 3), (1, 9), (4, 4), (2, 3), (3, 0), (1, 4)]
"""Pieces of the question and of the paragraph; two windows are of equal length, one has none."""
ORDER = [3, 0, 5, 1, 4, 2]
SETTINGS = tiny_settings(max_position_embeddings=32)


class Case:
    """A packed batch with its targets, and the same padded by hand."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(5)
        self.encoder = AlbertModel(SETTINGS, VOCAB_SIZE).to(dtype).eval()
        spread(self.encoder, 0.3)
        draw, rows = np.random.default_rng(3), np.array(ORDER)
        pairs = [[draw.integers(5, VOCAB_SIZE, n).tolist() for n in pair] for pair in LENGTHS]
        sequences = problem.Sequences.of([(a, b) for a, b in pairs])
        self.batch: problem.SequenceBatch = sequences.batch(rows, torch.device("cpu"))
        size = int(sequences.lengths.max())
        self.ids = torch.zeros(len(rows), size, dtype=torch.long)
        self.types = torch.zeros_like(self.ids)
        self.mask = torch.zeros_like(self.ids, dtype=torch.bool)
        self.p_mask = torch.ones(len(rows), size, dtype=dtype)
        """1 at question, [SEP] and padding; 0 at [CLS] and in the paragraph."""
        starts, ends = [], []
        for place, row in enumerate(rows):
            length, b_start = int(sequences.lengths[row]), int(sequences.segment_b_starts[row])
            begin = sequences.begins[row]
            self.ids[place, :length] = torch.from_numpy(sequences.input_ids[begin : begin + length])
            self.types[place, b_start:length] = 1
            self.mask[place, :length] = True
            self.p_mask[place, 0] = 0
            self.p_mask[place, b_start : length - 1] = 0
            has_answer = length - 1 > b_start and place != 1
            starts.append(b_start if has_answer else 0)
            ends.append(length - 2 if has_answer else 0)
        self.targets = {
            "start_positions": torch.tensor(starts),
            "end_positions": torch.tensor(ends),
            "is_impossible": torch.tensor(starts) == 0,
        }

    def hidden(self) -> Tensor:
        """Return the last layer, (B, S, H)."""
        return encoded(self.encoder, self.ids, self.mask, self.types)[0]


def start_end(num_candidates: int) -> StartEndHead:
    head = StartEndHead(SETTINGS, num_candidates)
    spread(head, 0.5)
    return head.double().eval()


def answerability() -> AnswerabilityHead:
    head = AnswerabilityHead(SETTINGS, dropout_prob=0.1)
    spread(head, 0.5)
    return head.double().eval()


def mean_negative_log(log_probabilities: Tensor, positions: Tensor) -> Tensor:
    return -log_probabilities[torch.arange(len(positions)), positions].mean()


def test_the_start_and_end_loss_is_the_references() -> None:
    case, head = Case(), start_end(5)
    logits = case.hidden() @ head.qa_outputs.weight.T + head.qa_outputs.bias
    logits = logits.masked_fill(~case.mask[:, :, None], -1e30)
    expected = sum(
        0.5 * mean_negative_log(logits[:, :, at].log_softmax(1), case.targets[name])
        for at, name in enumerate(["start_positions", "end_positions"])
    )
    loss = head.loss(case.encoder, case.batch, case.targets)
    torch.testing.assert_close(loss, expected)


def test_the_start_and_end_outputs_are_the_best_positions() -> None:
    case, head = Case(), start_end(8)
    logits = case.hidden() @ head.qa_outputs.weight.T + head.qa_outputs.bias
    found = head.outputs(case.encoder, case.batch)
    for row, length in enumerate(case.mask.sum(1).tolist()):
        for at, name in enumerate(["start", "end"]):
            scores = logits[row, :length, at]
            order = scores.argsort(descending=True)[:8]
            assert found[f"{name}s"][row, : len(order)].tolist() == order.tolist()
            torch.testing.assert_close(found[f"{name}_scores"][row, : len(order)], scores[order])
            assert (found[f"{name}_scores"][row, len(order) :] == -torch.inf).all()
    torch.testing.assert_close(found["null_scores"], logits[:, 0].sum(1))


def plain_answerability(
    head: AnswerabilityHead, x: Tensor, p_mask: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of start and end, and the logit of no answer.

    In the words of `create_v2_model` of the reference: ends as from ``starts``, (B,).
    """
    start_logits = (x @ head.start.weight.T + head.start.bias).squeeze(-1)
    start_masked = start_logits * (1 - p_mask) - 1e30 * p_mask
    index = torch.nn.functional.one_hot(starts, x.shape[1]).to(x.dtype)
    start_features = torch.einsum("blh,bl->bh", x, index)[:, None].expand_as(x)
    end = torch.cat([x, start_features], dim=-1) @ head.end_dense.weight.T + head.end_dense.bias
    end = torch.tanh(end)
    end = (end - end.mean(-1, keepdim=True)) / (
        end.var(-1, unbiased=False, keepdim=True) + 1e-12
    ).sqrt()
    end = end * head.end_norm.weight + head.end_norm.bias
    end_logits = (end @ head.end.weight.T + head.end.bias).squeeze(-1)
    end_masked = end_logits * (1 - p_mask) - 1e30 * p_mask
    start_feature = torch.einsum("blh,bl->bh", x, start_masked.softmax(-1))
    answer = torch.cat([start_feature, x[:, 0]], dim=-1)
    answer = torch.tanh(answer @ head.impossible_dense.weight.T + head.impossible_dense.bias)
    impossible = (answer @ head.impossible.weight.T).squeeze(-1)
    return start_masked.log_softmax(-1), end_masked.log_softmax(-1), impossible


def test_the_answerability_loss_is_the_references() -> None:
    case, head = Case(), answerability()
    start, end, impossible = plain_answerability(
        head, case.hidden(), case.p_mask, case.targets["start_positions"]
    )
    labels = case.targets["is_impossible"].double()
    cross_entropy = -(
        labels * impossible.sigmoid().log() + (1 - labels) * (1 - impossible.sigmoid()).log()
    )
    expected = 0.5 * (
        mean_negative_log(start, case.targets["start_positions"])
        + mean_negative_log(end, case.targets["end_positions"])
        + cross_entropy.mean()
    )
    torch.testing.assert_close(head.loss(case.encoder, case.batch, case.targets), expected)


def test_the_answerability_outputs_are_the_references_beam() -> None:
    case, head = Case(), answerability()
    x = case.hidden()
    found = head.outputs(case.encoder, case.batch)
    zeros = torch.zeros(len(x), dtype=torch.long)
    start, _, impossible = plain_answerability(head, x, case.p_mask, zeros)
    torch.testing.assert_close(found["null_scores"], impossible)
    scores, places = start.topk(BEAM_SIZE, dim=1)
    real = scores > -1e29
    assert not real.all()
    torch.testing.assert_close(found["start_scores"][real], scores[real])
    assert (found["start_scores"][~real] == -torch.inf).all()
    assert (found["starts"] == places)[real].all()
    for rank in range(BEAM_SIZE):
        _, end, _ = plain_answerability(head, x, case.p_mask, places[:, rank])
        end_scores, ends = end.topk(BEAM_SIZE, dim=1)
        kept = (end_scores > -1e29) & real[:, rank, None]
        torch.testing.assert_close(found["end_scores"][:, rank][kept], end_scores[kept])
        assert (found["ends"][:, rank] == ends)[kept].all()


@pytest.mark.parametrize("head", [StartEndHead(SETTINGS, 5), AnswerabilityHead(SETTINGS, 0.1)])
def test_every_weight_of_a_head_learns_and_half_precision_gives_scores_in_float32(
    head: problem.Head,
) -> None:
    case = Case(torch.float32)
    head.loss(case.encoder, case.batch, case.targets).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # A constant added to all scores of a softmax changes nothing.
        if name not in ("qa_outputs.bias", "start.bias", "end.bias"):
            assert parameter.grad.abs().max() > 0, name
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        loss = head.loss(case.encoder, case.batch, case.targets)
        outputs = head.outputs(case.encoder, case.batch)
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    scores = [value.dtype for name, value in outputs.items() if name.endswith("scores")]
    assert set(scores) == {torch.float32}


def test_dropout_is_on_answerability_alone() -> None:
    case = Case()
    heads: list[tuple[problem.Head, bool]] = [(answerability(), True), (start_end(5), False)]
    for head, differs in heads:
        head.train()
        with torch.no_grad():
            losses = {float(head.loss(case.encoder, case.batch, case.targets)) for _ in "abcd"}
        assert (len(losses) > 1) == differs


def test_of_equal_scores_the_earlier_is_better() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 1.0], [-torch.inf, 0.0, -torch.inf, -torch.inf]])
    values, places = best(scores, 3)
    assert places.tolist() == [[1, 2, 0], [1, 0, 0]]
    assert values[1].tolist() == [0.0, -torch.inf, -torch.inf]
    assert best(scores, 6)[1].shape == (2, 6)
