"""The parameters, operations and memory of a model, counted without building it.

The paper counts the pooler in some rows and not in others: `PublishedSize.matching` says which of
our counts round to the printed number.

Of the floating-point operations, only the model's own matrix products count, on real pieces and
real predictions; a multiplication with its addition is two operations. A backward pass costs two
forward passes: one product for the gradient of the inputs and one for that of the weights. Padding,
recomputed activations, layer norms, the softmax and the optimizer do not count. The share of a
device's peak that these operations make up therefore says how much of its time went into the model
("model FLOPs utilisation"). Source: Chowdhery et al. 2022 (PaLM), appendix B.
`torch.utils.flop_counter` counts the same number for a batch without padding.

The memory of a training step is what autograd keeps for the backward pass, added up part by part,
as the layers of `albert_core.model.albert` keep it. The tests compare it with what a step takes.
What a process on a CPU takes beside its tensors was measured.

Letters: B sequences, S pieces, P predictions, V vocabulary, E embedding, H hidden, N heads,
F feed-forward.
"""

import math
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal

from albert_core.config import ModelSettings, Precision, Sharing
from albert_core.text.records import Sizes

PAPER_VOCAB_SIZE = 30_000
BERT_VOCAB_SIZE = 30_522
"""Pieces of the released English BERT models, uncased."""


@dataclass(frozen=True, kw_only=True)
class ParameterCounts:
    """The parameters of each part; what layers share counts once."""

    embeddings: int
    """Word, token type and position embeddings with their layer norm."""
    projection: int
    """E to H; 0 where they are equal."""
    attention: int
    """All attention blocks with their layer norms."""
    feed_forward: int
    """All feed-forward blocks with their layer norms."""
    pooler: int
    masked_lm: int
    """The masked LM head without the word embeddings, which are counted above."""
    sentence_order: int

    @property
    def with_heads(self) -> int:
        """All that is trained."""
        return sum(vars(self).values())

    def by_convention(self) -> dict[str, int]:
        """Return the three ways to count, the smallest first."""
        encoder = self.embeddings + self.projection + self.attention + self.feed_forward
        return {
            "without pooler": encoder,
            "with pooler": encoder + self.pooler,
            "with heads": self.with_heads,
        }


def count_parameters(settings: ModelSettings, vocab_size: int) -> ParameterCounts:
    """Return the number of parameters of each part of the model.

    Args:
        settings: of the model.
        vocab_size: V, pieces, special ones included.

    Source: google-research/albert `modeling.py`; the heads are those of `run_pretraining.py`.
    """
    embedding, hidden = settings.embedding_size, settings.hidden_size
    inner = settings.intermediate_size
    num_rows = vocab_size + settings.type_vocab_size + settings.max_position_embeddings
    attention = 4 * _dense(hidden, hidden) + _layer_norm(hidden)
    feed_forward = _dense(hidden, inner) + _dense(inner, hidden) + _layer_norm(hidden)
    return ParameterCounts(
        embeddings=num_rows * embedding + _layer_norm(embedding),
        projection=0 if embedding == hidden else _dense(embedding, hidden),
        attention=_num_blocks(settings, "attention") * attention,
        feed_forward=_num_blocks(settings, "ffn") * feed_forward,
        pooler=_dense(hidden, hidden),
        masked_lm=_dense(hidden, embedding) + _layer_norm(embedding) + vocab_size,
        sentence_order=_dense(hidden, 2),
    )


