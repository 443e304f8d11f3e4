from collections import Counter
from random import Random

from pipelines.config import TaskSettings
from pipelines.corpus.passage_sources import SourceTask, passages_of, source_task

TASK = TaskSettings(passage_words=6)


def made(names: dict[str, str], num_passages: int = 12) -> dict[str, list[str]]:
    """Return passages of each document about a subject: half of the words are of the subject."""
    random = Random(1)
    return {
        name: [
            " ".join(f"{random.choice(('w', about))}{random.randrange(9)}" for _ in range(6))
            for _ in range(num_passages)
        ]
        for name, about in names.items()
    }


def labels(task: SourceTask | None) -> set[str]:
    assert task is not None
    return {row.source for row in task.train + task.dev}


def test_a_passage_has_exactly_so_many_words_and_begins_with_a_sentence() -> None:
    sentences = ["a b.", "c d e.", "f g h i j.", "k."]
    assert list(passages_of(sentences, 4)) == ["a b. c d", "f g h i"]
    assert list(passages_of(["他来了。", "我走吧 b."], 4)) == ["他来了。 我走"]


def test_the_labels_are_the_first_folders_that_words_tell_apart() -> None:
    names = {f"all/{kind}/{n}.txt": kind for kind in ("sea", "law") for n in range(6)}
    task = source_task(made(names), TASK)
    assert labels(task) == {"all/sea", "all/law"}
    assert task is not None
    assert task.word_accuracy > 0.9


def test_where_files_say_nothing_the_documents_are_the_labels() -> None:
    names = {f"part-{n % 2}.jsonl#{n}": str(n) for n in range(8)}
    task = source_task(made(names, 40), TASK)
    assert labels(task) == set(names)
    assert task is not None
    rows = task.train + task.dev
    assert len({row.document for row in rows}) == len(rows)


def test_labels_of_few_passages_do_not_keep_those_of_more_from_being_a_task() -> None:
    passages = {str(n): [f"{n} {k}" for k in range(40 if n < 2 else 12)] for n in range(9)}
    assert labels(source_task(passages, TASK)) == {"0", "1"}


def test_the_same_text_everywhere_makes_no_task_nor_does_a_single_document() -> None:
    names = {f"{kind}/{n}.txt": "x" for kind in ("a", "b") for n in range(6)}
    assert source_task(made(names), TASK) is None
    assert source_task(made({"a.txt": "a"}, 100), TASK) is None
    assert source_task({}, TASK) is None


def test_each_label_has_as_many_rows_and_no_document_is_on_both_sides() -> None:
    names = {f"{kind}/{n}.txt": kind for kind in "abc" for n in range(4 + 3 * "abc".index(kind))}
    task = source_task(made(names), TASK)
    assert task is not None
    for rows in (task.train, task.dev):
        assert len(set(Counter(row.source for row in rows).values())) == 1
    assert not {row.document for row in task.train} & {row.document for row in task.dev}
    assert 0.2 < len(task.dev) / len(task.train + task.dev) <= 0.25


def test_the_number_of_rows_is_bounded() -> None:
    names = {f"{kind}/{n}.txt": kind for kind in "abc" for n in range(9)}
    task = source_task(made(names), TASK.model_copy(update={"max_passages": 90}))
    assert task is not None
    assert len(task.train + task.dev) <= 90
