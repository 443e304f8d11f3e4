"""The heads that find spans: of SQuAD 1.1, and of 2.0, where a question may have no answer.

Packed batches: the encoder's output is (T, H), sequences of different lengths end to end. Scores of
its positions are laid out as (B, S), with -inf where a sequence has no piece, so that a softmax is
over the real pieces alone. (In the reference's head for SQuAD 1.1 it also covers the padding, whose
scores are noise.)

Dimensions: K starts of a window, J ends for each; in a batch B sequences, S pieces of the longest,
T pieces in all, H hidden.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.model.albert import LAYER_NORM_EPSILON, AlbertModel
from albert_core.tasks import problem
from albert_core.tasks.problem import SequenceBatch, dense_layer

_OUTPUTS = ("starts", "start_scores", "ends", "end_scores", "null_scores")
"""Names of the outputs of both heads."""
BEAM_SIZE = 5
"""Starts that the answerability head keeps, and ends for each. Source: `run_squad_v2.py`."""


class StartEndHead(problem.Head):
    """One dense layer: a start and an end score for each position. The head of SQuAD 1.1.

    Where questions may have no answer, it is trained to point at [CLS] for them.

    Source: Devlin et al. 2019, sections 4.2 and 4.3. It is the head of Hugging Face's
    `AlbertForQuestionAnswering`, whose name for the layer is kept.

    Args:
        settings: the encoder's settings.
        num_candidates: K, the starts and the ends returned for each window.
    """

    def __init__(self, settings: ModelSettings, num_candidates: int) -> None:
        super().__init__()
        self.num_candidates = num_candidates
        self.qa_outputs = dense_layer(settings.hidden_size, 2, settings.initializer_range)

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean of the cross-entropies of start and end."""
        return 0.5 * _position_loss(*self._scores(encoder, batch), targets)

    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the best starts and ends of each window.

        Returns:
            ``starts`` and ``ends``, int64 (B, K), positions, the best first and of equals the
            earlier; ``start_scores`` and ``end_scores``, float32 (B, K), -inf beyond the length;
            ``null_scores``, float32 (B,), the scores of [CLS] as start and as end, summed.
        """
        start, end = self._scores(encoder, batch)
        start_scores, starts = best(start, self.num_candidates)
        end_scores, ends = best(end, self.num_candidates)
        found = (starts, start_scores, ends, end_scores, start[:, 0] + end[:, 0])
        return dict(zip(_OUTPUTS, found, strict=True))

    def _scores(self, encoder: AlbertModel, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Return logits of start and end, (B, S) each."""
        x = encoder(batch.input_ids, batch.token_type_ids, batch.runs)
        start, end = _at_least_float32(self.qa_outputs(x)).unbind(1)
        return by_sequence(start, batch), by_sequence(end, batch)


