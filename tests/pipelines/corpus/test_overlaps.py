import json
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.errors import SourceError
from pipelines.corpus import overlaps
from pipelines.corpus.overlaps import NgramIndex, Overlap, find_overlaps, ngram_hashes

TEST_TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom"
THIRTEEN = "It was the best of times, it was the worst of times, it"
DATA = Path("/work/shared/data")
WORDS = st.lists(st.sampled_from("abc"), max_size=30)


def known(*texts: str) -> NgramIndex:
    return NgramIndex.of(ngram_hashes(texts))


def ngrams_of(words: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def test_a_document_that_quotes_thirteen_words_overlaps() -> None:
    document = f'He began: "{THIRTEEN.upper()}" -- and stopped.'
    found = find_overlaps([document, "Nothing of the kind."], known(TEST_TEXT))
    assert found == [Overlap(1, THIRTEEN.upper()), None]


def test_a_document_that_quotes_twelve_words_does_not_overlap() -> None:
    twelve = THIRTEEN.removesuffix(" it")
    assert find_overlaps([f"a {twelve} b"], known(TEST_TEXT)) == [None]


def test_words_do_not_run_from_one_text_into_the_next() -> None:
    half, rest = THIRTEEN[:30], THIRTEEN[30:]
    assert find_overlaps([half, rest], known(TEST_TEXT)) == [None, None]
    assert len(ngram_hashes([half, rest])) == 0


def test_the_ledger_quotes_the_document_as_it_is_written() -> None:
    text = "Été – «日本» " + "un deux, trois! QUATRE cinq six sept huit neuf dix ONZE… douze fin"
    (found,) = find_overlaps([f"Ça: {text}"], known(text.lower()))
    assert found is not None
    assert found.num_ngrams == 4
    assert found.first == text.removesuffix(" ONZE… douze fin")


@given(st.lists(WORDS, max_size=4), st.lists(WORDS, max_size=4), st.integers(1, 5))
def test_overlaps_are_those_that_sets_of_ngrams_have(
    tests: list[list[str]], documents: list[list[str]], n: int
) -> None:
    tested = {gram for words in tests for gram in ngrams_of(words, n)}
    hashes = ngram_hashes([" ".join(words) for words in tests], n)
    assert len(hashes) == len(tested)
    assert (hashes[1:] > hashes[:-1]).all()
    found = find_overlaps([" ".join(words) for words in documents], NgramIndex.of(hashes), n)
    for words, overlap in zip(documents, found, strict=True):
        shared = [gram for gram in ngrams_of(words, n) if gram in tested]
        expected = Overlap(len(shared), " ".join(shared[0])) if shared else None
        assert overlap == expected


@given(st.lists(st.integers(0, 2**64 - 1)), st.lists(st.integers(0, 2**64 - 1)))
def test_what_is_looked_up_is_found_and_nothing_else(wanted: list[int], others: list[int]) -> None:
    asked = np.array(wanted + others, np.uint64)
    hashes = np.unique(np.array(wanted, np.uint64))
    expected = [i for i, value in enumerate(asked.tolist()) if value in set(wanted)]
    assert NgramIndex.of(hashes).positions_in(asked).tolist() == expected


def test_without_test_texts_nothing_overlaps() -> None:
    assert find_overlaps([TEST_TEXT, ""], known()) == [None, None]
    assert find_overlaps([], known(TEST_TEXT)) == []


def test_many_texts_in_several_batches_are_answered_in_order() -> None:
    random = Random(0)
    texts = [" ".join(f"w{random.randrange(10**6)}" for _ in range(20_000)) for _ in range(12)]
    quoted = " ".join(texts[7].split()[500:520])
    found = find_overlaps(texts, known(quoted))
    assert [i for i, overlap in enumerate(found) if overlap] == [7]


SQUAD = {"data": [{"title": "A", "paragraphs": [{"context": TEST_TEXT, "qas": [THIRTEEN]}]}]}
SEPARATED = "A\u2028text\u0085of its own"
JSON_LINES = "\n".join([json.dumps({"text": TEST_TEXT}), "", json.dumps([THIRTEEN, 3, None])])


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("glue/dev.tsv", f"index\ttext\n0\t{TEST_TEXT}\n1\tno\t{THIRTEEN}", [TEST_TEXT, THIRTEEN]),
        ("dev.json", json.dumps(SQUAD), [TEST_TEXT, THIRTEEN]),
        ("RACE/test/1.txt", json.dumps({"article": TEST_TEXT, "answers": ["A"]}), [TEST_TEXT]),
        ("a.jsonl", JSON_LINES, [TEST_TEXT, THIRTEEN]),
        ("a.json", JSON_LINES, [TEST_TEXT, THIRTEEN]),
        ("a.jsonl", f'["{SEPARATED}"]\r\n["{THIRTEEN}"]\r\n', [SEPARATED, THIRTEEN]),
        ("book.txt", TEST_TEXT, [TEST_TEXT]),
        ("book.txt", "[not] JSON but long", ["[not] JSON but long"]),
    ],
)
def test_texts_of_a_test_set_are_its_cells_its_strings_or_all_of_it(
    name: str, content: str, expected: list[str]
) -> None:
    assert overlaps.strings_of(name, content) == expected


def test_json_nested_more_deeply_than_pythons_stack_is_refused_or_a_text() -> None:
    deep = "[" * 100_000
    assert overlaps.strings_of("deep.txt", deep) == [deep]
    with pytest.raises(SourceError, match=r"deep\.json is called JSON"):
        overlaps.strings_of("deep.json", deep)


def test_a_json_file_that_is_not_json_is_refused_with_its_line() -> None:
    with pytest.raises(SourceError, match=r"cut\.json is called JSON.* line 2"):
        overlaps.strings_of("cut.json", '{"data": 1}\n{"data": [')


@pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")
def test_wikipedia_articles_that_squad_was_made_of_overlap() -> None:
    content = (DATA / "tasks/squad/squad-v1.1-articles-0-35.json").read_text()
    wanted = known(*overlaps.strings_of("squad.json", content))
    context = json.loads(content)["data"][0]["paragraphs"][3]["context"]
    quoting, other = find_overlaps(
        [f"As said: {context}", " ".join(re.split(r"\W+", context)[::-1])], wanted
    )
    assert quoting is not None
    assert other is None
