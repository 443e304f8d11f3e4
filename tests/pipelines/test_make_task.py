import json
from pathlib import Path

import pyarrow as pa
import pytest

from albert_core.stage.errors import SourceError
from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import PASSAGE_SOURCE, TaskResult
from albert_core.tasks.minimal_pairs import find_pairs
from albert_core.text.records import DOCUMENT_SCHEMA
from pipelines import make_task
from pipelines.config import TaskSettings
from pipelines.corpus.broken_sentences import REVERSED
from pipelines.examples.held_out import is_held_out
from pipelines.make_task import MIN_PAIRS, minimal_pairs
from tests.pipelines.conftest import EXAMPLES, Made, rows_of, write_corpus

TASK = TaskSettings()


def lines_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def made_task(manifest: str) -> TaskResult:
    return read_manifest(manifest).result_as(TaskResult)


def test_pairs_and_task_are_of_held_out_documents_and_the_counts_add_up(
    made: Made, tmp_path: Path
) -> None:
    manifest = make_task.run(TASK, made.examples, made.corpus, str(tmp_path))
    folder, result = Path(manifest).parent, made_task(manifest)
    assert find_pairs(str(folder)).keys() == {"generated"}
    pairs = lines_of(folder / "minimal_pairs/generated.jsonl")
    texts = {row["id"]: row["text"] for row in rows_of(made.corpus, "documents")}
    assert len(pairs) == sum(result.num_pairs.values()) > 0
    for pair in pairs:
        assert pair["sentence_good"] in texts[pair["document"]].split("\n")
        assert pair["sentence_bad"] != pair["sentence_good"]
        assert is_held_out(pair["document"], EXAMPLES)
    for split in ("train", "dev"):
        rows = lines_of(folder / PASSAGE_SOURCE / f"{split}.jsonl")
        assert len(rows) == result.num_rows[split] > 0
        for row in rows:
            assert is_held_out(row["document"], EXAMPLES)
            assert row["document"].startswith(row["source"])
            assert row["text"] in texts[row["document"]].replace("\n", " ")
    assert len(result.sources) >= 2
    assert result.word_accuracy is not None
    assert result.word_accuracy > 0.9


def task_of(made: Made, work: Path, texts: list[list[str]], training: list[str]) -> str:
    """Make the task of held-out documents with the sentences ``texts``, and a training one."""
    held_out = [name for name in map(str, range(1000)) if is_held_out(name, EXAMPLES)]
    documents = dict(zip(held_out, ["\n".join(text) for text in texts], strict=False))
    documents[next(name for name in map(str, range(1000)) if name not in held_out)] = "\n".join(
        training
    )
    columns = [list(documents), list(documents.values()), ["source"] * len(documents)]
    corpus = write_corpus(work, pa.table(columns, schema=DOCUMENT_SCHEMA))
    return make_task.run(TASK, made.examples, corpus, str(work))


def numbered(number: int, text: str) -> list[str]:
    return [f"{text} number {n}." for n in range(number)]


def test_a_sentence_that_is_repeated_or_trained_on_is_in_no_pair(
    made: Made, tmp_path: Path
) -> None:
    sentences = numbered(40, "It must be changed for the")
    manifest = task_of(made, tmp_path, [sentences, sentences[:3]], sentences[37:])
    assert made_task(manifest).num_pairs == {"be_dropped": 34}
    [account] = [each for each in read_manifest(manifest).accounts if "sentences" in each.what]
    assert (account.total, account.dropped) == (43, {"repeated": 9})


def test_of_more_text_than_memory_may_hold_some_documents_are_drawn(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [numbered(40, f"It must be changed for the {n}th") for n in range(20)]
    text_bytes = sum(len("\n".join(text)) for text in texts)
    monkeypatch.setattr(make_task, "_MOST_BYTES", text_bytes * EXAMPLES.held_out_share / 2)
    manifest = read_manifest(task_of(made, tmp_path, texts, []))
    account = manifest.account("held-out sentences")
    assert account.total == 800
    assert 0 < account.dropped["not_sampled"] < 800


def test_where_no_parts_are_told_apart_there_are_pairs_only(made: Made, tmp_path: Path) -> None:
    manifest = task_of(made, tmp_path, [numbered(40, "It must be changed for the")], [])
    assert made_task(manifest).word_accuracy is None
    assert not (Path(manifest).parent / PASSAGE_SOURCE).exists()


def test_documents_that_give_nothing_are_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="1 held-out documents with 30 sentences give neither"):
        task_of(made, tmp_path, [numbered(30, "Alles")], [])


@pytest.mark.parametrize(
    "sentence",
    [
        "그는 {}년 전에 이 책을 읽었다.",
        "这本书他{}年前已经读过了。",
        "Das Buch las er vor {} Jahren.",
    ],
)
def test_in_other_languages_words_of_whole_sentences_are_reversed(sentence: str) -> None:
    whole = [sentence.format(n) for n in range(MIN_PAIRS)]
    others = [sentence.format(99)[:-1], f"{sentence.format(99)[0]}."]
    found, dropped = minimal_pairs(dict.fromkeys([*whole, *others], "d"), TASK)
    assert {pair["UID"] for pair in found} == {REVERSED}
    assert sorted(pair["sentence_good"] for pair in found) == sorted(whole)
    assert dropped == {"unsuitable": len(others)}


def test_a_sentence_is_in_one_pair_of_its_rarest_kind_that_is_common_enough() -> None:
    sentences = [
        *numbered(MIN_PAIRS, "It must be changed or is an"),  # be, to be and an: three kinds
        *numbered(MIN_PAIRS - 1, "According to the"),
        *numbered(300, "Nothing is an apple or"),
        "Nothing",
    ]
    found, dropped = minimal_pairs(dict.fromkeys(sentences, "d"), TASK)
    kinds = [pair["UID"] for pair in found]
    assert len({pair["sentence_good"] for pair in found}) == len(found)
    assert kinds.count("a_and_an") == TASK.max_pairs
    assert kinds.count("be_dropped") == MIN_PAIRS
    assert set(kinds) == {"a_and_an", "be_dropped"}
    assert dropped == {"kind_too_rare": 19, "over_max_pairs": 200, "unsuitable": 1}
