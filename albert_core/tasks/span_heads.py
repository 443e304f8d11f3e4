"""Heads that say where in a window the answer stands, and whether it has one.

They take packed batches: the encoder's output is (T, H), sequences of different lengths end to
end. Scores of its positions, a number each, are laid out as (B, S), S the longest length, with
-inf where a sequence has no piece: a softmax then is over the real pieces alone. (That of the
reference's head for SQuAD 1.1 is over the padding too, whose scores are noise.)

The targets of a loss are those of `span_inputs`, (B,) each.

Dimensions: B sequences, S pieces of the longest, T pieces in all, H hidden, K candidates.

Scores of positions to answers: the best spans of each question over all its windows.

Source: `squad_utils.py` (`accumulate_predictions_v1`, `_v2` and `write_predictions_v1`, `_v2`) of
the reference. Other than there, a piece without characters, the mark of a word's start, is no
answer by itself; and a question for which no span is left has no answer instead of "empty".

Dimensions: W windows, N questions, K starts of a window, J ends for each, A answers of all
questions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import ModelSettings, SpanSettings
from albert_core.model.albert import LAYER_NORM_EPSILON, AlbertModel
from albert_core.tasks.examples import SpanExamples
from albert_core.tasks.problem import Head, Outputs
from albert_core.tasks.sequences import SequenceBatch
from albert_core.tasks.span_inputs import Windows
from albert_core.text.records import Ints

BEAM_SIZE = 5
"""Starts that the answerability head goes on from, and ends of each. Source: `run_squad_v2.py`."""


class StartEndHead(Head):
    """One dense layer: a start and an end score for each position. The head of SQuAD 1.1.

    Where questions may have no answer, it is trained to point at [CLS] for them.

    Source: Devlin et al. 2019, sections 4.2 and 4.3. It is that of Hugging
    Face's `AlbertForQuestionAnswering`, whose name for the layer is kept.

    Args:
        settings: the encoder's.
        num_candidates: K, starts and ends given of each window.
    """

    def __init__(self, settings: ModelSettings, num_candidates: int) -> None:
        super().__init__()
        self.num_candidates = num_candidates
        self.qa_outputs = _dense(settings.hidden_size, 2, settings.initializer_range)

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean of the cross-entropies of start and end."""
        start, end = self._scores(encoder, batch)
        return 0.5 * (
            F.cross_entropy(start, targets["start_positions"])
            + F.cross_entropy(end, targets["end_positions"])
        )

    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the best starts and ends of each window.

        Returns:
            ``starts`` and ``ends``, int64 (B, K), positions, the best first and of equals the
            earlier; ``start_scores`` and ``end_scores``, float32 (B, K), -inf beyond the length;
            ``null_scores``, float32 (B,), those of [CLS] as start and as end, summed.
        """
        start, end = self._scores(encoder, batch)
        start_scores, starts = best(start, self.num_candidates)
        end_scores, ends = best(end, self.num_candidates)
        return {
            "starts": starts,
            "start_scores": start_scores,
            "ends": ends,
            "end_scores": end_scores,
            "null_scores": start[:, 0] + end[:, 0],
        }

    def _scores(self, encoder: AlbertModel, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Return logits of start and end, (B, S) each."""
        x = encoder.encode(batch.input_ids, batch.token_type_ids, batch.runs)
        start, end = _at_least_float32(self.qa_outputs(x)).unbind(1)
        return by_sequence(start, batch), by_sequence(end, batch)


