"""How much memory a training step takes: arithmetic, without building the model.

What autograd keeps for the backward pass is added up part by part, as the layers of
`albert_core.model.albert` keep it; the tests hold the sums against what a real step takes.

Letters: B sequences, S pieces, P predictions, V vocabulary, E embedding, H hidden, N heads,
F feed-forward.
"""

from dataclasses import dataclass, replace
from typing import Literal

from albert_core.config import ModelSettings, Precision
from albert_core.planning.parameters import count_parameters

DeviceKind = Literal["cpu", "cuda"]

_FLOAT32, _BFLOAT16, _INT64, _BOOL = 4, 2, 8, 1
_UPDATE_COPIES = 2
"""The optimizer's update and its root mean squares, each as large as the weights."""
_MOMENTS = 2
_EMBEDDING_GRADIENTS = 3
"""Of the head, of the look-up, and their sum."""
_LOGIT_COPY_BYTES = 8
"""Of a logit in the loss's backward pass, beside the log-probabilities kept for it."""
_LOGITS_PER_BLOCK = 1 << 19
"""As `albert_core.model.losses` works on at once on a CPU."""
_LAYER_NORM_STATISTICS = 2
"""Mean and deviation."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What goes through the model at once, padded."""

    num_sequences: int
    """B."""
    length: int
    """S."""
    num_predictions: int
    """P, of each sequence."""
    precision: Precision = "float32"
    device: DeviceKind = "cpu"
    activation_checkpointing: bool = False

    @property
    def num_pieces(self) -> int:
        """B * S, padding included."""
        return self.num_sequences * self.length

    @property
    def product_bytes(self) -> int:
        """Of a number that goes into or comes out of a matrix product."""
        return _FLOAT32 if self.precision == "float32" else _BFLOAT16

    def stream_bytes(self, settings: ModelSettings) -> int:
        """Return those of a number between the blocks.

        Autocast does layer norms in float32 on CUDA; on a CPU in the type of what goes in, which
        is a product's but where the embeddings go in without projection.
        """
        if self.device == "cuda" or settings.embedding_size == settings.hidden_size:
            return _FLOAT32
        return self.product_bytes


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """The bytes that one rank needs on its device, at the most."""

    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    """At the peak of the forward and backward pass of one micro-batch."""
    update: int
    """While the optimizer works: the activations are gone by then."""

    @property
    def total(self) -> int:
        """At the peak."""
        lasting = self.weights + self.gradients + self.optimizer_state
        return lasting + max(self.activations, self.update)


