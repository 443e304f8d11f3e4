"""SQuAD: questions that a span of a paragraph answers; in 2.0 some have no answer.

A unit is a window, [CLS] question [SEP] part of the paragraph [SEP]. Windows of a question overlap,
and a piece counts in the window that gives it the most context on both sides. Each paragraph is
encoded once, and no question is left out.

An answer that begins or ends inside a piece gets the whole piece: "gold" in "golden" becomes
"golden". Most of these are mistakes of the annotation, and the same text occurs as a word of its
own elsewhere in the paragraph ("7" marked in "17"). The nearest such place is then the target.

The best spans of a question are those with the highest scores over all its windows. Other than in
the reference, a piece without characters, the mark of a word's start, is no answer by itself; and a
question for which no span is left has no answer instead of "empty".

In SQuAD 2.0, a question is left without an answer if the model's belief that it has none exceeds a
threshold. It is searched for the best F1, as the official evaluation does, on the questions that
the caller allows; the exact matches reported are those of the same predictions. The reference then
also leaves without an answer what has a logit above 1, a slip that is not repeated here.

Source: `squad_utils.py` (`convert_examples_to_features`, `accumulate_predictions_v1`, `_v2` and
`write_predictions_v1`, `_v2`) of the reference, without its search that aligned pieces with
characters and gave up on some paragraphs.

Dimensions: P paragraphs, W windows, N questions, K starts of a window, J ends for each, A answers
to all questions.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import ModelSettings, SpanSettings
from albert_core.metrics import SHARE
from albert_core.model.albert import LAYER_NORM_EPSILON, AlbertModel
from albert_core.stage.errors import ConfigError, IntegrityError
from albert_core.stage.manifest import Account
from albert_core.tasks import squad
from albert_core.tasks.examples import Answer, SpanExamples, Task
from albert_core.tasks.problem import (
    Bools,
    Head,
    Inputs,
    Outputs,
    Problem,
    Scored,
    SequenceBatch,
    Sequences,
    dense_layer,
)
from albert_core.text.records import NUM_SPECIAL_IN_PAIR, Ints, ranges
from albert_core.text.tokenizer import WORD_MARK, Tokenizer

Span = tuple[int, int]
"""The first character, and the one after the last."""

_WORD = re.compile(r"\S+")
_APART = re.compile("[^ ]+")
"""A word for the tokenizer: decomposition may have broken one word of the text into two."""


@dataclass(frozen=True, slots=True)
class PieceSpans:
    """The pieces of N texts, T in all, laid end to end."""

    ids: NDArray[np.int32]
    """(T,), those of `Tokenizer.encode`."""
    begins: Ints
    """(T,), the first character of each piece in its own text; never descending in a text."""
    ends: Ints
    """(T,), the character after its last; never descending in a text. A piece that is only the
    mark of a word's start has no character: its end is its begin, which is that of the next piece.
    Between words that were one character ("ﷺ"), however, it has that character."""
    lengths: Ints
    """(N,), pieces of each text, which sum to T."""


def encode_with_spans(tokenizer: Tokenizer, texts: Sequence[str]) -> PieceSpans:
    """Return the pieces of each text and where they stand in it.

    A span includes the accents that were dropped after its characters, and no blank at its ends.
    Pieces made of one character, like the three of "½", all have that character.

    Raises:
        IntegrityError: the vocabulary has pieces for single bytes of a character.
    """
    known: dict[str, list[tuple[int, int, int]]] = {}
    rows: list[tuple[int, int, int]] = []
    lengths = np.zeros(len(texts), np.int64)
    for number, text in enumerate(texts):
        words = [(word[0], word.start()) for word in _WORD.finditer(text)]
        for unit, place in words if tokenizer.words_are_apart else [(text, 0)]:
            if unit not in known:
                known[unit] = _pieces_of_unit(tokenizer, unit)
            rows += [(piece, begin + place, end + place) for piece, begin, end in known[unit]]
            lengths[number] += len(known[unit])
    ids, begins, ends = np.array(rows, np.int64).reshape(-1, 3).T
    return PieceSpans(ids.astype(np.int32), begins, ends, lengths)


def _pieces_of_unit(tokenizer: Tokenizer, unit: str) -> list[tuple[int, int, int]]:
    """Return id, begin and end of the pieces of a unit."""
    normalised, spans = normalise_with_spans(unit, tokenizer.lower_case, tokenizer.keep_accents)
    words = [(word[0], word.start()) for word in _APART.finditer(normalised)]
    found, reach = [], 0
    for word, first in words if tokenizer.words_are_apart else [(normalised, 0)]:
        for piece, begin, end in _pieces_of_word(tokenizer, word):
            place, after = _in_text(spans, first + begin, first + end)
            # Where one character became several words, the mark of the second would end before it.
            reach = max(reach, after)
            found.append((piece, place, reach))
    return found


def _in_text(spans: list[Span], begin: int, end: int) -> Span:
    """Return where characters begin..end of the normalised text are in the text itself."""
    if begin == end:
        place = spans[begin][0] if begin < len(spans) else spans[-1][1]
        return place, place
    return spans[begin][0], spans[end - 1][1]


def normalise_with_spans(
    text: str, lower_case: bool, keep_accents: bool = False
) -> tuple[str, list[Span]]:
    """Return what `normalise_for_pieces` does, and where each of its characters is from.

    Dropped characters belong to the character before them in the word, and of characters that are
    composed all belong to each that comes of them. A space comes from all the blanks between two
    words.
    """
    characters: list[str] = []
    spans: list[Span] = []
    for number, word in enumerate(_WORD.finditer(text)):
        begin = word.start()
        if number:
            characters.append(" ")
            spans.append((spans[-1][1] if spans else 0, begin))
        first = len(spans)
        for place, end, kept in _composing(word[0]) if keep_accents else _alone(word[0]):
            characters.extend(kept)
            spans.extend([(begin + place, begin + end)] * len(kept))
            if not kept and len(spans) > first:
                spans[-1] = (spans[-1][0], begin + end)
    normalised = "".join(characters)
    if not lower_case:
        return normalised, spans
    # One letter, "İ", becomes two.
    longer = [span for c, span in zip(normalised, spans, strict=True) for _ in c.lower()]
    return normalised.lower(), longer


def _alone(word: str) -> Iterator[tuple[int, int, str]]:
    """Yield each character's place in the word, the place after it, and what it becomes."""
    for place, character in enumerate(word):
        decomposed = unicodedata.normalize("NFKD", character)
        yield place, place + 1, "".join(c for c in decomposed if not unicodedata.combining(c))


