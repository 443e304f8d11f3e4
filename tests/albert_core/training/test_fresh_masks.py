from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import read_manifest
from albert_core.text.masking import mask_examples
from albert_core.text.records import MASK, Ints
from albert_core.text.seeds import derive_seed, random_bits
from albert_core.training.loader import FreshMasks
from albert_core.training.shards import ExampleShards, Rows
from tests.albert_core.made_examples import MASKED_LM_PROB, MAX_NGRAM, made_examples
from tests.albert_core.tiny_vocab import tiny_vocab

NUM_EXAMPLES, LENGTH = 1500, 128
ALL = np.arange(NUM_EXAMPLES)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    uri = made_examples(str(tmp_path_factory.mktemp("examples")), NUM_EXAMPLES, LENGTH)
    return ExampleShards(uri, "train")


@pytest.fixture(scope="module")
def masks(examples: ExampleShards) -> FreshMasks:
    return FreshMasks(examples.manifest, seed=1)


def drawn(examples: ExampleShards, masks: FreshMasks, numbers: Ints, epoch: int | Ints = 0) -> Rows:
    epochs = np.broadcast_to(epoch, numbers.shape)
    return masks.draw(examples.rows(numbers), numbers, epochs)


def masked_ngrams(rows: Rows) -> Ints:
    """Return how many words in a row are predicted, for each such run of words."""
    opens = tiny_vocab().starts_word[rows.unmasked()]
    chosen = np.zeros(len(rows.input_ids), bool)
    starts = np.cumsum(rows.lengths) - rows.lengths
    chosen[np.repeat(starts, rows.num_predictions) + rows.positions] = True
    before = np.append(False, chosen[:-1])
    run = np.cumsum(chosen & ~before)
    counts: Ints = np.bincount(run[chosen & (opens | ~before)])[1:]
    return counts


def test_only_the_masks_are_other_ones(examples: ExampleShards, masks: FreshMasks) -> None:
    before, after = examples.rows(ALL), drawn(examples, masks, ALL)
    assert (after.unmasked() == before.unmasked()).all()
    assert (after.lengths == before.lengths).all()
    assert (after.segment_b_starts == before.segment_b_starts).all()
    assert (after.sentence_order_labels == before.sentence_order_labels).all()
    share_kept = np.isin(places(after), places(before)).mean()
    assert share_kept == pytest.approx(MASKED_LM_PROB, abs=0.02)


def places(rows: Rows) -> Ints:
    """Return where pieces are predicted, among all pieces."""
    starts = np.cumsum(rows.lengths) - rows.lengths
    return np.repeat(starts, rows.num_predictions) + rows.positions.astype(np.int64)


@given(
    numbers=st.lists(st.integers(0, NUM_EXAMPLES - 1), min_size=1, max_size=30),
    epochs=st.lists(st.integers(0, 3), min_size=30, max_size=30),
)
@settings(max_examples=30, deadline=None)
def test_a_mask_depends_on_example_and_epoch_alone(
    examples: ExampleShards, masks: FreshMasks, numbers: list[int], epochs: list[int]
) -> None:
    together = drawn(examples, masks, np.array(numbers), np.array(epochs[: len(numbers)]))
    for row, number, epoch in zip(
        together.split(range(1, len(numbers) + 1)), numbers, epochs, strict=False
    ):
        alone = drawn(examples, masks, np.array([number]), epoch)
        assert row.input_ids.tolist() == alone.input_ids.tolist()
        assert row.positions.tolist() == alone.positions.tolist()


def test_every_epoch_and_every_run_has_masks_of_its_own(
    examples: ExampleShards, masks: FreshMasks
) -> None:
    other_run = FreshMasks(examples.manifest, seed=2)
    found = [places(drawn(examples, masks, ALL, epoch)) for epoch in range(3)]
    found.append(places(drawn(examples, other_run, ALL)))
    for i in range(len(found)):
        for j in range(i):
            share = np.isin(found[i], found[j]).mean()
            assert share == pytest.approx(MASKED_LM_PROB, abs=0.04)  # more in short examples


