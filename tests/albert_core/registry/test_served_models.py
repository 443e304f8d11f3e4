"""What served models answer: to bad input, to several threads at once, and over HTTP."""

import json
import math
import os
import shutil
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pandas as pd
import pytest
import torch

from albert_core.conversion.huggingface import save_model_folder
from albert_core.registry.version_commands import explain_version, list_versions, promote_version
from albert_core.registry.version_files import CHANGED, DAMAGED, GONE, SHA256, model_folder_of
from albert_core.stage.errors import IntegrityError, RegistryError
from albert_core.stage.manifest import sha256_of
from albert_core.tasks.catalogue import TASKS
from albert_core.tracking.server import MODEL_ARTIFACT, open_client
from tests.albert_core.tiny_finetuned import register_tiny, save_tiny_finetuned
from tests.albert_core.tiny_model import (
    MAX_POSITIONS,
    encoded,
    logits_of,
    random_model,
    save_tiny_model,
)
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab
from tests.mlflow_server import HOST, free_port, kill, start_server
from tests.threads import in_threads

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of MLflow about itself, on import
    from albert_core.registry import served_model
    from albert_core.registry.served_model import AlbertPyfunc
    from albert_core.registry.served_task_model import FinetunedPyfunc

SENTENCES = tiny_sentences(420, seed=3)
_TOLERANCE = 1e-5
Request = TypeVar("Request")
Rows = list[dict[str, Any]]


def loaded(model: Any, folder: str) -> Any:
    digests = {path.name: sha256_of(str(path)) for path in Path(folder).iterdir()}
    load(model, folder, digests)
    return model


def load(model: Any, folder: str, digests: dict[str, str]) -> None:
    configured = {"artifacts": {MODEL_ARTIFACT: folder}, "model_config": {SHA256: digests}}
    model.load_context(SimpleNamespace(**configured))


def answer_of(model: Any, request: tuple[Rows, Any]) -> Rows:
    rows, params = request
    found: Rows = model.predict(None, pd.DataFrame(rows), params).to_dict("records")
    return found


def test_where_an_answer_begins_is_a_whole_number_also_beside_a_question_without_one() -> None:
    answers = [{"answer": "kelu", "start": 5, "end": 9}, {"answer": "", "start": None, "end": None}]
    served = FinetunedPyfunc()
    model: Any = SimpleNamespace(task=TASKS["squad-2.0"], predict=lambda rows: answers)
    served.model = model
    found = served.predict(None, pd.DataFrame({"question": "a", "context": ["b", "c"]}))
    assert "bado kelu"[found["start"][0] : found["end"][0]] == "kelu"
    assert found["start"][1] is None


@pytest.mark.parametrize("kind", [AlbertPyfunc, FinetunedPyfunc])
def test_a_model_that_changed_after_it_was_registered_is_not_served(
    kind: Callable[[], Any], tmp_path: Path
) -> None:
    save_tiny_model(str(tmp_path))
    digests = {path.name: sha256_of(str(path)) for path in tmp_path.iterdir()}
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors changed after it was registered"):
        load(kind(), str(tmp_path), digests)


# -- a pretrained model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> AlbertPyfunc:
    folder = str(tmp_path_factory.mktemp("served"))
    save_tiny_model(folder)
    assert served_model.MODEL_ARTIFACT == MODEL_ARTIFACT
    model: AlbertPyfunc = loaded(AlbertPyfunc(), folder)
    return model