def _composing(word: str) -> Iterator[tuple[int, int, str]]:
    """Yield the same for characters that are composed together; marks that stay are alone."""
    begin = 0
    for end in range(1, len(word) + 1):
        together, after = word[begin:end], word[end : end + 1]
        composed = unicodedata.normalize("NFKC", together)
        alone = composed + unicodedata.normalize("NFKC", after)
        if after and (
            unicodedata.combining(after) or unicodedata.normalize("NFKC", together + after) != alone
        ):
            continue
        if composed == together:
            yield from ((begin + n, begin + n + 1, c) for n, c in enumerate(together))
        else:
            yield begin, end, composed
        begin = end


def _pieces_of_word(tokenizer: Tokenizer, word: str) -> list[tuple[int, int, int]]:
    """Return id, begin and end of the pieces of a word of normalised text.

    SentencePiece tells where in the word each character of its own normalised word is from; the
    pieces, without marks, are those characters in order.
    """
    processor = tokenizer.processor
    normalised, offsets = processor.normalize(word, with_offsets=True)
    spans: list[Span] = []
    end = offsets[-1]
    for place in range(len(normalised) - 1, -1, -1):
        # If one character became several, they all come from the same place.
        if offsets[place] < offsets[place + 1]:
            end = offsets[place + 1]
        if normalised[place] != WORD_MARK:
            spans.append((offsets[place], end))
    spans.reverse()
    both = (processor.encode(word, out_type=kind, num_threads=1) for kind in (int, str))
    pieces: list[tuple[int, str]] = list(zip(*both, strict=True))
    if tokenizer.split_digit_commas:
        pieces = [p for piece in pieces for p in tokenizer.digit_commas.get(piece[0], [piece])]
    bounds = [*accumulate((len(text) - text.count(WORD_MARK) for _, text in pieces), initial=0)]
    if bounds[-1] != len(spans):
        raise IntegrityError(
            f"the pieces {[text for _, text in pieces]} do not make up {normalised!r}, as the "
            f"vocabulary sees {word!r}: it has pieces for bytes. Train it without byte_fallback."
        )
    spans.append((offsets[-1], offsets[-1]))
    return [
        (piece, spans[first][0], spans[max(first, last - 1)][1 if last > first else 0])
        for (piece, _), first, last in zip(pieces, bounds, bounds[1:], strict=False)
    ]