def test_as_many_pieces_are_predicted_at_every_length_as_in_the_shards(
    examples: ExampleShards, masks: FreshMasks
) -> None:
    before, after = examples.rows(ALL), drawn(examples, masks, ALL)
    assert after.num_predictions.max() == round(MASKED_LM_PROB * LENGTH)
    for low, high in ((7, 40), (40, 80), (80, 128), (128, 129)):
        rows = (before.lengths >= low) & (before.lengths < high)
        was, now = before.num_predictions[rows].sum(), after.num_predictions[rows].sum()
        assert now == pytest.approx(was, rel=0.01)


def test_of_the_chosen_pieces_eighty_ten_and_ten_percent_become_what_they_did(
    examples: ExampleShards, masks: FreshMasks
) -> None:
    for rows in (examples.rows(ALL), drawn(examples, masks, ALL)):
        became = rows.input_ids[places(rows)]
        num_others = tiny_vocab().vocab_size - 5
        assert (became == MASK).mean() == pytest.approx(0.8, abs=0.015)
        assert (became == rows.labels).mean() == pytest.approx(0.1 + 0.1 / num_others, abs=0.01)


def test_ngrams_are_as_long_as_in_the_shards(examples: ExampleShards, masks: FreshMasks) -> None:
    was, now = (
        np.bincount(np.minimum(masked_ngrams(rows), 2 * MAX_NGRAM), minlength=2 * MAX_NGRAM + 1)
        for rows in (examples.rows(ALL), drawn(examples, masks, ALL))
    )
    shares = was / was.sum(), now / now.sum()
    assert abs(shares[1] - shares[0]).max() < 0.02
    assert (shares[1][1:3] > 0.15).all()


@given(numbers=st.lists(st.integers(0, NUM_EXAMPLES - 1), min_size=1, max_size=50))
@settings(max_examples=30, deadline=None)
def test_predictions_are_counted_as_they_would_be_drawn(
    examples: ExampleShards, masks: FreshMasks, numbers: list[int]
) -> None:
    indices = np.array(numbers)
    epochs = indices % 3
    drawn_count = drawn(examples, masks, indices, epochs).num_predictions.sum()
    assert masks.count(examples.rows(indices), indices, epochs) == drawn_count


def test_blocks_of_any_size_give_the_same_masks(
    examples: ExampleShards, masks: FreshMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = drawn(examples, masks, ALL)
    monkeypatch.setattr("albert_core.training.loader._PIECES_PER_BLOCK", 1000)
    in_blocks = drawn(examples, masks, ALL)
    assert (in_blocks.input_ids == whole.input_ids).all()
    assert (in_blocks.positions == whole.positions).all()


def test_the_seed_of_a_mask_is_that_of_run_epoch_and_example(
    examples: ExampleShards, masks: FreshMasks
) -> None:
    numbers = np.array([5, 700, 3])
    rows = examples.rows(numbers)
    expected = mask_examples(
        rows.unmasked(),
        rows.lengths,
        rows.segment_b_starts,
        tiny_vocab().starts_word,
        random_bits(derive_seed(1, "masks", 4), numbers),
        MASKED_LM_PROB,
        MAX_NGRAM,
        round(MASKED_LM_PROB * LENGTH),
    )
    found = drawn(examples, masks, numbers, 4)
    assert (found.input_ids == expected.input_ids).all()
    assert (found.positions == expected.positions).all()


def test_examples_masked_as_the_reference_does_keep_their_masks(tmp_path: Path) -> None:
    manifest = read_manifest(made_examples(str(tmp_path), 10, 40, fidelity="google"))
    with pytest.raises(ConfigError, match=r"examples.fidelity 'google'.*Take training.masks"):
        FreshMasks(manifest, 1)
