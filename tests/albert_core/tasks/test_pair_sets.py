"""Which pairs there are, which of them are a sample, and how their scores are summed up."""

from collections import Counter
from pathlib import Path

import pytest

from albert_core.stage.errors import TaskError
from albert_core.tasks.minimal_pairs import MinimalPairs
from albert_core.tasks.pair_sets import find_pairs, pair_digests, pair_scores, sample_of, that_fit
from tests.albert_core.made_pairs import write_pairs
from tests.albert_core.tiny_vocab import tiny_vocab


def made(name: str, sizes: dict[str, int]) -> MinimalPairs:
    """Return a set with so many pairs of each paradigm; all of one phenomenon."""
    paradigms = [paradigm for paradigm, size in sizes.items() for _ in range(size)]
    good = [f"{name} {number}" for number in range(len(paradigms))]
    return MinimalPairs(
        name=name, good=good, bad=good, paradigms=paradigms, phenomena=["all"] * len(good)
    )


def test_sets_have_their_places_and_everything_else_is_passed_over(tmp_path: Path) -> None:
    for name in ("blimp/b.jsonl", "blimp/a.jsonl", "blimp/README.md", "zorro/a-b.txt", "x.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    write_pairs(tmp_path)
    found = find_pairs(str(tmp_path))
    assert {name: [Path(uri).name for uri in uris] for name, uris in found.items()} == {
        "blimp": ["a.jsonl", "b.jsonl"],
        "zorro": ["a-b.txt"],
        "made": ["made.jsonl"],
    }
    assert find_pairs(str(tmp_path / "nowhere")) == {}
    write_pairs(tmp_path, name="zorro")
    with pytest.raises(TaskError, match=r"zorro\.jsonl: there is a set 'zorro' already"):
        find_pairs(str(tmp_path))


def test_a_set_is_another_one_if_a_pair_differs_but_not_in_another_folder(tmp_path: Path) -> None:
    here, there, other = (write_pairs(tmp_path / n, seed=n == "c") for n in "abc")
    digests = [pair_digests(find_pairs(str(folder))) for folder in (here, there, other)]
    assert digests[0] == digests[1] != digests[2]


def test_a_sample_has_of_each_paradigm_equally_many_and_is_always_the_same() -> None:
    sets = [made("one", {"a": 50, "b": 7}), made("two", {"a": 90})]
    sample = sample_of(sets, 30)
    counts = Counter((text.split()[0], paradigm) for text, paradigm in zip(
        sample.good, sample.paradigms, strict=True
    ))  # fmt: skip
    assert len(sample) == 30
    assert counts["one", "b"] == 7
    assert {counts["one", "a"], counts["two", "a"]} == {11, 12}
    assert sample_of(sets, 30) == sample
    assert sample_of(sets, 1000).good == [*sets[0].good, *sets[1].good]


def test_pairs_with_a_sentence_too_long_for_the_model_are_left_out_and_counted() -> None:
    pairs = made("set", {"a": 3})
    pairs.bad[1] = "ba " * 40
    kept, account = that_fit(pairs, tiny_vocab(), 30)
    assert kept.good == [pairs.good[0], pairs.good[2]]
    assert str(account) == "set pairs: 3 in = 2 kept, 1 dropped (too_long 1)"


def test_a_score_is_the_mean_over_paradigms_whatever_their_sizes() -> None:
    scores = pair_scores(made("set", {"a": 8, "b": 2}), [True] * 8 + [True, False])
    assert scores.accuracy.value == scores.phenomena["all"].accuracy.value == 0.75
    assert {name: each.accuracy.value for name, each in scores.paradigms.items()} == {
        "a": 1.0,
        "b": 0.5,
    }
    assert (scores.num_pairs, scores.paradigms["b"].num_pairs) == (10, 2)
    assert not scores.paradigms["a"].accuracy.is_above(0.99)
    assert not scores.paradigms["b"].is_above_chance