BEAM_SIZE = 5
"""Starts that the answerability head keeps, and ends for each. Source: `run_squad_v2.py`."""


class StartEndHead(Head):
    """One dense layer: a start and an end score for each position. The head of SQuAD 1.1.

    Where questions may have no answer, it is trained to point at [CLS] for them.

    Source: Devlin et al. 2019, sections 4.2 and 4.3. It is the head of Hugging Face's
    `AlbertForQuestionAnswering`, whose name for the layer is kept.

    Args:
        settings: of the encoder.
        num_candidates: K, starts and ends returned for each window.
    """

    def __init__(self, settings: ModelSettings, num_candidates: int) -> None:
        super().__init__()
        self.num_candidates = num_candidates
        self.qa_outputs = dense_layer(settings.hidden_size, 2, settings.initializer_range)

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean of the cross-entropies of start and end."""
        start, end = self._scores(encoder, batch)
        return 0.5 * _position_loss(start, end, targets)

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
        return _named(starts, start_scores, ends, end_scores, start[:, 0] + end[:, 0])

    def _scores(self, encoder: AlbertModel, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Return logits of start and end, (B, S) each."""
        x = encoder.encode(batch.input_ids, batch.token_type_ids, batch.runs)
        start, end = _at_least_float32(self.qa_outputs(x)).unbind(1)
        return by_sequence(start, batch), by_sequence(end, batch)


