"""Each kind of model as MLflow's server asks it: several threads, one loaded model."""

import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from tests.albert_core.asked_at_once import Tally, asked_at_once
from tests.albert_core.tiny_finetuned import save_tiny_finetuned
from tests.albert_core.tiny_model import save_tiny_model
from tests.albert_core.tiny_vocab import tiny_sentences

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of MLflow about itself, on import
    from albert_core.registry.served_model import AlbertPyfunc
    from albert_core.registry.served_task_model import FinetunedPyfunc

SENTENCES = tiny_sentences(420, seed=3)
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of fine-tuned model, and what it is asked."""

    task: str
    rows: Callable[[int], Rows]
    """Of the request of this number."""
    settings: dict[str, Any] = field(default_factory=dict)


def text(number: int) -> Rows:
    return [{"text": SENTENCES[number]}]


def pair(number: int) -> Rows:
    return [{"text": SENTENCES[number], "text_b": SENTENCES[number + 1]}]


def choice(number: int) -> Rows:
    article, question, *options = SENTENCES[number : number + 6]
    return [{"article": article, "question": question, "options": options}]


def question(number: int) -> Rows:
    asked = " ".join(SENTENCES[number].split()[:4])
    return [{"question": asked, "context": " ".join(SENTENCES[number : number + 6])}]


KINDS = {
    "one text": Kind("sst-2", text),
    "two texts": Kind("mnli", pair),
    "a number": Kind("sts-b", pair),
    "a choice": Kind("race", choice),
    "spans": Kind("squad-1.1", question),
    "spans or none": Kind("squad-2.0", question),
    "spans or none, simple": Kind("squad-2.0", question, {"spans": {"answer_head": "simple"}}),
}


@pytest.mark.parametrize(
    ("kind", "num_requests"),
    [pytest.param("one text", 400, marks=pytest.mark.slow), *((kind, 100) for kind in KINDS)],
)
def test_eight_threads_get_what_one_gets_of_a_fine_tuned_model(
    kind: str, num_requests: int, tmp_path: Path
) -> None:
    about, folder = KINDS[kind], str(tmp_path)
    save_tiny_finetuned(folder, about.task, **about.settings)
    requests = [(about.rows(number), None) for number in range(num_requests)]
    check_at_once(lambda: loaded(FinetunedPyfunc(), folder), requests)


def test_eight_threads_get_what_one_gets_of_a_pretrained_model(tmp_path: Path) -> None:
    save_tiny_model(str(tmp_path))
    requests = []
    for number, sentence in enumerate(SENTENCES[:80]):
        words = sentence.split()
        rows = [{"text": f"{' '.join(words[:size])} [MASK]"} for size in range(1, 2 + number % 4)]
        pairs = [row | {"text_b": words[-2]} for row in rows]
        requests += [(rows, None), (rows, {"task": "embed"}), (pairs, {"task": "sentence_order"})]
    check_at_once(lambda: loaded(AlbertPyfunc(), str(tmp_path)), requests)


def check_at_once(load: Callable[[], Any], requests: list[tuple[Rows, Any]]) -> None:
    """Ask a model that was just loaded, whose tables are empty, and again now that they are not."""
    alone = load()
    expected = [said_of(alone, request) for request in requests]
    model = load()
    for _ in ("cold", "warm"):
        assert asked_at_once(lambda r: said_of(model, r), requests, expected) == Tally()


def loaded(model: Any, folder: str) -> Any:
    model.load_context(SimpleNamespace(artifacts={"model": folder}))
    return model


def said_of(model: Any, request: tuple[Rows, Any]) -> Rows:
    rows, params = request
    said: Rows = model.predict(None, pd.DataFrame(rows), params).to_dict("records")
    return said


def test_only_one_thread_at_a_time_is_in_the_tokenizer_of_transformers(tmp_path: Path) -> None:
    """Which versions of it cannot bear more, and how seldom they meet, is no matter."""
    save_tiny_model(str(tmp_path))
    model = loaded(AlbertPyfunc(), str(tmp_path))
    tokenizer, inside = model.tokenizer, threading.Lock()

    def watched(*texts: Any, **options: Any) -> Any:
        assert inside.acquire(blocking=False), "another thread is in it"
        try:
            time.sleep(0.002)
            return tokenizer(*texts, **options)
        finally:
            inside.release()

    model.tokenizer = watched
    requests = [([{"text": sentence}], {"task": "embed"}) for sentence in SENTENCES[:32]]
    expected = [said_of(model, request) for request in requests]
    assert asked_at_once(lambda r: said_of(model, r), requests, expected) == Tally()