def training_memory(
    settings: ModelSettings, vocab_size: int, micro_batch: MicroBatch, num_shards: int = 1
) -> TrainingMemory:
    """Return what a step takes with float32 weights, LAMB or AdamW.

    Where the state is cut over ranks (`devices.state_sharding`), weights and gradients are
    there whole as well during an update; and once more, laid end to end, while they are exchanged.

    What the device's libraries and the allocator take besides is not in it. Where a GPU's
    attention kernel needs a padding mask, or none but the plain one fits, more is taken.

    Args:
        settings: of the model.
        vocab_size: V.
        micro_batch: what goes through the model at once.
        num_shards: ranks that the state is cut over; 1 for none.
    """
    weights = _FLOAT32 * count_parameters(settings, vocab_size).with_heads
    part = -(-weights // num_shards)
    gathered, exchanged = (weights, weights) if num_shards > 1 else (0, 0)
    return TrainingMemory(
        weights=part + gathered,
        gradients=part + gathered,
        optimizer_state=_MOMENTS * part,
        activations=max(_activation_peak(settings, vocab_size, micro_batch), exchanged),
        update=_UPDATE_COPIES * part,
    )


def largest_micro_batch(
    settings: ModelSettings,
    vocab_size: int,
    micro_batch: MicroBatch,
    memory_bytes: float,
    num_shards: int = 1,
) -> int:
    """Return the most sequences that fit into ``memory_bytes``; 0 if one does not.

    Args:
        settings: of the model.
        vocab_size: V.
        micro_batch: its length, predictions and precision count, not its number of sequences.
        memory_bytes: what the device has for tensors.
        num_shards: ranks that the state is cut over; 1 for none.
    """

    def fits(num_sequences: int) -> bool:
        tried = replace(micro_batch, num_sequences=num_sequences)
        return training_memory(settings, vocab_size, tried, num_shards).total <= memory_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def saved_for_backward(settings: ModelSettings, vocab_size: int, micro_batch: MicroBatch) -> int:
    """Return the bytes that autograd keeps between the forward and the backward pass.

    The weights that `albert_core.model.dense` lays out are not among them.
    """
    layer_input = micro_batch.num_pieces * settings.hidden_size * micro_batch.stream_bytes(settings)
    if micro_batch.activation_checkpointing:
        block = 2 * layer_input
    else:
        block = _attention_bytes(settings, micro_batch) + _feed_forward_bytes(settings, micro_batch)
    num_blocks = settings.num_hidden_layers * settings.inner_group_num
    return (
        _embedding_bytes(settings, micro_batch)
        + num_blocks * block
        + layer_input  # what the last layer gives
        + _head_bytes(settings, vocab_size, micro_batch)
    )


def _activation_peak(settings: ModelSettings, vocab_size: int, micro_batch: MicroBatch) -> int:
    """Return the most of three moments of the backward pass: its begin, a block, its end."""
    logits = micro_batch.num_sequences * micro_batch.num_predictions * vocab_size
    held_logits = logits * micro_batch.product_bytes  # by the caller, who looks which are right
    saved = saved_for_backward(settings, vocab_size, micro_batch)
    if micro_batch.device == "cpu":  # a few rows at a time
        copied = min(logits, _LOGITS_PER_BLOCK)
        in_the_loss = saved + held_logits + copied * _LOGIT_COPY_BYTES
    else:
        in_the_loss = saved + logits * _LOGIT_COPY_BYTES
    table = vocab_size * settings.embedding_size * _FLOAT32
    in_a_block = (
        saved
        - _head_bytes(settings, vocab_size, micro_batch)
        + held_logits
        + table  # the head's gradient of the word embeddings, which waits for the look-up's
        + _block_gradients(settings, micro_batch)
    )
    in_the_embeddings = held_logits + _EMBEDDING_GRADIENTS * table
    peak = max(in_the_loss, in_a_block, in_the_embeddings)
    return peak + _laid_out_weights(settings, vocab_size, micro_batch)


def _block_gradients(settings: ModelSettings, micro_batch: MicroBatch) -> int:
    """Return what the backward pass through a block takes, its activations computed again or not.

    Attention has the gradients of its input and output, of what goes into the output layer and of
    query, key and value; the feed-forward block those of its input and output and of its inner
    layer. Of a weight there is the gradient in bfloat16 and cast.
    """
    hidden, inner = settings.hidden_size, settings.intermediate_size
    pieces, product = micro_batch.num_pieces, micro_batch.product_bytes
    in_attention = pieces * 6 * hidden * product
    in_feed_forward = pieces * (2 * hidden + inner) * product
    if _keeps_attention_weights(settings, micro_batch):
        of_scores = settings.num_attention_heads * micro_batch.length
        in_attention += pieces * (of_scores + hidden) * product  # the output's, laid head by head
    if micro_batch.activation_checkpointing:
        block_input = pieces * hidden * product  # is there anyway
        in_attention += _attention_bytes(settings, micro_batch) - block_input
        in_feed_forward += _feed_forward_bytes(settings, micro_batch) - block_input
        if micro_batch.device == "cpu" and micro_batch.precision == "bfloat16":
            # While GELU is looked up again, its places, four bytes each, lie beside what goes in
            # and comes out.
            looked_up = pieces * (hidden + 5 * inner) * product
            in_feed_forward = max(in_feed_forward, looked_up)
    weight = hidden * inner * _FLOAT32 + _cast_weights(hidden * inner, micro_batch)
    return max(in_attention, in_feed_forward) + weight


def _embedding_bytes(settings: ModelSettings, micro_batch: MicroBatch) -> int:
    embedding = settings.embedding_size
    a_piece = embedding * _FLOAT32 + 2 * _INT64  # the sum, normed later, and the look-ups' indices
    weights = 0
    if embedding != settings.hidden_size:
        a_piece += embedding * micro_batch.product_bytes
        weights = _cast_weights(embedding * settings.hidden_size, micro_batch)
    if settings.hidden_dropout_prob:
        a_piece += embedding * (_BOOL if micro_batch.device == "cuda" else _FLOAT32)
    return micro_batch.num_pieces * a_piece + weights


def _attention_bytes(settings: ModelSettings, micro_batch: MicroBatch) -> int:
    """Return what an attention block keeps."""
    hidden, product = settings.hidden_size, micro_batch.product_bytes
    stream = micro_batch.stream_bytes(settings)
    num_inputs = 1 if stream == product else 3  # query, key and value each have their own cast
    a_piece = (num_inputs + 1) * hidden * product  # and what goes into the output layer
    a_piece += _query_key_value_bytes(settings, micro_batch)
    a_piece += _residual_bytes(settings, micro_batch)
    weights = _block_casts(4 * hidden * hidden, settings, micro_batch)
    return micro_batch.num_pieces * a_piece + weights


def _query_key_value_bytes(settings: ModelSettings, micro_batch: MicroBatch) -> int:
    """Return what the attention of one piece keeps between its layers."""
    heads, product = settings.num_attention_heads, micro_batch.product_bytes
    weights = heads * micro_batch.length
    query_key_value = 3 * settings.hidden_size
    if not _keeps_attention_weights(settings, micro_batch):
        return query_key_value * product + heads * _FLOAT32  # and the sums of the weights
    if settings.attention_probs_dropout_prob:  # scores, weights and mask are kept
        return (query_key_value + 3 * weights) * _FLOAT32
    return (query_key_value + weights) * product


def _keeps_attention_weights(settings: ModelSettings, micro_batch: MicroBatch) -> bool:
    """Return whether attention is not fused: see `albert_core.model.attention`."""
    return micro_batch.device == "cpu" and (
        settings.attention_probs_dropout_prob > 0 or micro_batch.precision == "bfloat16"
    )


def _feed_forward_bytes(settings: ModelSettings, micro_batch: MicroBatch) -> int:
    """Return what a feed-forward block keeps."""
    hidden, inner = settings.hidden_size, settings.intermediate_size
    a_piece = (hidden + 2 * inner) * micro_batch.product_bytes  # inner: before and after activation
    a_piece += _residual_bytes(settings, micro_batch)
    weights = _block_casts(2 * hidden * inner, settings, micro_batch)
    return micro_batch.num_pieces * a_piece + weights


def _residual_bytes(settings: ModelSettings, micro_batch: MicroBatch) -> int:
    """Return what dropout, the sum with the block's input and the layer norm of a piece keep."""
    hidden = settings.hidden_size
    a_piece = hidden * micro_batch.stream_bytes(settings) + _LAYER_NORM_STATISTICS * _FLOAT32
    if settings.hidden_dropout_prob:
        a_piece += hidden * (_BOOL if micro_batch.device == "cuda" else micro_batch.product_bytes)
    return a_piece


def _head_bytes(settings: ModelSettings, vocab_size: int, micro_batch: MicroBatch) -> int:
    """Return what the masked LM head and its loss keep."""
    embedding, hidden = settings.embedding_size, settings.hidden_size
    product = micro_batch.product_bytes
    a_prediction = hidden * (product + _INT64)  # the vector, and its index as often as it is wide
    a_prediction += embedding * (2 * product + micro_batch.stream_bytes(settings))
    # Of the pieces' scores the logits themselves, which the caller holds too, or log-probabilities.
    a_prediction += vocab_size * (product if micro_batch.device == "cpu" else _FLOAT32)
    num_predictions = micro_batch.num_sequences * micro_batch.num_predictions
    weights = _cast_weights((hidden + vocab_size) * embedding + hidden * hidden, micro_batch)
    return num_predictions * a_prediction + weights


def _is_laid_out(settings: ModelSettings, micro_batch: MicroBatch) -> bool:
    """Return whether the blocks' weights are cast once a pass: see `albert_core.model.dense`."""
    shares_blocks = (
        settings.sharing == "all" and settings.num_hidden_groups < settings.num_hidden_layers
    )
    return micro_batch.device == "cpu" and shares_blocks


def _laid_out_weights(settings: ModelSettings, vocab_size: int, micro_batch: MicroBatch) -> int:
    """Return the bytes of the blocks' weights cast, and in oneDNN's order for there and back."""
    if not _is_laid_out(settings, micro_batch):
        return 0
    counts = count_parameters(settings, vocab_size)
    copies = 2 if micro_batch.precision == "float32" else 3
    return (counts.attention + counts.feed_forward) * copies * micro_batch.product_bytes


def _block_casts(num_weights: int, settings: ModelSettings, micro_batch: MicroBatch) -> int:
    return 0 if _is_laid_out(settings, micro_batch) else _cast_weights(num_weights, micro_batch)


def _cast_weights(num_weights: int, micro_batch: MicroBatch) -> int:
    """Return the bytes of the weights' casts, which each use of a weight keeps for itself."""
    return 0 if micro_batch.precision == "float32" else num_weights * _BFLOAT16