class AnswerabilityHead(Head):
    """A start, an end that knows the start, and whether there is an answer. For SQuAD 2.0.

    Start and end are in the paragraph or at [CLS], which windows without an answer have as target.

    Source: `create_v2_model` in the reference's `squad_utils.py`, after XLNet's.
    """

    def __init__(self, settings: ModelSettings, dropout_prob: float) -> None:
        super().__init__()
        hidden, std = settings.hidden_size, settings.initializer_range
        self.start = _dense(hidden, 1, std)
        self.end_dense = _dense(2 * hidden, hidden, std)
        self.end_norm = nn.LayerNorm(hidden, LAYER_NORM_EPSILON)
        self.end = _dense(hidden, 1, std)
        self.impossible_dense = _dense(2 * hidden, hidden, std)
        self.dropout = nn.Dropout(dropout_prob)
        self.impossible = _dense(hidden, 1, std, bias=False)

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return half the cross-entropies of start, end and answerability.

        The end is scored from the true start.
        """
        x, allowed, start = self._encode(encoder, batch)
        of_start = x[batch.first_positions + targets["start_positions"]]
        end = self._end_scores(self._end_features(x), of_start, batch)
        end = end.masked_fill(~allowed, -torch.inf)
        impossible = self._impossible_scores(x, start, batch)
        return 0.5 * (
            F.cross_entropy(start, targets["start_positions"])
            + F.cross_entropy(end, targets["end_positions"])
            + F.binary_cross_entropy_with_logits(
                impossible, targets["is_impossible"].to(impossible.dtype)
            )
        )

    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the best ends for each of the best starts of each window.

        Returns:
            ``starts`` and ``start_scores``, (B, K), ``ends`` and ``end_scores``, (B, K, K):
            positions, int64, the best first, and their log-probabilities, float32, -inf where
            there are not so many; ``null_scores``, float32 (B,), the logit of no answer.
        """
        x, allowed, start = self._encode(encoder, batch)
        start_scores, starts = best(F.log_softmax(start, dim=1), BEAM_SIZE)
        features, found = self._end_features(x), []
        for rank in range(BEAM_SIZE):
            of_start = x[batch.first_positions + starts[:, rank]]
            end = self._end_scores(features, of_start, batch)
            log_probabilities = F.log_softmax(end.masked_fill(~allowed, -torch.inf), dim=1)
            found.append(best(log_probabilities, BEAM_SIZE))
        end_scores, ends = (torch.stack(each, dim=1) for each in zip(*found, strict=True))
        return {
            "starts": starts,
            "start_scores": start_scores,
            "ends": ends,
            "end_scores": end_scores,
            "null_scores": self._impossible_scores(x, start, batch),
        }

    def _encode(self, encoder: AlbertModel, batch: SequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last layer (T, H), where starts may be, bool (B, S), their logits (B, S)."""
        x = encoder.encode(batch.input_ids, batch.token_type_ids, batch.runs)
        allowed = by_sequence(batch.token_type_ids, batch, fill=0) == 1
        last_sep = (batch.lengths - 1)[:, None]
        allowed = allowed.scatter(1, last_sep, torch.zeros_like(last_sep, dtype=torch.bool))
        allowed[:, 0] = True
        start = by_sequence(_at_least_float32(self.start(x).squeeze(1)), batch)
        return x, allowed, start.masked_fill(~allowed, -torch.inf)

    def _end_features(self, x: Tensor) -> Tensor:
        """Return the half of `end_dense` that is on the positions, (T, H) of (T, H)."""
        return F.linear(x, self.end_dense.weight[:, : x.shape[1]])

    def _end_scores(self, features: Tensor, of_start: Tensor, batch: SequenceBatch) -> Tensor:
        """Return end logits (B, S).

        Args:
            features: of `_end_features`, the same for all starts.
            of_start: the last layer at the start, (B, H): the same for all positions.
            batch: whose positions they are.
        """
        weight = self.end_dense.weight[:, of_start.shape[1] :]
        from_start = F.linear(of_start, weight, self.end_dense.bias)
        features = torch.tanh(features + from_start[sequence_of_piece(batch)])
        logits = self.end(self.end_norm(features)).squeeze(1)
        return by_sequence(_at_least_float32(logits), batch)

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
    """Return the ``number`` best of each row (B, S), best first, and where they stand.

    Of equal ones the earlier is better, on every device. Where there are not so many, the scores
    are -inf and the places 0.
    """
    if scores.shape[1] < number:
        scores = F.pad(scores, (0, number - scores.shape[1]), value=-torch.inf)
    values, places = scores.sort(dim=1, descending=True, stable=True)
    values, places = values[:, :number], places[:, :number]
    return values, places.masked_fill(values == -torch.inf, 0)


def _dense(inputs: int, outputs: int, std: float, bias: bool = True) -> nn.Linear:
    """Return a dense layer as the encoder's are drawn."""
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


_WINDOWS_AT_ONCE = 4096
"""With 20 starts and 20 ends, 1.6 million pairs."""


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """The best answers to N questions, A in all, those of a question beside each other."""

    texts: list[str]
    """A slices of paragraphs, different ones for a question, the best first."""
    begins: Ints
    """(A,), first character in the paragraph."""
    ends: Ints
    """(A,), the character after the last."""
    scores: NDArray[np.float64]
    """(A,), the start's and the end's, summed."""
    numbers: Ints
    """(N,), answers of each question, at most ``n_best``; 0 if no span is valid."""
    null_scores: NDArray[np.float64]
    """(N,), the least of the head's ``null_scores`` over the windows of the question."""

    @property
    def first(self) -> Ints:
        """(N,), where in A those of each question begin."""
        first: Ints = np.cumsum(self.numbers) - self.numbers
        return first


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Valid spans of all questions."""

    question: Ints
    begins: Ints
    ends: Ints
    scores: NDArray[np.float64]


def rank_answers(
    outputs: Outputs, windows: Windows, examples: SpanExamples, settings: SpanSettings
) -> RankedAnswers:
    """Return the best answers to each question.

    A span counts if it lies in the paragraph, begins where its window has the most context, ends
    no earlier than it begins, and has at most ``max_answer_length`` pieces. Of equal scores the
    one that begins and then ends first is better; of equal texts the better one stays.

    Args:
        outputs: of `StartEndHead` or `AnswerabilityHead` for the W windows: ``starts`` and
            ``start_scores`` (W, K), ``ends`` and ``end_scores`` (W, J), or (W, K, J) where they
            depend on the start, ``null_scores`` (W,).
        windows: W of them.
        examples: the N questions.
        settings: of the decoding.
    """
    parts = [
        _candidates(outputs, windows, slice(begin, begin + _WINDOWS_AT_ONCE), examples, settings)
        for begin in range(0, len(windows.first), _WINDOWS_AT_ONCE)
    ]
    question, begins, ends = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])
        for name in ("question", "begins", "ends")
    )
    scores = np.concatenate([np.zeros(0), *(part.scores for part in parts)])
    order = np.lexsort((ends, begins, -scores, question))
    question, begins, ends = question[order], begins[order], ends[order]
    kept, texts = _different_texts(question, begins, ends, examples, settings.n_best)
    null_scores = np.full(len(examples), np.inf)
    np.minimum.at(null_scores, windows.question_of, outputs["null_scores"].astype(np.float64))
    return RankedAnswers(
        texts=texts,
        begins=begins[kept],
        ends=ends[kept],
        scores=scores[order][kept],
        numbers=np.bincount(question[kept], minlength=len(examples)),
        null_scores=null_scores,
    )


def _candidates(
    outputs: Outputs, windows: Windows, part: slice, examples: SpanExamples, settings: SpanSettings
) -> _Candidates:
    """Return the valid spans of the windows ``part``."""
    offsets, lengths = windows.offsets[part, None], windows.lengths[part, None]
    start = outputs["starts"][part] - offsets  # (W, K), counted in the window's paragraph
    start_scores = outputs["start_scores"][part].astype(np.float64)
    begins_here = (start >= 0) & (start < lengths) & np.isfinite(start_scores)
    in_all = (np.cumsum(windows.lengths) - windows.lengths)[part, None] + start
    begins_here[begins_here] = windows.is_max_context[in_all[begins_here]]
    ends, end_scores = outputs["ends"][part], outputs["end_scores"][part].astype(np.float64)
    if ends.ndim == 2:
        ends, end_scores = ends[:, None], end_scores[:, None]
    size = ends - offsets[:, :, None] - start[:, :, None] + 1  # (W, K, J), pieces of the span
    room = np.minimum(settings.max_answer_length, lengths - start)
    valid = begins_here[:, :, None] & (size >= 1) & (size <= room[:, :, None])
    valid &= np.isfinite(end_scores)
    window, rank, place = np.nonzero(valid)
    question = windows.question_of[part][window]
    first = windows.first[part][window] + start[window, rank]
    begins, after = windows.paragraphs.characters(
        examples.paragraph_of[question], first, first + size[window, rank, place] - 1
    )
    end_scores = np.broadcast_to(end_scores, size.shape)
    scores = start_scores[window, rank] + end_scores[window, rank, place]
    some = after > begins
    return _Candidates(question[some], begins[some], after[some], scores[some])


def _different_texts(
    question: Ints, begins: Ints, ends: Ints, examples: SpanExamples, n_best: int
) -> tuple[Ints, list[str]]:
    """Return the first ``n_best`` spans of each question whose texts differ, and the texts."""
    kept: list[int] = []
    texts: list[str] = []
    bounds = np.searchsorted(question, np.arange(len(examples) + 1)).tolist()
    spans = list(zip(begins.tolist(), ends.tolist(), strict=True))
    for row, paragraph in enumerate(examples.paragraph_of.tolist()):
        text, seen = examples.paragraphs[paragraph], dict[str, int]()
        for place in range(bounds[row], bounds[row + 1]):
            if len(seen) == n_best:
                break
            begin, end = spans[place]
            seen.setdefault(text[begin:end], place)
        kept.extend(seen.values())
        texts.extend(seen)
    return np.array(kept, np.int64), texts