class AnswerabilityHead(Head):
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
        null_scores = self._impossible_scores(x, start, batch)
        return _named(starts, start_scores, ends, end_scores, null_scores)

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
        """Return the half of `end_dense` that depends on the end's position, (T, H) of (T, H)."""
        return F.linear(x, self.end_dense.weight[:, : x.shape[1]])

    def _end_scores(
        self, features: Tensor, of_start: Tensor, allowed: Tensor, batch: SequenceBatch
    ) -> Tensor:
        """Return end logits (B, S), -inf where no answer may end.

        Args:
            features: of `_end_features`, the same for all starts.
            of_start: the last layer at the start, (B, H), the same for all ends.
            allowed: bool (B, S), where an answer may end.
            batch: the sequences.
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


def _named(
    starts: Tensor, start_scores: Tensor, ends: Tensor, end_scores: Tensor, null_scores: Tensor
) -> dict[str, Tensor]:
    return {
        "starts": starts,
        "start_scores": start_scores,
        "ends": ends,
        "end_scores": end_scores,
        "null_scores": null_scores,
    }


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


UNSEARCHED_THRESHOLD = 0.5
"""Probability of no answer above which a question has none, if there are no labels to search it."""
_LOGIT_WITHOUT_SPAN = 1e6
"""The logit of no answer if no span is valid. `squad_utils.py` gives the span -1e6."""
_WINDOWS_AT_ONCE = 4096
"""With 20 starts and 20 ends, 1.6 million pairs."""
_NUMBERS_OF_WORDS = (1, 2, 3, 5, 8, 12, 20, 30)
_LENGTH_BONUS = 0.01
"""Weight of a window's length beside that of a piece's context."""


class ParagraphPieces:
    """The pieces of P paragraphs, found by their characters.

    Args:
        paragraphs: P texts.
        spans: their pieces.
    """

    def __init__(self, paragraphs: list[str], spans: PieceSpans) -> None:
        self.paragraphs, self.spans = paragraphs, spans
        self.first_pieces = np.cumsum(spans.lengths) - spans.lengths
        """(P,), where in all pieces those of each paragraph begin."""
        # All paragraphs as one text, a character between them: offsets then ascend throughout.
        sizes = np.fromiter(map(len, paragraphs), np.int64, len(paragraphs)) + 1
        self._shifts = np.cumsum(sizes) - sizes
        shifts = np.repeat(self._shifts, spans.lengths)
        self._begins, self._ends = spans.begins + shifts, spans.ends + shifts

    def covering(self, paragraph: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the first and last piece that contain any of the characters begin..end.

        Args:
            paragraph: (N,), as are the next two: number of the paragraph.
            begin: the first character, in the paragraph.
            end: the character after the last.

        Returns:
            (N,) and (N,), counted in the paragraph; the last is before the first where no piece
            contains any of the characters.
        """
        shift, first_piece = self._shifts[paragraph], self.first_pieces[paragraph]
        first = np.searchsorted(self._ends, begin + shift, side="right")
        last = np.searchsorted(self._begins, end + shift, side="left") - 1
        return first - first_piece, last - first_piece

    def characters(self, paragraph: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Return the first character of piece ``first`` and the one after piece ``last``."""
        first_piece = self.first_pieces[paragraph]
        return self.spans.begins[first + first_piece], self.spans.ends[last + first_piece]


def span_targets(examples: SpanExamples, pieces: ParagraphPieces) -> tuple[Ints, Ints]:
    """Return the first and the last piece of the first answer to each question.

    Returns:
        (N,) and (N,), counted in the paragraph; both -1 if there is no answer, or none of it
        became a piece.
    """
    size = len(examples)
    answers = [answers[0] if answers else Answer("", 0) for answers in examples.answers]
    begin = np.fromiter((answer.start for answer in answers), np.int64, size)
    end = begin + np.fromiter((len(answer.text) for answer in answers), np.int64, size)
    first, last = pieces.covering(examples.paragraph_of, begin, end)
    none = (end == begin) | (last < first)
    rows = np.flatnonzero(~none)
    covered = pieces.characters(examples.paragraph_of[rows], first[rows], last[rows])
    beyond = (covered[0] < begin[rows]) | (covered[1] > end[rows])
    for row in rows[beyond].tolist():
        place = _whole_place(pieces, int(examples.paragraph_of[row]), answers[row])
        if place is not None:
            first[row], last[row] = place
    first[none] = last[none] = -1
    return first, last


def _whole_place(pieces: ParagraphPieces, paragraph: int, answer: Answer) -> tuple[int, int] | None:
    """Return the pieces of the nearest place where no letter or digit adjoins the answer's text."""
    text, number = pieces.paragraphs[paragraph], np.array([paragraph])
    # A look-ahead, so that places may overlap.
    places = [place.start() for place in re.finditer(f"(?={re.escape(answer.text)})", text)]
    for begin in sorted(places, key=lambda place: (abs(place - answer.start), place)):
        end = begin + len(answer.text)
        first, last = pieces.covering(number, np.array([begin]), np.array([end]))
        left, right = pieces.characters(number, first, last)
        beyond = text[left[0] : begin] + text[end : right[0]]
        if first <= last and not any(map(str.isalnum, beyond)):
            return int(first[0]), int(last[0])
    return None


@dataclass(frozen=True, slots=True)
class Windows:
    """W windows of the paragraphs of N questions, those of a question beside each other."""

    question_of: Ints
    """(W,), ascending."""
    first: Ints
    """(W,), the window's first piece, counted in the paragraph."""
    lengths: Ints
    """(W,), pieces of the paragraph in the window."""
    offsets: Ints
    """(W,), the position of the first of them in the input sequence."""
    is_max_context: NDArray[np.bool_]
    """For all windows' pieces, end to end: whether each has its most context in this window."""
    paragraphs: ParagraphPieces = field(repr=False)
    """The pieces of the paragraphs."""


def span_inputs(
    examples: SpanExamples, tokenizer: Tokenizer, max_seq_length: int, settings: SpanSettings
) -> Inputs:
    """Return a unit for each window.

    Targets, where the answers are known: ``start_positions`` and ``end_positions``, int64
    (W,), positions of the answer's first and last piece in the sequence; ``is_impossible``, bool
    (W,), whether the window does not contain a whole answer: both positions are then 0. As in the
    reference, such windows are kept. Details: `Windows`.

    Raises:
        ConfigError: a question leaves no room for its paragraph.
    """
    paragraphs = ParagraphPieces(
        examples.paragraphs, encode_with_spans(tokenizer, examples.paragraphs)
    )
    questions = tokenizer.encode(examples.questions)
    queries = [ids[: settings.max_query_length] for ids in questions]
    query_lengths = np.fromiter(map(len, queries), np.int64, len(queries))
    room = max_seq_length - NUM_SPECIAL_IN_PAIR - query_lengths
    if room.min() < 1:
        raise ConfigError(
            f"max_seq_length is {max_seq_length}, which leaves no room for a paragraph beside a "
            f"question of {query_lengths.max()} pieces. Raise it above "
            f"{settings.max_query_length + NUM_SPECIAL_IN_PAIR}, or lower max_query_length."
        )
    windows = _windows(examples.paragraph_of, paragraphs, query_lengths, room, settings.doc_stride)
    pieces = paragraphs.spans.ids.tolist()
    begins = paragraphs.first_pieces[examples.paragraph_of[windows.question_of]] + windows.first
    parts = zip(begins.tolist(), (begins + windows.lengths).tolist(), strict=True)
    sequences = Sequences.of(
        [
            (queries[question], pieces[begin:end])
            for question, (begin, end) in zip(windows.question_of.tolist(), parts, strict=True)
        ]
    )
    targets: dict[str, NDArray[Any]] = {}
    if examples.is_labelled:
        first, last = (each[windows.question_of] for each in span_targets(examples, paragraphs))
        inside = (first >= windows.first) & (last < windows.first + windows.lengths)
        shift = windows.offsets - windows.first
        targets = {
            "start_positions": np.where(inside, first + shift, 0),
            "end_positions": np.where(inside, last + shift, 0),
            "is_impossible": ~inside,
        }
    total, kept = sum(map(len, questions)), int(query_lengths.sum())
    account = Account(
        what="question pieces", total=total, kept=kept, dropped={"too_long": total - kept}
    )
    return Inputs(sequences, targets, [account], details=windows)


def _windows(
    paragraph_of: Ints, paragraphs: ParagraphPieces, query_lengths: Ints, room: Ints, stride: int
) -> Windows:
    """Return windows of at most ``room`` pieces, ``stride`` pieces, or less, after each other."""
    total = paragraphs.spans.lengths[paragraph_of]
    step = np.minimum(room, stride)
    numbers = 1 + np.maximum(0, -((room - total) // step))
    question_of = np.repeat(np.arange(len(paragraph_of)), numbers)
    first = ranges(np.zeros_like(numbers), numbers) * step[question_of]
    lengths = np.minimum(room[question_of], total[question_of] - first)
    return Windows(
        question_of=question_of,
        first=first,
        lengths=lengths,
        offsets=query_lengths[question_of] + 2,
        is_max_context=_is_max_context(question_of, numbers, first, lengths),
        paragraphs=paragraphs,
    )


def _is_max_context(
    question_of: Ints, numbers: Ints, first: Ints, lengths: Ints
) -> NDArray[np.bool_]:
    """Return, for all windows' pieces, whether no window of the question gives them more context.

    Of two windows that give the same, the earlier one counts.

    Source: `_check_is_max_context` of the reference.
    """
    found = np.ones(int(lengths.sum()), np.bool_)
    contested = np.flatnonzero(np.repeat(numbers[question_of] > 1, lengths))
    window = np.repeat(np.arange(len(first)), lengths)[contested]
    left = ranges(np.zeros_like(lengths), lengths)[contested]
    context = np.minimum(left, lengths[window] - 1 - left) + _LENGTH_BONUS * lengths[window]
    piece = first[window] + left
    order = np.lexsort((window, -context, piece, question_of[window]))
    same = (np.diff(piece[order]) == 0) & (np.diff(question_of[window][order]) == 0)
    found[contested[order[1:][same]]] = False
    return found


class SpanProblem(Problem[SpanExamples]):
    """SQuAD.

    A unit is a window of a paragraph. The columns of `Scored.predictions`:

        id            as in the file
        prediction    a slice of the paragraph; "" if the question is left without an answer
        start, end    its first character in the paragraph and the one after its last; or null
        score         of the best span, predicted or not; null if no span is valid
        null_score    logit of no answer; null if all questions have one
        answers       right texts; empty if there is none
        exact_match   0 or 1; null without labels
        f1            0..1; null without labels
        n_best        list of text, start, end, score: spans of different texts, the best first
    """

    def __init__(self, task: Task, settings: SpanSettings) -> None:
        super().__init__(task)
        self.settings = settings
        self.has_answerability = task.has_answerless and settings.answer_head == "answerability"

    def inputs(self, examples: SpanExamples, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Return the windows; see `span_inputs`. They are the same in training and out of it."""
        return span_inputs(examples, tokenizer, max_seq_length, self.settings)

    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return the head of SQuAD 1.1, or the one that ``answer_head`` names for 2.0."""
        if self.has_answerability:
            return AnswerabilityHead(settings, dropout_prob)
        return StartEndHead(settings, self.settings.n_best)

    def score(
        self,
        outputs: Outputs,
        inputs: Inputs,
        examples: SpanExamples,
        chosen_on: Bools | None = None,
    ) -> Scored:
        """Return predictions, and ``exact_match`` and ``f1`` as shares, 0..1.

        Facts: ``official``, the output of the official evaluation for the spans, in percent; in
        2.0 also ``no_answer_threshold``, a probability.
        """
        ranked = rank_answers(outputs, inputs.details, examples, self.settings)
        has_answerless, answers = self.task.has_answerless, _texts_of_answers(examples)
        texts, is_answered = ranked.best_texts, ranked.numbers > 0
        scores, null_scores, facts = None, None, dict[str, Any]()
        if examples.is_labelled:
            scores = squad.score_answers(texts, answers, has_answerless)
        if has_answerless:
            null_scores = self._null_scores(ranked)
            no_answer, threshold = squad.no_answer_probability(null_scores), UNSEARCHED_THRESHOLD
            if scores is not None:
                has_answer = np.array([bool(of_one) for of_one in answers])
                rows = np.arange(len(texts)) if chosen_on is None else np.flatnonzero(chosen_on)
                some = [texts[row] for row in rows]
                _, threshold = squad.best_threshold(
                    scores.f1[rows], some, has_answer[rows], no_answer[rows]
                )
                given = (scores, texts, has_answer, no_answer, threshold)
                facts["official"] = squad.squad_2_scores(*given)
                scores = squad.apply_threshold(scores, no_answer, has_answer, threshold)
            is_answered &= no_answer <= threshold
            facts["no_answer_threshold"] = threshold
        elif scores is not None:
            facts["official"] = squad.squad_1_scores(scores)
        table = _table(examples, answers, ranked, is_answered, null_scores, scores)
        samples = {}
        if scores is not None:
            ones = np.ones(len(examples))
            samples = {n: SHARE.of(getattr(scores, n), ones) for n in self.task.metrics}
        return Scored(table, samples, facts)

    def constant_scores(self, examples: SpanExamples) -> dict[str, float]:
        """Return the scores of no answer where there may be none, else of the first words.

        Leaving every question without an answer scores the share of those that have none.
        """
        answers = _texts_of_answers(examples)
        if self.task.has_answerless:
            share = float(np.mean([not of_one for of_one in answers]))
            return dict.fromkeys(self.task.metrics, share)
        paragraphs = [examples.paragraphs[number] for number in examples.paragraph_of]
        return first_words_scores(paragraphs, answers)

    def _null_scores(self, ranked: "RankedAnswers") -> squad.Floats:
        """Return the logit (N,) that a question has no answer."""
        has_span = ranked.numbers > 0
        logits = ranked.null_scores.copy()
        if not self.has_answerability:
            # How much higher [CLS] scores than the best span. Source: Devlin et al. 2019, 4.3.
            logits[has_span] -= ranked.scores[ranked.first[has_span]]
        logits[~has_span] = _LOGIT_WITHOUT_SPAN
        return logits


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """The best answers to N questions, A in all, those of a question beside each other."""

    texts: list[str]
    """A slices of paragraphs, different ones for a question, the best first."""
    begins: Ints
    """(A,), first character in the paragraph."""
    ends: Ints
    """(A,), the character after the last."""
    scores: squad.Floats
    """(A,), those of start and end, summed."""
    numbers: Ints
    """(N,), answers to each question, at most ``n_best``; 0 if no span is valid."""
    null_scores: squad.Floats
    """(N,), the least of the head's ``null_scores`` over the windows of the question."""

    @property
    def first(self) -> Ints:
        """(N,), where in A those of each question begin."""
        first: Ints = np.cumsum(self.numbers) - self.numbers
        return first

    @property
    def best_texts(self) -> list[str]:
        """The best text for each question, "" where no span is valid."""
        pairs = zip(self.first.tolist(), self.numbers.tolist(), strict=True)
        return [self.texts[first] if number else "" for first, number in pairs]


def rank_answers(
    outputs: Outputs, windows: Windows, examples: SpanExamples, settings: SpanSettings
) -> RankedAnswers:
    """Return the best answers to each question.

    A span counts if it is in the paragraph, begins where its window has the most context, ends
    no earlier than it begins, and has at most ``max_answer_length`` pieces. Of equal scores the
    one that begins and then ends first is better; of equal texts the better one is kept.

    Args:
        outputs: of `StartEndHead` or `AnswerabilityHead` for the W windows: ``starts`` and
            ``start_scores`` (W, K), ``ends`` and ``end_scores`` (W, J), or (W, K, J) where they
            depend on the start, ``null_scores`` (W,).
        windows: W of them, at least one.
        examples: the N questions.
        settings: of the decoding.
    """
    parts = [
        _candidates(outputs, windows, slice(begin, begin + _WINDOWS_AT_ONCE), examples, settings)
        for begin in range(0, len(windows.first), _WINDOWS_AT_ONCE)
    ]
    question, begins, ends, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
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


def first_words_scores(
    paragraphs: Sequence[str], answers: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the best scores of answering each of N questions with the paragraph's first words.

    The number of words is the same for all questions, and the best for each metric.

    Args:
        paragraphs: that of each question.
        answers: the right ones of each question; at least one.
    """
    words = [paragraph.split() for paragraph in paragraphs]
    tried = [
        squad.score_answers(
            [" ".join(each[:number]) for each in words], answers, has_answerless=False
        )
        for number in _NUMBERS_OF_WORDS
    ]
    return {
        "exact_match": max(float(scores.exact_match.mean()) for scores in tried),
        "f1": max(float(scores.f1.mean()) for scores in tried),
    }


def _candidates(
    outputs: Outputs, windows: Windows, part: slice, examples: SpanExamples, settings: SpanSettings
) -> tuple[Ints, Ints, Ints, squad.Floats]:
    """Return the valid spans of the windows ``part``: question, first and last character, score."""
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
    return question[some], begins[some], after[some], scores[some]


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


def _texts_of_answers(examples: SpanExamples) -> list[tuple[str, ...]]:
    return [tuple(answer.text for answer in of_one) for of_one in examples.answers]


def _table(
    examples: SpanExamples,
    answers: list[tuple[str, ...]],
    ranked: RankedAnswers,
    is_answered: Bools,
    null_scores: squad.Floats | None,
    scores: squad.AnswerScores | None,
) -> pa.Table:
    """Return the table that `SpanProblem` describes."""
    has_span, size = ranked.numbers > 0, len(examples)

    def of_best(values: NDArray[Any], shown: Bools) -> pa.Array:
        column = np.zeros(size, values.dtype)
        column[has_span] = values[ranked.first[has_span]]
        return pa.array(column, mask=~shown)

    unknown = pa.nulls(size, pa.float64())
    best_texts = zip(ranked.best_texts, is_answered, strict=True)
    n_best = pa.StructArray.from_arrays(
        [
            pa.array(ranked.texts, pa.string()),
            *map(pa.array, (ranked.begins, ranked.ends, ranked.scores)),
        ],
        names=["text", "start", "end", "score"],
    )
    bounds = pa.array(np.append(0, np.cumsum(ranked.numbers)), pa.int32())
    return pa.table(
        {
            "id": pa.array(examples.ids, pa.string()),
            "prediction": [text if is_given else "" for text, is_given in best_texts],
            "start": of_best(ranked.begins, is_answered),
            "end": of_best(ranked.ends, is_answered),
            "score": of_best(ranked.scores, has_span),
            "null_score": unknown if null_scores is None else null_scores,
            "answers": pa.array(answers, pa.list_(pa.string())),
            "exact_match": unknown if scores is None else scores.exact_match,
            "f1": unknown if scores is None else scores.f1,
            "n_best": pa.ListArray.from_arrays(bounds, n_best),
        }
    )
