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

The memory of a training step is the state, what the backward pass needs of each layer, and what the
process takes whatever the model.

Letters: B sequences, S pieces, P predictions, V vocabulary, E embedding, H hidden, N heads,
F feed-forward.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from albert_core.config import ModelSettings, Precision, Sharing

PAPER_VOCAB_SIZE = 30_000
BERT_VOCAB_SIZE = 30_522
"""Pieces of the released English BERT models, uncased."""

Convention = Literal["without pooler", "with pooler", "with heads"]


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

    def by_convention(self) -> dict[Convention, int]:
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
    def matching(self) -> list[Convention]:
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
_NEWTON_SCHULZ_STEPS = 5
"""Steps in which Muon makes a matrix's singular values alike."""


class Sizes(Protocol):
    """Sums over some sequences, or the means of one sequence."""

    @property
    def num_sequences(self) -> float:
        """B."""

    @property
    def num_pieces(self) -> float:
        """Sum of the lengths S, in real pieces. In a packed row, each sequence counts by itself."""

    @property
    def sum_of_squares(self) -> float:
        """Sum of S * S."""

    @property
    def num_predictions(self) -> float:
        """Real predictions of all sequences together."""


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
    other rows, its output projection and feed-forward block are skipped (`AlbertModel.encode`).

    Args:
        settings: of the model.
        sizes: of the sequences.
    """
    hidden, inner = settings.hidden_size, settings.intermediate_size
    num_rows = max(0.0, sizes.num_pieces - sizes.num_sequences - sizes.num_predictions)
    return _trained(num_rows * (hidden * hidden + 2 * hidden * inner))


def muon_flops(settings: ModelSettings) -> float:
    """Return the operations of one update by Muon; they are float32, and none of the model's own.

    Source: `albert_core.training.optimizer.Muon`.
    """
    hidden, inner = settings.hidden_size, settings.intermediate_size
    matrices = [(hidden, hidden)] * 4 * _num_blocks(settings, "attention")
    matrices += [(min(hidden, inner), max(hidden, inner))] * 2 * _num_blocks(settings, "ffn")
    multiplications = sum(2 * rows * rows * columns + rows**3 for rows, columns in matrices)
    return float(_FLOPS_PER_MULTIPLICATION * _NEWTON_SCHULZ_STEPS * multiplications)


def _trained(multiplications: float) -> float:
    return float(_FLOPS_PER_MULTIPLICATION * _BACKWARD_AND_FORWARD * multiplications)


DeviceKind = Literal["cpu", "cuda"]

_FLOAT32, _BFLOAT16 = 4, 2
_MOMENTS = 2
_UPDATE_COPIES = 2
"""The optimizer's update and its root mean squares, each as large as the weights."""
_CUDA_LOGIT_BYTES = 12
"""Bytes of a logit on a GPU: the log-probabilities that the loss keeps, and its backward pass."""
_MOST_SEQUENCES = 1 << 40
_MIB = 2**20
_PROCESS_BYTES: dict[DeviceKind, int] = {"cpu": 300 * _MIB, "cuda": 0}
"""What a training process takes beside its tensors, measured for small models on a CPU. A GPU's
own libraries are not among what torch allocates there."""


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """The bytes that one rank takes on its device for a step.

    They are the sum of the large tensors, and not of each tensor: on a CPU, the tensors of a step
    take from 0.8 to 1.2 of it. Weights are float32. If the state is cut over ranks
    (`devices.state_sharding`), each rank also has the whole weights and gradients during an update,
    and once more, laid end to end, while they are exchanged.

    A GPU takes more where its attention kernel needs a padding mask, or where only the plain kernel
    fits. A CPU is assumed to have oneDNN's products in the run's precision
    (`albert_core.model.execution`).
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

    @property
    def total(self) -> int:
        """The bytes at the peak. The activations are freed before the optimizer works."""
        return self.process + self.state + max(self.activations, self.update)

    @property
    def process(self) -> int:
        """The bytes that the process takes whatever the model."""
        return _PROCESS_BYTES[self.device]

    @property
    def state(self) -> int:
        """The bytes between two steps: weights, gradients and the optimizer's moments."""
        return (2 + _MOMENTS) * self._part + 2 * self._gathered

    @property
    def update(self) -> int:
        """The bytes that are added while the optimizer works."""
        return _UPDATE_COPIES * self._part

    @property
    def activations(self) -> int:
        """The bytes at the peak of the forward and backward pass of one micro-batch."""
        hidden, product = self.model.hidden_size, self._product
        num_pieces, num_logits = self.num_sequences * self.length, self._num_logits
        num_blocks = self.model.num_hidden_layers * self.model.inner_group_num
        kept = self._kept_of_a_block
        working = (2 * hidden + self.model.intermediate_size) * product  # the gradients in a block
        if self.activation_checkpointing:  # a block's attention is computed again after the rest
            working += kept - 6 * hidden * product
            kept = 2 * hidden * product
        of_embeddings = 2 * self.model.embedding_size * _FLOAT32
        table = self.vocab_size * self.model.embedding_size * _FLOAT32
        # The logits are held until the end. The loss works on all of them, or on a CPU on a few.
        in_the_loss = num_logits * (_CUDA_LOGIT_BYTES if self.device == "cuda" else 2 * product)
        in_a_block = num_logits * product + table + num_pieces * working
        saved = num_pieces * (num_blocks * kept + of_embeddings) + self._casts
        return max(saved + max(in_the_loss, in_a_block), self._gathered)

    def largest_micro_batch(self, memory_bytes: float) -> int:
        """Return the most sequences whose step fits into ``memory_bytes``; 0 if one does not."""
        return bisect_right(
            range(1, _MOST_SEQUENCES),
            memory_bytes,
            key=lambda number: replace(self, num_sequences=number).total,
        )

    def say_peak(self, found: int) -> str:
        """Return a line for the end of a run: the bytes that it took at its peak beside `total`."""
        return (
            f"{found / _MIB:,.0f} MiB of memory at the peak, {found / self.total:.2f} times the "
            f"{self.total / _MIB:,.0f} planned for {self.num_sequences} x {self.length} pieces"
        )

    @property
    def _parameters(self) -> ParameterCounts:
        return count_parameters(self.model, self.vocab_size)

    @property
    def _part(self) -> int:
        """The bytes of a rank's part of the weights."""
        return -(-_FLOAT32 * self._parameters.with_heads // self.num_shards)

    @property
    def _gathered(self) -> int:
        """The bytes of the whole weights, where they are cut."""
        return _FLOAT32 * self._parameters.with_heads if self.num_shards > 1 else 0

    @property
    def _product(self) -> int:
        """Bytes of a number that goes into or comes out of a matrix product."""
        return _FLOAT32 if self.precision == "float32" else _BFLOAT16

    @property
    def _num_logits(self) -> int:
        return self.num_sequences * self.num_predictions * self.vocab_size

    @property
    def _kept_of_a_block(self) -> int:
        """The bytes that a block keeps of each piece for the backward pass.

        They are what goes into its products, norms and activation: the piece once for query, key
        and value, these three, their attention, and so on. Where attention is not fused, its
        weights are kept too: see `albert_core.model.execution`.
        """
        hidden, inner, product = self.model.hidden_size, self.model.intermediate_size, self._product
        has_dropout = self.model.attention_probs_dropout_prob > 0
        numbers = 8 * hidden + 2 * inner
        if self.model.hidden_dropout_prob:
            numbers += 2 * hidden
        weights = self.model.num_attention_heads * self.length
        if self.device == "cuda" or not (has_dropout or self.precision == "bfloat16"):
            return numbers * product
        # With dropout: scores, weights and mask, which are not of a product's type.
        return numbers * product + weights * (3 * _FLOAT32 if has_dropout else product)

    @property
    def _casts(self) -> int:
        """The bytes of the blocks' weights in the types and orders that products take them in.

        What layers share is cast and laid out once a pass (`albert_core.model.execution`).
        """
        weights = self._parameters.attention + self._parameters.feed_forward
        if self.precision == "bfloat16":
            return weights * (3 if self.model.sharing == "all" else 1) * _BFLOAT16
        is_laid_out = self.model.sharing == "all" and self.device == "cpu"
        return 2 * weights * _FLOAT32 if is_laid_out else 0
