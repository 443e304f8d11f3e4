from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import TaskResult
from pipelines import make_task
from pipelines.config import TaskSettings
from pipelines.make_task import acceptability_rows, is_suitable, swap_two_words
from tests.pipelines.conftest import Made

TASK = TaskSettings()
WORDS = st.lists(st.text("abcdef", min_size=1, max_size=5), min_size=5, max_size=30)


@given(WORDS, st.integers(0, 2**32))
def test_a_swap_changes_two_words_and_never_the_last(words: list[str], seed: int) -> None:
    sentence = " ".join(words) + "."
    if is_suitable(sentence, TASK):
        swapped = swap_two_words(sentence, seed).split(" ")
        original = sentence.split(" ")
        assert Counter(swapped) == Counter(original)
        assert sum(a != b for a, b in zip(swapped, original, strict=True)) == 2
        assert swapped[-1] == original[-1]


def test_about_half_of_the_rows_are_swapped_and_documents_stay_on_one_side() -> None:
    suitable = {f"the word number {n} is not like the others.": f"d{n // 7}" for n in range(2000)}
    rows = list(acceptability_rows(suitable, TASK))
    assert 0.45 < sum(row.label for row in rows) / len(rows) < 0.55
    side: dict[int, str] = {}
    for row in rows:
        number = int(next(word for word in row.sentence.split() if word.isdigit()))
        assert side.setdefault(number // 7, row.split) == row.split


def test_the_stage_writes_colas_layout_and_its_counts_add_up(made: Made, tmp_path: Path) -> None:
    manifest = make_task.run(TASK, made.examples, made.corpus, str(tmp_path))
    num_rows = read_manifest(manifest).result_as(TaskResult).num_rows
    for split in ("train", "dev"):
        lines = (Path(manifest).parent / "CoLA" / f"{split}.tsv").read_text().splitlines()
        assert len(lines) == num_rows[split] > 0
        for line in lines:
            source, label, mark, sentence = line.split("\t")
            assert source == "held-out"
            assert mark == ("" if label == "1" else "*")
            assert is_suitable(sentence, TASK)
