"""Which pairs there are, what files contain, which are a sample, and how scores are summed up."""

import json
from collections import Counter
from pathlib import Path

import pytest

from albert_core.stage.errors import TaskError
from albert_core.tasks.minimal_pairs import (
    Pair,
    find_pairs,
    pair_digests,
    pair_scores,
    read_pairs,
    sample_of,
    that_fit,
)
from tests.albert_core.made_pairs import write_pairs
from tests.albert_core.tasks.task_files import DATA, write
from tests.albert_core.tiny_vocab import tiny_vocab

BLIMP_ROW = {
    "sentence_good": "A cat sat.",
    "sentence_bad": "A cat sit.",
    "UID": "past",
    "linguistics_term": "verbs",
}


def made(name: str, sizes: dict[str, int]) -> list[Pair]:
    """Return a set with so many pairs of each paradigm; all of one phenomenon."""
    paradigms = [paradigm for paradigm, size in sizes.items() for _ in range(size)]
    sentences = [f"{name} {number}" for number in range(len(paradigms))]
    return [Pair(s, s, paradigm, "all") for s, paradigm in zip(sentences, paradigms, strict=True)]


def touch(folder: Path, *names: str) -> str:
    """Make these files in the folder, without content; return the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return str(folder)


def test_sets_have_their_places_and_what_is_outside_of_them_is_passed_over(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    touch(
        tmp_path,
        *("blimp/b.jsonl", "blimp/A.JSONL", "blimp/README.md", "zorro/a-b.txt", "zorro/LICENSE"),
        *("x.jsonl", "minimal_pairs/._made.jsonl", "minimal_pairs/.DS_Store"),
    )
    found = find_pairs(str(tmp_path))
    assert {name: [Path(uri).name for uri in uris] for name, uris in found.items()} == {
        "blimp": ["A.JSONL", "b.jsonl"],
        "zorro": ["a-b.txt"],
        "made": ["made.jsonl"],
    }
    assert find_pairs(str(tmp_path / "nowhere")) == find_pairs(str(tmp_path / "x.jsonl")) == {}


def test_capitals_in_the_name_of_a_folder_do_not_matter(tmp_path: Path) -> None:
    folder = touch(tmp_path, "BLiMP/a.jsonl", "ZORRO/b.txt", "Minimal_Pairs/c.jsonl")
    assert list(find_pairs(folder)) == ["blimp", "zorro", "c"]
    touch(tmp_path, "blimp/a.jsonl")
    with pytest.raises(TaskError, match=r"BLiMP and blimp in .* differ only in capitals"):
        find_pairs(folder)


@pytest.mark.parametrize("name", ["blimp", "BLiMP", "zorro"])
def test_an_own_set_is_not_called_as_a_published_one_is(name: str, tmp_path: Path) -> None:
    write_pairs(tmp_path, name=name)
    with pytest.raises(TaskError, match=rf"{name}\.jsonl: another set is called '{name}'"):
        find_pairs(str(tmp_path))


@pytest.mark.parametrize("name", ["packed.jsonl.gz", "pairs.md", "folder.jsonl"])
@pytest.mark.parametrize("folder", ["minimal_pairs", "blimp", "Zorro"])
def test_a_file_that_would_not_be_read_as_a_set_is_named(
    folder: str, name: str, tmp_path: Path
) -> None:
    wrong = tmp_path / folder / name
    wrong.parent.mkdir()
    wrong.mkdir() if name.startswith("folder") else wrong.touch()
    ending = "txt" if folder == "Zorro" else "jsonl"
    said = f"{folder}/{name} can't be read: expected files that end in .{ending}"
    with pytest.raises(TaskError, match=said):
        find_pairs(str(tmp_path))


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    [gone] = write_pairs(tmp_path).glob("minimal_pairs/*")
    gone.unlink()
    gone.symlink_to(tmp_path / "nowhere")
    with pytest.raises(TaskError, match=f"{gone.name} is missing"):
        pair_digests(find_pairs(str(tmp_path)))


def test_a_set_is_another_one_if_a_pair_differs_but_not_in_another_folder(tmp_path: Path) -> None:
    here, there, other = (write_pairs(tmp_path / n, seed=n == "c") for n in "abc")
    digests = [pair_digests(find_pairs(str(folder))) for folder in (here, there, other)]
    assert digests[0] == digests[1] != digests[2]


def test_a_sample_has_of_each_paradigm_equally_many_and_is_always_the_same() -> None:
    sets = {"one": made("one", {"a": 50, "b": 7}), "two": made("two", {"a": 90})}
    sample = sample_of(sets, 30)
    counts = Counter((pair.good.split()[0], pair.paradigm) for pair in sample)
    assert counts.total() == 30
    assert counts["one", "b"] == 7
    assert {counts["one", "a"], counts["two", "a"]} == {11, 12}
    assert sample_of(sets, 30) == sample
    assert sample_of(sets, 1000) == [*sets["one"], *sets["two"]]


def test_pairs_that_are_too_long_or_differ_in_nothing_the_model_sees_are_left_out_and_counted() -> (
    None
):
    pairs = made("set", {"a": 5})
    pairs[1] = pairs[1]._replace(bad="ba " * 40)
    pairs[2] = pairs[2]._replace(good="Ba dí.", bad="ba di.")
    pairs[3] = pairs[3]._replace(good="ba di.", bad="ba di.")  # as in BLiMP
    kept, account = that_fit("set", pairs, tiny_vocab(), 30)
    assert kept == [pairs[0], *pairs[3:]]
    assert str(account) == "set pairs: 5 in = 3 kept, 2 dropped (same_pieces 1, too_long 1)"
    kept, _ = that_fit("set", pairs, tiny_vocab(lower_case=False), 30)
    assert kept == [pairs[0], *pairs[2:]]


def test_a_text_without_pieces_is_no_sentence_and_a_pair_counts_once() -> None:
    vanishing = Pair("\u200b", "ba di.", "p", "p")
    pairs = [*made("set", {"p": 2}), vanishing, vanishing._replace(good="di.", bad="\u200b")]
    kept, account = that_fit("mine", pairs * 2, tiny_vocab(), 30)
    assert kept == pairs[:2]
    assert str(account) == "mine pairs: 8 in = 2 kept, 6 dropped (no_pieces 2, repeated 4)"
    assert len(that_fit("blimp", pairs * 2, tiny_vocab(), 30)[0]) == 4


def test_a_pair_counts_once_in_each_paradigm_that_has_it() -> None:
    pair = Pair("ba di.", "di ba.", "p", "one")
    pairs = [pair, pair._replace(paradigm="q"), pair._replace(phenomenon="other")]
    kept, account = that_fit("mine", pairs, tiny_vocab(), 30)
    assert kept == pairs[:2]
    assert account.dropped == {"repeated": 1}


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


def test_each_format_is_read_with_its_paradigms_and_phenomena(tmp_path: Path) -> None:
    blimp = write(tmp_path / "past.jsonl", json.dumps(BLIMP_ROW) + "\n")
    zorro = write(tmp_path / "case-a-b.txt", "A cat sit.\nA cat sat.\n")
    own = write(tmp_path / "mine.jsonl", '{"sentence_good": "It is.", "sentence_bad": "Is it."}\n')
    found = {name: read_pairs(name, [uri]) for name, uri in
             (("blimp", blimp), ("zorro", zorro), ("mine", own))}  # fmt: skip
    assert found == {
        "blimp": [("A cat sat.", "A cat sit.", "past", "verbs")],
        "zorro": [("A cat sat.", "A cat sit.", "case-a-b", "case")],
        "mine": [("It is.", "Is it.", "mine", "mine")],
    }


MALFORMED = {
    "a.jsonl": [
        ('{"sentence_good": "A."}', "line 1, sentence_bad: Field required"),
        ('{"sentence_good": 3, "sentence_bad": "A."}', "line 1, sentence_good: .* found 3"),
        (
            '{"sentence_good": "A.", "sentence_bad": "B.", "UID": ""}',
            "line 1, UID: .*expected a text .* found ''",
        ),
        (json.dumps(BLIMP_ROW) + '\n{"sentence', "line 2: not JSON"),
        ('{"sentence_good": "A.", "sentence_bad": "A."}', "line 1: both sentences are 'A.'"),
        ("", "has no pairs"),
    ],
    "a.txt": [
        ("A.\nB.\nC.\n", "line 3: the last of an odd number of lines"),
        ("A.\n\nB.\nC.\n", "line 2: no text"),
        ("A.\nB.\nC.\nC.\n", "line 3: both sentences are 'C.'"),
        ("", "has no pairs"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [(name, *case) for name, cases in MALFORMED.items() for case in cases],
)
def test_a_malformed_file_is_an_error_that_says_where(
    name: str, content: str, said: str, tmp_path: Path
) -> None:
    uri = write(tmp_path / name, content)
    with pytest.raises(TaskError, match=said) as raised:
        read_pairs("own", [uri])
    assert uri in str(raised.value)


def test_a_pair_of_a_published_set_may_be_the_same_sentence_twice(tmp_path: Path) -> None:
    # BLiMP's principle_A_case_2 has one, which every model gets wrong.
    uri = write(tmp_path / "same.txt", "A cat sat.\nA cat sat.\n")
    assert len(read_pairs("zorro", [uri])) == 1


@pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")
def test_blimp_and_zorro_are_read_as_published() -> None:
    found = {name: read_pairs(name, uris) for name, uris in find_pairs(str(DATA)).items()}
    counts = {
        name: (len(pairs), len({p.paradigm for p in pairs}), len({p.phenomenon for p in pairs}))
        for name, pairs in found.items()
    }
    assert counts == {"blimp": (13_400, 67, 13), "zorro": (11_500, 23, 13)}
    good, bad, *_ = found["zorro"][0]
    assert (bad, good) == ("look at this purple things .", "look at this purple thing .")