def muon_weights(settings: ModelSettings) -> dict[tuple[int, int, int], int]:
    """Return the weights that Muon moves in parts, as how many there are of each.

    The keys are the number, rows and columns of the parts: a head of attention, and as many neurons
    of feed-forward.
    """
    hidden, inner = settings.hidden_size, settings.intermediate_size
    head_size = hidden // settings.num_attention_heads
    num_attentions, num_ffns = _num_blocks(settings, "attention"), _num_blocks(settings, "ffn")
    counts: Counter[tuple[int, int, int]] = Counter()
    for side, number in ((hidden, 4 * num_attentions), (inner, 2 * num_ffns)):
        rows = math.gcd(head_size, side)
        counts[side // rows, rows, hidden] += number
    return counts


def _num_blocks(settings: ModelSettings, part: Literal["attention", "ffn"]) -> int:
    shared = settings.sharing in ("all", part)
    num_owners = settings.num_hidden_groups if shared else settings.num_hidden_layers
    return num_owners * settings.inner_group_num


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _layer_norm(width: int) -> int:
    return 2 * width


@dataclass(frozen=True)
class PublishedSize:
    """A model whose number of parameters is published."""

    table: str
    """Its number in the paper; empty if the model is not in the paper."""
    row: str
    settings: ModelSettings
    millions: int | None
    """The printed number; None if the paper prints none."""
    vocab_size: int = PAPER_VOCAB_SIZE

    @property
    def counts(self) -> ParameterCounts:
        """Our counts."""
        return count_parameters(self.settings, self.vocab_size)

    @property
    def matching(self) -> list[str]:
        """Which of our counts round to the printed number."""
        counts = self.counts.by_convention()
        return [name for name, count in counts.items() if round(count / 1e6) == self.millions]


def _sized(hidden_size: int, num_hidden_layers: int, **others: Any) -> ModelSettings:
    """Return a model with the paper's F of 4 H and N of H / 64."""
    return ModelSettings(
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
        **others,
    )


def _base_sizes(table: str, sharing: Sharing, millions: dict[int, int]) -> list[PublishedSize]:
    """Return the rows of base models with one way of sharing; ``millions`` by E."""
    return [
        PublishedSize(
            table,
            f"sharing {sharing}, E {embedding}",
            _sized(768, 12, sharing=sharing, embedding_size=embedding),
            printed,
        )
        for embedding, printed in millions.items()
    ]


_BERT_BASE = _sized(768, 12, sharing="none", embedding_size=768)
_BERT_LARGE = _sized(1024, 24, sharing="none", embedding_size=1024)
PUBLISHED_SIZES = (
    PublishedSize("2", "BERT base", _BERT_BASE, 108),
    PublishedSize("2", "BERT large", _BERT_LARGE, 334),
    PublishedSize("2", "ALBERT base", _sized(768, 12), 12),
    PublishedSize("2", "ALBERT large", _sized(1024, 24), 18),
    PublishedSize("2", "ALBERT xlarge", _sized(2048, 24), 60),
    PublishedSize("2", "ALBERT xxlarge", _sized(4096, 12), 235),
    *_base_sizes("3", "none", {64: 87, 128: 89, 256: 93, 768: 108}),
    *_base_sizes("3", "all", {64: 10, 128: 12, 256: 16, 768: 31}),
    *_base_sizes("4", "all", {768: 31, 128: 12}),
    *_base_sizes("4", "attention", {768: 83, 128: 64}),
    *_base_sizes("4", "ffn", {768: 57, 128: 38}),
    *_base_sizes("4", "none", {768: 108, 128: 89}),
    PublishedSize("12", "3 layers, H 1024", _sized(1024, 3), 18),
    PublishedSize("12", "3 layers, H 2048", _sized(2048, 3), 60),
    PublishedSize("12", "3 layers, H 4096", _sized(4096, 3), 225),
    PublishedSize("12", "3 layers, H 6144", _sized(6144, 3), 499),
    PublishedSize("", "BERT base, released", _BERT_BASE, None, BERT_VOCAB_SIZE),
    PublishedSize("", "BERT large, released", _BERT_LARGE, None, BERT_VOCAB_SIZE),
)
"""Every number of parameters in the paper's tables 2, 3, 4 and 12, and the released BERT models.

Source: Lan et al. 2020.
"""


_FLOPS_PER_MULTIPLICATION = 2
_BACKWARD_AND_FORWARD = 3
_NUM_ORDERS = 2
_NEWTON_SCHULZ_STEPS = 3
"""Steps in which Muon makes a matrix's singular values alike."""


def training_flops(settings: ModelSettings, vocab_size: int, sizes: Sizes) -> float:
    """Return the operations of one forward and backward pass over some sequences.

    Args:
        settings: of the model.
        vocab_size: V, pieces, special ones included.
        sizes: of the sequences.
    """
    embedding, hidden = settings.embedding_size, settings.hidden_size
    num_blocks = settings.num_hidden_layers * settings.inner_group_num
    query_key_value_output = 4 * hidden * hidden
    feed_forward = 2 * hidden * settings.intermediate_size
    projection = 0 if embedding == hidden else embedding * hidden
    a_piece = num_blocks * (query_key_value_output + feed_forward) + projection
    a_pair_of_pieces = num_blocks * 2 * hidden  # its score, and its share of the weighted sum
    a_prediction = hidden * embedding + embedding * vocab_size
    a_sequence = hidden * hidden + _NUM_ORDERS * hidden  # pooler and order head
    return _trained(
        sizes.num_pieces * a_piece
        + sizes.sum_of_squares * a_pair_of_pieces
        + sizes.num_predictions * a_prediction
        + sizes.num_sequences * a_sequence
    )


def skipped_flops(settings: ModelSettings, sizes: Sizes) -> float:
    """Return how many of the operations of `training_flops` are counted but not done.

    The heads read one row of the last layer for each sequence and one for each prediction. For all
    other rows, its output projection and feed-forward block are skipped (`AlbertModel.forward`).

    Args:
        settings: of the model.
        sizes: of the sequences.
    """
    hidden, inner = settings.hidden_size, settings.intermediate_size
    num_rows = max(0.0, sizes.num_pieces - sizes.num_sequences - sizes.num_predictions)
    return _trained(num_rows * (hidden * hidden + 2 * hidden * inner))


def muon_flops(settings: ModelSettings) -> float:
    """Return the operations of one update by Muon, which are none of the model's own.

    Source: `albert_core.training.optimizer.Muon`.
    """
    multiplications = sum(
        count * number * (2 * rows * rows * columns + rows**3)
        for (number, rows, columns), count in muon_weights(settings).items()
    )
    return float(_FLOPS_PER_MULTIPLICATION * _NEWTON_SCHULZ_STEPS * multiplications)


def _trained(multiplications: float) -> float:
    return float(_FLOPS_PER_MULTIPLICATION * _BACKWARD_AND_FORWARD * multiplications)


DeviceKind = Literal["cpu", "cuda"]

_FLOAT32, _BFLOAT16, _INT64, _BOOL = 4, 2, 8, 1
_UPDATE_COPIES = 2
"""The optimizer's update and its root mean squares, each as large as the weights."""
_MOMENTS = 2
_NEWTON_SCHULZ_COPIES = 3
"""Copies of a matrix, and of the product of its smaller side with itself, that Muon needs."""
_EMBEDDING_GRADIENTS = 3
"""The gradients of the head and of the look-up, and their sum."""
_LOGIT_COPY_BYTES = 8
"""Bytes of a logit in the loss's backward pass, beside the log-probabilities kept for it."""
_PLACES_OF_A_PIECE = 5 * 8
"""Bytes of the places of a piece by which a CPU packs the batch and sorts it by length."""
_LOGITS_PER_BLOCK = 1 << 19
"""Logits that the loss works on together on a CPU (`albert_core.model.losses`)."""
_LAYER_NORM_STATISTICS = 2
"""Mean and deviation."""
_MOST_SEQUENCES = 1 << 40
_MIB = 2**20
_PROCESS_BYTES: dict[Precision, int] = {"float32": 420 * _MIB, "bfloat16": 500 * _MIB}
"""What training takes without a model to speak of (H 16): the peak of 50 and of 400 updates, with
their evaluations, of a process that also speaks to MLflow, 26 November 2026, torch 2.13. Half of it
is there once all is imported. Other ranks than the first take 100 MiB less."""


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """The bytes that one rank needs on its device for a step.

    Weights are float32. If the state is cut over ranks (`training.shard_state`), each rank also
    has the whole weights and gradients during an update, and once more, laid end to end, while
    they are exchanged.

    What a GPU's libraries and the allocator take is not included. A GPU takes more where its
    attention kernel needs a padding mask, or where only the plain kernel fits. A CPU is assumed to
    have oneDNN's products in the run's precision (`albert_core.model.execution`). One without
    bfloat16 instructions keeps a cast of a shared weight for each use of it.
    """

    model: ModelSettings
    vocab_size: int
    """V."""
    num_sequences: int
    """B, of one micro-batch."""
    length: int
    """S, padding included."""
    num_predictions: int
    """P, of each sequence."""
    precision: Precision = "float32"
    device: DeviceKind = "cpu"
    activation_checkpointing: bool = False
    num_shards: int = 1
    """Ranks that the state is cut over; 1 for none."""
    by_muon: bool = False
    """Whether the optimizer is Muon, and not LAMB or AdamW."""

    @property
    def peak(self) -> int:
        """The bytes of the process and its tensors, which the end of a run compares with its own.

        Files that it maps, such as shards and libraries, do not count.
        """
        return self.process + self.total

    @property
    def process(self) -> int:
        """The bytes that a process on a CPU takes beside its tensors; 0 on a GPU."""
        return _PROCESS_BYTES[self.precision] if self.device == "cpu" else 0

    @property
    def total(self) -> int:
        """The bytes of all tensors at the peak.

        The activations are freed before the optimizer works.
        """
        return self.state + max(self.activations, self.update)

    @property
    def state(self) -> int:
        """The bytes between two steps: weights, gradients and the optimizer's moments."""
        return self.weights + self.gradients + self.optimizer_state

    @property
    def weights(self) -> int:
        """A rank's part and, where the state is cut, the whole."""
        return self._part(self._parameters.with_heads) + self._gathered

    @property
    def gradients(self) -> int:
        """As many as the weights."""
        return self.weights

    @property
    def optimizer_state(self) -> int:
        """Both moments; by Muon, linear maps have one."""
        return _MOMENTS * self._part(self._parameters.with_heads) - self._muon_part

    @property
    def update(self) -> int:
        """The bytes that are added while the optimizer works."""
        by_adam = _UPDATE_COPIES * (self._part(self._parameters.with_heads) - self._muon_part)
        # Newton-Schulz works on all parts of one weight at a time, which every rank has whole.
        largest = max(
            (n * rows * (rows + columns) for n, rows, columns in self._muon_weights), default=0
        )
        return max(by_adam, self._muon_part + _NEWTON_SCHULZ_COPIES * _FLOAT32 * largest)

    @property
    def activations(self) -> int:
        """The bytes at the peak of the forward and backward pass of one micro-batch."""
        return max(self._activation_peak(), self._gathered)

    @property
    def saved_for_backward(self) -> int:
        """The bytes that autograd keeps between the forward and the backward pass.

        The weights that `albert_core.model.execution` lays out are not among them.
        """
        num_blocks = self.model.num_hidden_layers * self.model.inner_group_num
        block = self._kept_by_attention + self._kept_by_feed_forward
        if self.activation_checkpointing:
            block = 2 * self._block_input
        blocks = num_blocks * block + self._block_input  # the last layer's output
        is_cast_here = self._is_cast_once and self.device == "cuda"
        casts = self._casts(self._block_weights) if is_cast_here else 0
        return self._kept_by_embeddings + blocks + casts + self._kept_by_heads

    def largest_micro_batch(self, memory_bytes: float) -> int:
        """Return the most sequences whose tensors fit into ``memory_bytes``; 0 if one's do not."""
        return bisect_right(
            range(1, _MOST_SEQUENCES),
            memory_bytes,
            key=lambda number: replace(self, num_sequences=number).total,
        )

    def say_peak(self, found: int) -> str:
        """Return a line for the end of a run: the bytes that it took at its peak beside `peak`."""
        of_process = f", {self.process / _MIB:,.0f} of them for the process" if self.process else ""
        return (
            f"{found / _MIB:,.0f} MiB of memory at the peak, {found / self.peak:.2f} times the "
            f"{self.peak / _MIB:,.0f} planned for {self.num_sequences} x {self.length} pieces"
            f"{of_process}"
        )

    @property
    def _parameters(self) -> ParameterCounts:
        return count_parameters(self.model, self.vocab_size)

    def _part(self, numbers: int) -> int:
        """Return a rank's part of these numbers, in bytes."""
        return -(-_FLOAT32 * numbers // self.num_shards)

    @property
    def _muon_weights(self) -> dict[tuple[int, int, int], int]:
        return muon_weights(self.model) if self.by_muon else {}

    @property
    def _muon_part(self) -> int:
        """A rank's part of what Muon moves; 0 without it."""
        return self._part(sum(math.prod(key) * n for key, n in self._muon_weights.items()))

    @property
    def _gathered(self) -> int:
        """The whole weights, where they are cut."""
        return _FLOAT32 * self._parameters.with_heads if self.num_shards > 1 else 0

    @property
    def _product(self) -> int:
        """Bytes of a number that goes into or comes out of a matrix product."""
        return _FLOAT32 if self.precision == "float32" else _BFLOAT16

    @property
    def _keeps_attention_weights(self) -> bool:
        """Whether attention is not fused: see `albert_core.model.attention`."""
        has_dropout = self.model.attention_probs_dropout_prob > 0
        return self.device == "cpu" and (has_dropout or self.precision == "bfloat16")

    @property
    def _is_cast_once(self) -> bool:
        """Whether the blocks' weights are cast once a pass: see `albert_core.model.execution`."""
        shares_blocks = self.model.num_hidden_groups < self.model.num_hidden_layers
        is_fast = self.device == "cpu" or self.precision != "float32"
        return is_fast and self.model.sharing == "all" and shares_blocks

    @property
    def _block_weights(self) -> int:
        """Numbers in the weights of all blocks, each once."""
        return self._parameters.attention + self._parameters.feed_forward

    def _casts(self, num_weights: int) -> int:
        """Return the bytes of the weights' casts, which each use of a weight keeps for itself."""
        return 0 if self.precision == "float32" else num_weights * _BFLOAT16

    @property
    def _num_pieces(self) -> int:
        return self.num_sequences * self.length

    @property
    def _stream(self) -> int:
        """Bytes of a number between the blocks: as in a product.

        Not on a CPU if the embeddings go in unprojected, because their norm is in float32.
        """
        is_unprojected = self.model.embedding_size == self.model.hidden_size
        return _FLOAT32 if self.device == "cpu" and is_unprojected else self._product

    @property
    def _block_input(self) -> int:
        return self._num_pieces * self.model.hidden_size * self._stream

    @property
    def _kept_by_embeddings(self) -> int:
        """What autograd keeps of the embeddings and their projection."""
        embedding, hidden = self.model.embedding_size, self.model.hidden_size
        a_piece = embedding * _FLOAT32 + 2 * _INT64  # the sum before its norm, and the indices
        if self.model.hidden_dropout_prob:
            a_piece += embedding * (_BOOL if self.device == "cuda" else _FLOAT32)
        if embedding == hidden:
            return self._num_pieces * a_piece
        a_piece += embedding * self._product
        return self._num_pieces * a_piece + self._casts(embedding * hidden)

    @property
    def _kept_by_residual(self) -> int:
        """What a block keeps of a piece for its dropout, residual and layer norm."""
        hidden, is_cuda = self.model.hidden_size, self.device == "cuda"
        kept = hidden * self._stream + _LAYER_NORM_STATISTICS * _FLOAT32
        if self.model.hidden_dropout_prob:  # a CPU keeps the mask in the type of what it masks
            kept += hidden * (_BOOL if is_cuda else self._product)
        return kept

    @property
    def _kept_by_attention(self) -> int:
        """What each attention block keeps."""
        hidden, num_heads, product = (
            self.model.hidden_size,
            self.model.num_attention_heads,
            self._product,
        )
        weights = num_heads * self.length
        if not self._keeps_attention_weights:  # only their sums
            query_key_value = 3 * hidden * product + num_heads * _FLOAT32
            if self.device == "cpu":  # what attention gives, in its buckets and out of them
                query_key_value += hidden * product
        elif self.model.attention_probs_dropout_prob:  # scores, weights and mask
            query_key_value = (3 * hidden + 3 * weights) * _FLOAT32
        else:
            query_key_value = (3 * hidden + weights) * product
        # Query, key and value share their input if it is a product's; else each keeps a cast.
        num_inputs = 1 if self._stream == product else 3
        a_piece = (num_inputs + 1) * hidden * product + query_key_value + self._kept_by_residual
        casts = 0 if self._is_cast_once else self._casts(4 * hidden * hidden)
        return self._num_pieces * a_piece + casts

    @property
    def _kept_by_feed_forward(self) -> int:
        """What each feed-forward block keeps."""
        hidden, inner = self.model.hidden_size, self.model.intermediate_size
        # GELU keeps its input; the slope of the others is known from the output, which is kept.
        num_inner = 1 + self.model.hidden_act.startswith("gelu")
        a_piece = (hidden + num_inner * inner) * self._product + self._kept_by_residual
        casts = 0 if self._is_cast_once else self._casts(2 * hidden * inner)
        return self._num_pieces * a_piece + casts

    @property
    def _kept_by_heads(self) -> int:
        """What the masked LM head and its loss keep."""
        embedding, hidden = self.model.embedding_size, self.model.hidden_size
        a_prediction = hidden * (self._product + _INT64)  # and its index as often as it is wide
        a_prediction += embedding * (2 * self._product + self._stream)
        # Of the pieces' scores the log-probabilities, or the logits, which the caller holds too.
        a_prediction += self.vocab_size * (_FLOAT32 if self.device == "cuda" else self._product)
        casts = self._casts((hidden + self.vocab_size) * embedding + hidden * hidden)
        return self.num_sequences * self.num_predictions * a_prediction + casts

    def _activation_peak(self) -> int:
        """Return the most of three moments of the backward pass: its start, a block, its end."""
        num_logits = self.num_sequences * self.num_predictions * self.vocab_size
        held_logits = num_logits * self._product  # by the caller, who counts the right ones
        saved = self.saved_for_backward
        if self.device == "cpu":  # a few rows at a time
            copied = min(num_logits, _LOGITS_PER_BLOCK)
            places = self._num_pieces * _PLACES_OF_A_PIECE
            in_the_loss = saved + held_logits + copied * _LOGIT_COPY_BYTES + places
        else:
            in_the_loss = saved + num_logits * _LOGIT_COPY_BYTES
        table = self.vocab_size * self.model.embedding_size * _FLOAT32
        # In a block, the head's gradient of the word embeddings waits for the look-up's.
        in_a_block = saved - self._kept_by_heads + held_logits + table + self._block_gradients()
        in_the_embeddings = held_logits + _EMBEDDING_GRADIENTS * table
        shared = 0
        if self._is_cast_once and self.device == "cuda":  # the sum of the gradients of all uses
            shared = self._block_weights * _FLOAT32
        elif self._is_cast_once:  # the weights cast, and in oneDNN's order for there and back
            copies = 2 if self.precision == "float32" else 3
            shared = self._block_weights * copies * self._product
        return max(in_the_loss, in_a_block, in_the_embeddings) + shared

    def _block_gradients(self) -> int:
        """Return what the backward pass through a block takes, with what it computes again.

        Attention has the gradients of its input and output, of the output projection's input, and
        of query, key and value; the feed-forward block those of its input and output and of its
        inner layer. Of a weight there is the gradient in bfloat16 and its cast.
        """
        hidden, inner = self.model.hidden_size, self.model.intermediate_size
        numbers = self._num_pieces * self._product
        in_attention = numbers * 6 * hidden
        in_feed_forward = numbers * (2 * hidden + inner)
        if self._keeps_attention_weights:
            of_scores = self.model.num_attention_heads * self.length
            in_attention += numbers * (of_scores + hidden)  # the output's, laid head by head
        if self.activation_checkpointing:
            block_input = numbers * hidden  # which is there anyway
            in_attention += self._kept_by_attention - block_input
            in_feed_forward += self._kept_by_feed_forward - block_input
            if self.device == "cpu" and self.precision == "bfloat16":
                # While GELU is looked up again, its places, four bytes each, lie beside its input
                # and output.
                in_feed_forward = max(in_feed_forward, numbers * (hidden + 5 * inner))
        weight = hidden * inner * _FLOAT32 + self._casts(hidden * inner)
        return max(in_attention, in_feed_forward) + weight
