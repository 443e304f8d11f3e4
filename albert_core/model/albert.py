"""ALBERT on one page: factorized embeddings, layers that share their weights, two heads.

BERT is the same model with ``embedding_size == hidden_size`` and ``sharing = "none"``.

Dimensions: B sequences, S pieces, P predictions, V vocabulary, E embedding, H hidden, N heads,
D head size, F feed-forward, L layers; T pieces and M predictions of a whole batch, end to end.

A batch is packed, (T,): sequences laid end to end, those of equal length beside each other. It
costs what its real pieces cost, and no piece sees another sequence. A padded batch is a single run
of B sequences of S pieces, with a mask of the keys.

Use autocast as `execution.products_in` does.

Source: Lan et al. 2020, section 3; google-research/albert `modeling.py`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.model import execution
from albert_core.model.attention import Layout, Runs, attend_packed, layout_of
from albert_core.model.execution import Casts, LayerNorm, Linear

LAYER_NORM_EPSILON = 1e-12
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": execution.gelu_tanh,
    "gelu": F.gelu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "linear": nn.Identity(),
}


def groups_of(settings: ModelSettings) -> list[int]:
    """Return the group of each layer."""
    num_layers, num_groups = settings.num_hidden_layers, settings.num_hidden_groups
    return [layer * num_groups // num_layers for layer in range(num_layers)]


def block_route(settings: ModelSettings) -> list[tuple[int, int]]:
    """Return which (attention, feed-forward) blocks a piece passes through, in order.

    The list has L * inner_group_num entries. What the layers share has the index of the layer's
    group, what they do not share that of the layer itself.
    """
    groups, num_inner = groups_of(settings), settings.inner_group_num

    def first_block(layer: int, kind: str) -> int:
        return (groups[layer] if settings.sharing in ("all", kind) else layer) * num_inner

    return [
        (first_block(layer, "attention") + inner, first_block(layer, "ffn") + inner)
        for layer in range(settings.num_hidden_layers)
        for inner in range(num_inner)
    ]


class Embeddings(nn.Module):
    """The sum of word, token type and position embeddings, at width E."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        width = settings.embedding_size
        self.word = nn.Embedding(vocab_size, width)
        self.token_type = nn.Embedding(settings.type_vocab_size, width)
        self.position = nn.Embedding(settings.max_position_embeddings, width)
        self.norm = nn.LayerNorm(width, LAYER_NORM_EPSILON)
        self.dropout = nn.Dropout(settings.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, layout: Layout) -> Tensor:
        """Return (T, E) for the ids and the token types, (T,) each."""
        total = self.word(input_ids) + self.token_type(token_type_ids) + self._positions(layout)
        return self.dropout(self.norm(total))  # type: ignore[no-any-return]

    def _positions(self, layout: Layout) -> Tensor:
        if layout.positions is not None:
            return self.position(layout.positions)  # type: ignore[no-any-return]
        table = self.position.weight
        rows = [table[:length].repeat(number, 1) for number, length in layout.runs]
        return rows[0] if len(rows) == 1 else torch.cat(rows)


