"""Parameters of a model and operations of a training step, counted without building the model.

The paper counts the pooler in some rows and not in others: `PublishedSize.matching` says which of
our counts round to the printed number.

Of the floating-point operations, only the model's own matrix products count, on real pieces and
real predictions; a multiplication with its addition is two operations. A backward pass costs two
forward passes: one product for the gradient of the inputs and one for that of the weights. Padding,
recomputed activations, layer norms, the softmax and the optimizer do not count. The share of a
device's peak that these operations make up therefore says how much of its time went into the model
("model FLOPs utilisation").

Source: Chowdhery et al. 2022 (PaLM), appendix B. `torch.utils.flop_counter` counts the same number
for a batch without padding.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from albert_core.config import ModelSettings, Sharing

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
    return ParameterCounts(
        embeddings=num_rows * embedding + _layer_norm(embedding),
        projection=0 if embedding == hidden else _dense(embedding, hidden),
        attention=_num_blocks(settings, "attention")
        * (4 * _dense(hidden, hidden) + _layer_norm(hidden)),
        feed_forward=_num_blocks(settings, "ffn")
        * (_dense(hidden, inner) + _dense(inner, hidden) + _layer_norm(hidden)),
        pooler=_dense(hidden, hidden),
        masked_lm=_dense(hidden, embedding) + _layer_norm(embedding) + vocab_size,
        sentence_order=_dense(hidden, 2),
    )


def muon_matrices(settings: ModelSettings) -> dict[tuple[int, int], int]:
    """Return the matrices of all blocks, which Muon moves: (smaller, larger side) -> how many."""
    hidden, inner = settings.hidden_size, settings.intermediate_size
    counts = {(hidden, hidden): 4 * _num_blocks(settings, "attention")}
    of_feed_forward = min(hidden, inner), max(hidden, inner)
    counts[of_feed_forward] = counts.get(of_feed_forward, 0) + 2 * _num_blocks(settings, "ffn")
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
    """As printed; None if the paper prints none."""
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


def _base(sharing: Sharing, embedding_size: int) -> ModelSettings:
    return _sized(768, 12, sharing=sharing, embedding_size=embedding_size)


_BERT_BASE = _base("none", 768)
_BERT_LARGE = _sized(1024, 24, sharing="none", embedding_size=1024)

PUBLISHED_SIZES = (
    PublishedSize("2", "BERT base", _BERT_BASE, 108),
    PublishedSize("2", "BERT large", _BERT_LARGE, 334),
    PublishedSize("2", "ALBERT base", _sized(768, 12), 12),
    PublishedSize("2", "ALBERT large", _sized(1024, 24), 18),
    PublishedSize("2", "ALBERT xlarge", _sized(2048, 24), 60),
    PublishedSize("2", "ALBERT xxlarge", _sized(4096, 12), 235),
    PublishedSize("3", "sharing none, E 64", _base("none", 64), 87),
    PublishedSize("3", "sharing none, E 128", _base("none", 128), 89),
    PublishedSize("3", "sharing none, E 256", _base("none", 256), 93),
    PublishedSize("3", "sharing none, E 768", _base("none", 768), 108),
    PublishedSize("3", "sharing all, E 64", _base("all", 64), 10),
    PublishedSize("3", "sharing all, E 128", _base("all", 128), 12),
    PublishedSize("3", "sharing all, E 256", _base("all", 256), 16),
    PublishedSize("3", "sharing all, E 768", _base("all", 768), 31),
    PublishedSize("4", "sharing all, E 768", _base("all", 768), 31),
    PublishedSize("4", "sharing attention, E 768", _base("attention", 768), 83),
    PublishedSize("4", "sharing ffn, E 768", _base("ffn", 768), 57),
    PublishedSize("4", "sharing none, E 768", _base("none", 768), 108),
    PublishedSize("4", "sharing all, E 128", _base("all", 128), 12),
    PublishedSize("4", "sharing attention, E 128", _base("attention", 128), 64),
    PublishedSize("4", "sharing ffn, E 128", _base("ffn", 128), 38),
    PublishedSize("4", "sharing none, E 128", _base("none", 128), 89),
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
"""In which Muon makes a matrix's singular values alike."""


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
    multiplications = sum(
        count * (2 * rows * rows * columns + rows**3)
        for (rows, columns), count in muon_matrices(settings).items()
    )
    return float(_FLOPS_PER_MULTIPLICATION * _NEWTON_SCHULZ_STEPS * multiplications)


def _trained(multiplications: float) -> float:
    return float(_FLOPS_PER_MULTIPLICATION * _BACKWARD_AND_FORWARD * multiplications)