@pytest.mark.parametrize("shape", [{}, {"embedding_size": 16, "sharing": "none"}])
def test_albert_and_bert_are_served_with_their_own_heads(
    shape: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(**shape)
    save_model_folder(model, tiny_vocab(), str(tmp_path))
    served = loaded(AlbertPyfunc(), str(tmp_path))
    [a], [b] = tiny_vocab().encode(["bado"]), tiny_vocab().encode(["kelu."])
    ids = torch.tensor([[2, *a, 4, 3, *b, 3]])
    types = torch.tensor([[0] * (len(a) + 3) + [1] * (len(b) + 1)])
    with torch.no_grad():
        first = ids[:, : len(a) + 3], None, types[:, : len(a) + 3]
        masked, _ = logits_of(model, *first, (ids == 4).nonzero()[:, 1:])
        _, order = logits_of(model, ids, None, types, torch.zeros_like(ids))
        hidden, _ = encoded(model.encoder, *first)
    rows = [{"text": "bado [MASK]", "text_b": "kelu."}]
    [best] = answer_of(served, (rows, {"top_k": 1}))
    assert best["probability"] == pytest.approx(masked.softmax(-1).max().item(), abs=1e-5)
    [ordered] = answer_of(served, (rows, {"task": "sentence_order"}))
    assert ordered["probability"] == pytest.approx(order.softmax(-1)[0, 0].item(), abs=1e-5)
    [embedded] = answer_of(served, (rows, {"task": "embed"}))
    assert embedded["embedding"] == pytest.approx(hidden[0].mean(dim=0).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("rows", "params", "message"),
    [
        ({"text": ["bado"]}, {}, r"row 0 has no \[MASK\] to fill: 'bado'"),
        ({"text": ["bado " * MAX_POSITIONS + "[MASK]"]}, {}, r"beyond the first 48 pieces"),
        ({"text": ["[MASK]"]}, {"top_k": 0}, "top_k is 0, expected 1 to 200"),
        ({"text": ["[MASK]"]}, {"top_k": 201}, "top_k is 201, expected 1 to 200"),
        ({"text": ["[MASK]"]}, {"top_k": None}, "top_k is None, expected 1 to 200"),
        ({"text": ["[MASK]", None]}, {}, "row 1: text is (None|nan), expected a text"),
        ({"text": [" "]}, {"task": "embed"}, "row 0: text is ' ', expected a text"),
        ({"text": ["a\ud979"]}, {"task": "embed"}, "row 0: text has half of a surrogate pair"),
        ({"text": ["a"]}, {"task": "sing"}, "task is 'sing', expected one of fill_mask, embed"),
        ({"text": ["a"]}, {"task": "sentence_order"}, "the column 'text_b' is missing"),
    ],
)
def test_bad_input_is_refused(
    served: AlbertPyfunc, rows: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        served.predict(None, pd.DataFrame(rows, dtype=object), params)


@pytest.mark.parametrize("objective", ["none", "nsp"])
def test_sentence_order_that_was_not_learned_is_not_scored(objective: str, tmp_path: Path) -> None:
    save_tiny_model(str(tmp_path))
    served: Any = AlbertPyfunc()
    configured = {"artifacts": {MODEL_ARTIFACT: str(tmp_path)}}
    served.load_context(SimpleNamespace(**configured, model_config={"objective": objective}))
    pair = pd.DataFrame({"text": ["bado"], "text_b": ["kelu."]})
    with pytest.raises(ValueError, match=f"not learned sentence order: .* was '{objective}'"):
        served.predict(None, pair, {"task": "sentence_order"})
    assert len(served.predict(None, pair, {"task": "embed"})) == 1


def test_rows_do_not_depend_on_their_batch_and_long_ones_are_cut(served: AlbertPyfunc) -> None:
    texts = [("bado kelu " * (i % 7)) + "[MASK]" for i in range(70)]
    together = served.predict(None, pd.DataFrame({"text": texts}), {"top_k": 1})
    assert together["row"].tolist() == list(range(70))
    alone = served.predict(None, pd.DataFrame({"text": texts[41:42]}), {"top_k": 1})
    assert alone["piece"][0] == together["piece"][41]
    assert alone["probability"][0] == pytest.approx(together["probability"][41], abs=1e-5)
    two = served.predict(None, pd.DataFrame({"text": ["[MASK]", "[MASK] ba [MASK]"]}), {"top_k": 1})
    assert two[["row", "mask"]].to_numpy().tolist() == [[0, 0], [1, 0], [1, 1]]
    long, cut = ({"text": "bado " * words, "text_b": "kelu " * words} for words in (200, 100))
    for task in ("embed", "sentence_order"):
        [one], [other] = (answer_of(served, ([row], {"task": task})) for row in (long, cut))
        assert list(one.values())[-1] == list(other.values())[-1]


# -- several threads


def alike(one: Any, other: Any) -> bool:
    """Return whether two answers are the same but for the last digits of their numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=_TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def check_threads(
    ask: Callable[[Request], Any], requests: Sequence[Request], expected: Sequence[Any]
) -> None:
    """Ask twice: a model that was just loaded, whose tables are empty, and then a warm one."""
    for _ in ("cold", "warm"):
        assert alike(in_threads(ask, requests), list(expected))


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


@pytest.mark.parametrize(
    ("task", "rows", "settings"),
    [
        ("sst-2", text, {}),
        ("mnli", pair, {}),
        ("sts-b", pair, {}),
        ("race", choice, {}),
        ("squad-1.1", question, {}),
        ("squad-2.0", question, {}),
        ("squad-2.0", question, {"spans": {"answer_head": "simple"}}),
    ],
)
def test_eight_threads_get_what_one_gets_of_a_fine_tuned_model(
    task: str, rows: Callable[[int], Rows], settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = str(tmp_path)
    save_tiny_finetuned(folder, task, **settings)
    requests = [(rows(number), None) for number in range(60)]
    alone, model = loaded(FinetunedPyfunc(), folder), loaded(FinetunedPyfunc(), folder)
    expected = [answer_of(alone, request) for request in requests]
    check_threads(lambda request: answer_of(model, request), requests, expected)


def test_eight_threads_get_what_one_gets_of_a_pretrained_model_but_one_at_a_time_tokenizes(
    tmp_path: Path,
) -> None:
    """Some versions of the tokenizer cannot bear more; which, and how rarely, does not matter."""
    save_tiny_model(str(tmp_path))
    alone, model = loaded(AlbertPyfunc(), str(tmp_path)), loaded(AlbertPyfunc(), str(tmp_path))
    tokenizer, inside = model.tokenizer, threading.Lock()

    class Watched:
        def __call__(self, *texts: Any, **options: Any) -> Any:
            assert inside.acquire(blocking=False), "another thread is in it"
            try:
                time.sleep(0.002)
                return tokenizer(*texts, **options)
            finally:
                inside.release()

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

    model.tokenizer = Watched()
    requests: list[tuple[Rows, Any]] = []
    for number, sentence in enumerate(SENTENCES[:80]):
        words = sentence.split()
        rows = [{"text": f"{' '.join(words[:size])} [MASK]"} for size in range(1, 2 + number % 4)]
        pairs = [row | {"text_b": words[-2]} for row in rows]
        requests += [(rows, None), (rows, {"task": "embed"}), (pairs, {"task": "sentence_order"})]
    expected = [answer_of(alone, request) for request in requests]
    check_threads(lambda request: answer_of(model, request), requests, expected)


# -- over HTTP


@pytest.fixture
def registered(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the model folder among the files of a version."""
    shutil.copy(empty_database, tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    made = register_tiny(str(tmp_path), "sst-2", 0.5)
    return model_folder_of(made.model_uri, str(tmp_path))


def test_a_version_whose_code_or_weights_changed_since_is_not_made_champion(
    registered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, work, version = "tiny-sst-2", str(tmp_path), Path(registered).parents[1]

    def is_marked() -> bool:
        return CHANGED in list_versions(name, work)

    (version / "code/__pycache__").mkdir()
    (version / "code/__pycache__/made_by_loading.pyc").touch()
    code = ("served_task_model.py", "code/albert_core/metrics.py", "code/added.so", "MLmodel")
    for file in code:
        assert not is_marked()
        path = version / file
        before = path.read_bytes() if path.exists() else None
        path.write_bytes((before or b"") + b"\n")
        assert is_marked()
        path.unlink() if before is None else path.write_bytes(before)

    (version / "code/added.so").touch()
    client = open_client(work)
    client.delete_registered_model_alias(name, "champion")
    before_it = client.get_registered_model(name)
    with pytest.raises(RegistryError, match=f"version 1 of {name} has other code"):
        promote_version(name, "1", "x", work)
    (version / "code/added.so").unlink()
    weights = version / "artifacts/model/model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(IntegrityError, match="changed after it was"):
        promote_version(name, "1", "x", work)
    weights.write_bytes(content)
    (version / "code/added.so").touch()
    after = client.get_registered_model(name)
    assert (after.aliases, after.tags) == (before_it.aliases, before_it.tags)
    assert not is_marked()  # of versions without an alias there may be thousands
    assert CHANGED in explain_version(name, "1", work)

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("the store does not answer")

    monkeypatch.setattr("mlflow.artifacts.list_artifacts", away)
    assert "can't be read now (ConnectionError)" in explain_version(name, "1", work)


def test_a_version_of_which_a_file_is_gone_or_changed_is_not_made_champion(
    registered: str, tmp_path: Path
) -> None:
    name, work = "tiny-sst-2", str(tmp_path)
    open_client(work).delete_registered_model_alias(name, "champion")
    for file in ("task.json", "tokenizer.json", "special_tokens_map.json"):
        path = Path(registered) / file
        content = path.read_bytes()
        path.unlink()
        assert GONE in explain_version(name, "1", work)
        path.write_bytes(content.replace(b"{", b"{ ", 1))
        assert DAMAGED in explain_version(name, "1", work)
        with pytest.raises(RegistryError, match=f"version 1 of {name} has a file .* that changed"):
            promote_version(name, "1", "x", work)
        path.write_bytes(content)
    assert promote_version(name, "1", "x", work) == f"{name}: version 1 is champion"


@pytest.fixture
def url(registered: str, tmp_path: Path) -> Iterator[str]:
    """Return where a server that has just started answers."""
    port, version = free_port(), Path(registered).parents[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(version)]
    command += ["--env-manager", "local", "--host", HOST, "--port", str(port)]
    scripts = Path(sys.executable).parent  # where uvicorn is
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["PATH"] = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    address = f"http://{HOST}:{port}"
    process = start_server(command, f"{address}/ping", tmp_path / "serve.log", environment)
    yield f"{address}/invocations"
    kill(process)


@pytest.mark.long
def test_eight_clients_get_what_one_gets_over_http(registered: str, url: str) -> None:
    sentences = list(dict.fromkeys(tiny_sentences(500, seed=8)))[:400]
    alone = loaded(FinetunedPyfunc(), registered)
    expected = [answer_of(alone, ([{"text": sentence}], None)) for sentence in sentences]

    def ask(sentence: str) -> Any:
        body = json.dumps({"dataframe_records": [{"text": sentence}]}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["predictions"]

    check_threads(ask, sentences, expected)