class Attention(nn.Module):
    """Self-attention with N heads, then residual and layer norm."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        hidden = settings.hidden_size
        self.num_heads = settings.num_attention_heads
        self.weights_dropout_prob = settings.attention_probs_dropout_prob
        self.attend_by_length = attend_packed
        """Not compiled with the layer, because it works differently for each batch."""
        self.query = Linear(hidden, hidden)  # three matrices: LAMB scales each by itself
        self.key = Linear(hidden, hidden)
        self.value = Linear(hidden, hidden)
        self.output = Linear(hidden, hidden)
        self.dropout = nn.Dropout(settings.hidden_dropout_prob)
        self.norm = LayerNorm(hidden, LAYER_NORM_EPSILON)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        key_mask: Tensor | None,
        rows: Tensor | None,
        casts: Casts | None = None,
    ) -> Tensor:
        """Return (T, H) of (T, H), or only its ``rows``, int64 (R,), as (R, H).

        With a mask of the keys, bool (B, 1, 1, S), the batch is a single run.
        """
        own = casts or {}
        asking = rows if layout.buckets is not None else None
        x_asking = x if asking is None else x.index_select(0, asking)
        projected = (
            self.query(x_asking, own.get("query")),
            self.key(x, own.get("key")),
            self.value(x, own.get("value")),
        )
        query, key, value = (each.unflatten(1, (self.num_heads, -1)) for each in projected)
        # (T, N, D)
        dropout_prob = self.weights_dropout_prob if self.training else 0.0
        is_one_kernel = layout.ends is not None and key_mask is None
        attend = attend_packed if is_one_kernel else self.attend_by_length
        seen = attend(query, key, value, layout, key_mask, dropout_prob, asking).flatten(1)
        if rows is not None and asking is None:
            x_asking, seen = x.index_select(0, rows), seen.index_select(0, rows)
        change = self.dropout(self.output(seen, own.get("output")))
        return self.norm(x_asking + change, own.get("norm"))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two dense layers, H to F to H, then residual and layer norm."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.inner = Linear(settings.hidden_size, settings.intermediate_size)
        self.activation = ACTIVATIONS[settings.hidden_act]
        self.output = Linear(settings.intermediate_size, settings.hidden_size)
        self.dropout = nn.Dropout(settings.hidden_dropout_prob)
        self.norm = LayerNorm(settings.hidden_size, LAYER_NORM_EPSILON)

    def forward(self, x: Tensor, casts: Casts | None = None) -> Tensor:
        """Return (T, H) of (T, H)."""
        own = casts or {}
        inner = self.activation(self.inner(x, own.get("inner")))
        change = self.output(inner, own.get("output"))
        return self.norm(x + self.dropout(change), own.get("norm"))  # type: ignore[no-any-return]


class AlbertModel(nn.Module):
    """The encoder: piece ids to one vector a piece; the heads pool."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.num_layers = settings.num_hidden_layers
        """Number of layers computed, from the first on; pretraining may begin with few."""
        self.route = block_route(settings)
        num_attentions, num_feed_forwards = (
            1 + max(used) for used in zip(*self.route, strict=True)
        )
        width, hidden = settings.embedding_size, settings.hidden_size
        self.embeddings = Embeddings(settings, vocab_size)
        self.projection = nn.Identity() if width == hidden else nn.Linear(width, hidden)
        self.attentions = nn.ModuleList(Attention(settings) for _ in range(num_attentions))
        self.feed_forwards = nn.ModuleList(FeedForward(settings) for _ in range(num_feed_forwards))
        self.pooler = nn.Linear(hidden, hidden)
        self.apply(partial(initialise, std=settings.initializer_range))

    @property
    def blocks(self) -> list[nn.Module]:
        """The attention and feed-forward blocks, each once."""
        return [*self.attentions, *self.feed_forwards]

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        runs: Runs,
        key_mask: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the last layer (T, H) of a packed batch, or only some of its rows.

        Args:
            input_ids: int64 (T,).
            token_type_ids: int64 (T,), 0 in segment a, 1 in segment b.
            runs: how the T pieces are sequences.
            key_mask: bool (B, 1, 1, S), false at padding, where a single run is padded.
            rows: int64 (R,), positions in T. What no later layer reads of the others is not
                computed: most of the last layer.

        Returns:
            (T, H), or (R, H).
        """
        num_heads = self.settings.num_attention_heads
        head_size = self.settings.hidden_size // num_heads
        device, is_padded = input_ids.device, key_mask is not None
        layout = layout_of(runs, device, num_heads, head_size, is_padded)
        x = self.projection(self.embeddings(input_ids, token_type_ids, layout))
        dtype = execution.dtype_of_products(device, x.dtype)
        if execution.is_fast("stream", device, dtype):
            x = x.to(dtype)
        route = self.route[: self.num_layers * self.settings.inner_group_num]
        shares_blocks = len(set(route)) < len(route)
        has_casts = shares_blocks and execution.is_fast("casts", device, dtype)
        casts = execution.CastsOfPass(dtype) if has_casts else None
        with execution.weights_laid_out_once() if shares_blocks else nullcontext():
            for number, (attention, feed_forward) in enumerate(route, start=1):
                attend, change = self.attentions[attention], self.feed_forwards[feed_forward]
                asked = rows if number == len(route) else None
                x = attend(x, layout, key_mask, asked, casts and casts.of(attend))
                x = change(x, casts and casts.of(change))
        return x  # type: ignore[no-any-return]


class MaskedLMHead(nn.Module):
    """Scores every piece of the vocabulary with the word embeddings."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(settings.hidden_size, settings.embedding_size)
        self.activation = ACTIVATIONS[settings.hidden_act]
        self.norm = LayerNorm(settings.embedding_size, LAYER_NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: Tensor, word_embeddings: Tensor) -> Tensor:
        """Return logits (..., V) of (..., H) and the embedding table (V, E)."""
        return F.linear(self.norm(self.activation(self.dense(x))), word_embeddings, self.bias)


class AlbertForPretraining(nn.Module):
    """The encoder with the masked LM head and the sentence order head."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        self.encoder = AlbertModel(settings, vocab_size)
        self.masked_lm = MaskedLMHead(settings, vocab_size)
        self.sentence_order = nn.Linear(settings.hidden_size, 2)
        for head in (self.masked_lm, self.sentence_order):
            head.apply(partial(initialise, std=settings.initializer_range))

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        runs: Runs,
        first_positions: Tensor,
        masked_lm_positions: Tensor,
        key_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Score the masked positions and the order of the segments, of a packed batch.

        Args:
            input_ids: int64 (T,).
            token_type_ids: int64 (T,).
            runs: how the T pieces are B sequences.
            first_positions: int64 (B,), where in T each sequence begins.
            masked_lm_positions: int64 (M,), positions in T.
            key_mask: bool (B, 1, 1, S), false at padding, where a single run is padded.

        Returns:
            masked LM logits (M, V) and sentence order logits (B, 2): in order, swapped.
        """
        rows = torch.cat([first_positions, masked_lm_positions])
        x = self.encoder(input_ids, token_type_ids, runs, key_mask, rows)
        first, masked = x.split([len(first_positions), len(masked_lm_positions)])
        pooled = torch.tanh(self.encoder.pooler(first))
        lm_logits = self.masked_lm(masked, self.encoder.embeddings.word.weight)
        return lm_logits, self.sentence_order(pooled)


def initialise(module: nn.Module, std: float) -> None:
    """Draw the matrix of ``module`` from a normal truncated at two deviations; zero its bias."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