class AnswerabilityHead(problem.Head):
    """A start, an end that depends on the start, and whether there is an answer. For SQuAD 2.0.

    Start and end are in the paragraph or at [CLS], the target of windows without an answer.

    Source: `create_v2_model` in the reference's `squad_utils.py`, after XLNet's.
    """

    def __init__(self, settings: ModelSettings, dropout_prob: float) -> None:
        super().__init__()
        hidden, std = settings.hidden_size, settings.initializer_range
        self.start = dense_layer(hidden, 1, std)
        self.end_dense = dense_layer(2 * hidden, hidden, std)
        self.end_norm = nn.LayerNorm(hidden, LAYER_NORM_EPSILON)
        self.end = dense_layer(hidden, 1, std)
        self.impossible_dense = dense_layer(2 * hidden, hidden, std)
        self.dropout = nn.Dropout(dropout_prob)
        self.impossible = dense_layer(hidden, 1, std, bias=False)

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return half the cross-entropies of start, end and answerability.

        The end is scored from the true start.
        """
        x, allowed, start = self._encode(encoder, batch)
        of_start = x[batch.first_positions + targets["start_positions"]]
        end = self._end_scores(self._end_features(x), of_start, allowed, batch)
        impossible = self._impossible_scores(x, start, batch)
        is_impossible = targets["is_impossible"].to(impossible.dtype)
        return 0.5 * (
            _position_loss(start, end, targets)
            + F.binary_cross_entropy_with_logits(impossible, is_impossible)
        )

    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the best ends for each of the best starts of each window.

        Returns:
            ``starts`` and ``start_scores``, (B, K), ``ends`` and ``end_scores``, (B, K, K):
            positions, int64, the best first, and their log-probabilities, float32, -inf where
            a window has fewer; ``null_scores``, float32 (B,), the logit of no answer.
        """
        x, allowed, start = self._encode(encoder, batch)
        start_scores, starts = best(F.log_softmax(start, dim=1), BEAM_SIZE)
        features, found = self._end_features(x), []
        for rank in range(BEAM_SIZE):
            of_start = x[batch.first_positions + starts[:, rank]]
            end = self._end_scores(features, of_start, allowed, batch)
            found.append(best(F.log_softmax(end, dim=1), BEAM_SIZE))
        end_scores, ends = (torch.stack(each, dim=1) for each in zip(*found, strict=True))
        impossible = self._impossible_scores(x, start, batch)
        outputs = (starts, start_scores, ends, end_scores, impossible)
        return dict(zip(_OUTPUTS, outputs, strict=True))

    def _encode(self, encoder: AlbertModel, batch: SequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last layer (T, H), where starts may be, bool (B, S), their logits (B, S)."""
        x = encoder(batch.input_ids, batch.token_type_ids, batch.runs)
        allowed = by_sequence(batch.token_type_ids, batch, fill=0) == 1
        last_sep = (batch.lengths - 1)[:, None]
        allowed = allowed.scatter(1, last_sep, torch.zeros_like(last_sep, dtype=torch.bool))
        allowed[:, 0] = True
        start = by_sequence(_at_least_float32(self.start(x).squeeze(1)), batch)
        return x, allowed, start.masked_fill(~allowed, -torch.inf)

    def _end_features(self, x: Tensor) -> Tensor:
        """Return the half of `end_dense` that depends on the end's position, (T, H) of (T, H)."""
        return F.linear(x, self.end_dense.weight[:, : x.shape[1]])

    def _end_scores(
        self, features: Tensor, of_start: Tensor, allowed: Tensor, batch: SequenceBatch
    ) -> Tensor:
        """Return end logits (B, S), -inf where no answer may end.

        Args:
            features: the output of `_end_features`, the same for all starts.
            of_start: the last layer at the start, (B, H), the same for all ends.
            allowed: bool (B, S), where an answer may end.
            batch: the batch.
        """
        weight = self.end_dense.weight[:, of_start.shape[1] :]
        from_start = F.linear(of_start, weight, self.end_dense.bias)
        features = torch.tanh(features + from_start[sequence_of_piece(batch)])
        logits = self.end(self.end_norm(features)).squeeze(1)
        return by_sequence(_at_least_float32(logits), batch).masked_fill(~allowed, -torch.inf)

    def _impossible_scores(self, x: Tensor, start: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the logit (B,) of no answer, from (T, H) and the start logits (B, S)."""
        sequence = sequence_of_piece(batch)
        place = torch.arange(len(sequence), device=x.device) - batch.first_positions[sequence]
        weights = start.softmax(dim=1)[sequence, place].to(x.dtype)
        sizes = [number * length for number, length in batch.runs]
        parts = [
            torch.einsum("nl,nlh->nh", w.unflatten(0, run), v.unflatten(0, run))
            for w, v, run in zip(weights.split(sizes), x.split(sizes), batch.runs, strict=True)
        ]
        packed_place = batch.first_positions.argsort().argsort()
        of_start = torch.cat(parts)[packed_place]
        features = torch.cat([of_start, x[batch.first_positions]], dim=1)
        features = self.dropout(torch.tanh(self.impossible_dense(features)))
        return _at_least_float32(self.impossible(features).squeeze(1))


def sequence_of_piece(batch: SequenceBatch) -> Tensor:
    """Return, for each piece of a packed batch, int64 (T,), the number of its sequence."""
    order = batch.first_positions.argsort()
    return order.repeat_interleave(batch.lengths[order], output_size=len(batch.input_ids))


def by_sequence(values: Tensor, batch: SequenceBatch, fill: float = -torch.inf) -> Tensor:
    """Return (B, S) of (T,): a row a sequence, in the batch's order, ``fill`` after its end."""
    longest = max(length for _, length in batch.runs)
    places = torch.arange(longest, device=values.device)
    is_piece = places < batch.lengths[:, None]
    rows = (batch.first_positions[:, None] + places).where(is_piece, 0)
    return values[rows].masked_fill(~is_piece, fill)


def best(scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return the ``number`` best scores of each row (B, S), best first, and their places.

    Of equal ones the earlier is better, on every device. In a row with fewer, the remaining scores
    are -inf and the places 0.
    """
    if scores.shape[1] < number:
        scores = F.pad(scores, (0, number - scores.shape[1]), value=-torch.inf)
    values, places = scores.sort(dim=1, descending=True, stable=True)
    values, places = values[:, :number], places[:, :number]
    return values, places.masked_fill(values == -torch.inf, 0)


def _position_loss(start: Tensor, end: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the cross-entropies of start and end."""
    of_start = F.cross_entropy(start, targets["start_positions"])
    return of_start + F.cross_entropy(end, targets["end_positions"])


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
