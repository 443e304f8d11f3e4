"""First weights that already say which pieces stand near each other."""

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.model.attention import layout_of
from albert_core.text.records import NUM_SPECIAL
from albert_core.training import cooccurrence, pretraining, ranks, shards
from albert_core.training.held_out import evaluate
from tests.albert_core.training_runs import MODEL, make_days

VOCAB_SIZE = 9


@given(st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12), min_size=1))
def test_pieces_are_near_those_of_their_own_sequence_within_the_window(
    sequences: list[list[int]],
) -> None:
    expected = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for pieces in sequences:
        for i, left in enumerate(pieces):
            for j, right in enumerate(pieces):
                if 0 < abs(i - j) <= 5 and min(left, right) >= NUM_SPECIAL:
                    expected[left, right] += 60 / abs(i - j)
    numbers = np.repeat(np.arange(len(sequences)), [len(pieces) for pieces in sequences])
    found = cooccurrence.near_counts(np.concatenate(sequences), numbers, VOCAB_SIZE).toarray()
    np.testing.assert_array_equal(found, expected)


def test_pieces_that_stand_near_the_same_ones_have_like_vectors() -> None:
    generator = np.random.default_rng(0)
    group = generator.integers(0, 2, 3000)  # a sequence has pieces 5 to 9, or 10 to 14
    pieces = (5 + 5 * group[:, None] + generator.integers(0, 5, (3000, 6))).ravel()
    vectors = cooccurrence.word_vectors(
        cooccurrence.near_counts(pieces, np.repeat(np.arange(3000), 6), 16), torch.eye(8)
    )
    likeness = vectors @ vectors.T
    assert likeness[5:10, 5:10].min() > 5 * likeness[5:10, 10:15].abs().max()
    assert not vectors[15].any()


def test_where_no_pieces_are_near_each_other_all_vectors_are_zero() -> None:
    counts = cooccurrence.near_counts(np.array([5, 6, 7]), np.arange(3), VOCAB_SIZE)
    vectors = cooccurrence.word_vectors(counts, torch.eye(4, 8))
    assert vectors.shape == (VOCAB_SIZE, 8)
    assert not vectors.any()


def test_the_bias_is_the_log_of_how_often_a_piece_is_asked_for() -> None:
    found = cooccurrence.log_frequencies(np.bincount([7, 7, 7, 5], minlength=VOCAB_SIZE))
    assert torch.logsumexp(found, 0).item() == pytest.approx(0, abs=1e-6)
    assert found[7] > found[5] > found[6] == found[0]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_days(tmp_path_factory.mktemp("days"), seed=0, num_documents=200)


@pytest.mark.parametrize("sharing", ["all", "none"])
def test_counts_begin_below_the_loss_of_the_best_constant_prediction(
    sharing: Literal["all", "none"], uri: str
) -> None:
    model = MODEL.model_copy(update={"sharing": sharing, "initializer_range": 0.02})
    settings = TrainingSettings(initial_weights="counts")
    train, held_out = (shards.ExampleShards(uri, kind) for kind in ("train", "held_out"))
    state = pretraining.initial_state(model, settings, train, ranks.ALONE)
    scores = evaluate(state.model, held_out, len(held_out), "sentence_order")
    assert scores["masked_lm_loss"].value < train.result.unigram_nats


def test_first_weights_are_the_same_however_many_examples_are_read_at_a_time(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_weights() -> dict[str, torch.Tensor]:
        state = pretraining.initial_state(MODEL, settings, train, ranks.ALONE)
        return state.model.state_dict()

    train = shards.ExampleShards(uri, "train")
    settings = TrainingSettings(initial_weights="counts")
    whole = first_weights()
    monkeypatch.setattr(cooccurrence, "_COUNTED_AT_ONCE", len(train) // 3)
    torch.testing.assert_close(first_weights(), whole, rtol=0, atol=0)


@pytest.mark.parametrize(("embedding_size", "hidden_size"), [(32, 96), (48, 48)])
def test_each_head_begins_by_looking_at_its_distance(
    embedding_size: int, hidden_size: int, uri: str
) -> None:
    model = ModelSettings(
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    train = shards.ExampleShards(uri, "train")
    settings = TrainingSettings(initial_weights="counts")
    encoder = pretraining.initial_state(model, settings, train, ranks.ALONE).model.encoder
    pieces = torch.arange(NUM_SPECIAL, NUM_SPECIAL + 3).repeat(14)[:40]
    layout = layout_of([(1, 40)], torch.device("cpu"), 3, hidden_size // 3, False)
    x = encoder.projection(encoder.embeddings(pieces, torch.zeros(40, dtype=torch.int64), layout))
    attention: Any = encoder.attentions[0]
    query, key = (each(x).unflatten(1, (3, -1)) for each in (attention.query, attention.key))
    logits = torch.einsum("qnd,knd->nqk", query, key)
    for head, distance in enumerate((-1, 1, 0)):
        # The mean over all pieces: the words, which are drawn, blur it.
        logit_at = [logits[head].diagonal(d)[5:-5].mean() for d in range(-9, 10)]
        assert int(torch.stack(logit_at).argmax()) - 9 == distance
