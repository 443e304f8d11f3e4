"""Against traces of google-research/albert and a model of Hugging Face, where they are at hand."""

import json
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.conversion.huggingface import fast_tokenizer, hf_names
from albert_core.conversion.initial_weights import Source, from_tf_variables, read_source
from albert_core.model.albert import AlbertForPretraining
from albert_core.text.tokenizer import Tokenizer
from albert_core.training.optimizer import build_optimizer, learning_rate_at
from albert_core.training.step import EXTRA_PREDICTIONS, masked_lm_loss, sentence_order_loss
from tests.albert_core.tiny_model import logits_of

SHARED = Path(__file__).parents[2].parent / "shared"
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")
KINDS: list[Literal["lamb", "adamw"]] = ["lamb", "adamw"]


@cache
def trace(kind: str) -> dict[str, NDArray[Any]]:
    with np.load(SHARED / "reference" / f"tiny_{kind}.npz") as file:
        return dict(file)


def part(kind: str, prefix: str) -> dict[str, NDArray[Any]]:
    return {k.removeprefix(prefix): v for k, v in trace(kind).items() if k.startswith(prefix)}


def recipe(kind: str) -> dict[str, Any]:
    return dict(json.loads(trace(kind)["cfg"].tobytes()))


def reference_model(kind: str) -> AlbertForPretraining:
    values = {k: v for k, v in recipe(kind).items() if k in ModelSettings.model_fields}
    settings = ModelSettings.read(values, "trace")
    weights = from_tf_variables(part(kind, "w0/"), settings, "trace")
    return Source("trace", settings, weights).start(settings)


def losses(model: AlbertForPretraining, kind: str) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    given = {name: torch.tensor(value) for name, value in part(kind, "in/").items()}
    ids, mask, segments, positions = (given[name].long() for name in ("ids", "mask", "seg", "pos"))
    logits = logits_of(model, ids, mask, segments, positions)
    real = given["wt"].bool()
    num_predictions = real.sum() + EXTRA_PREDICTIONS
    lm = masked_lm_loss(logits[0][real], given["lab"].long()[real], num_predictions)
    return lm, sentence_order_loss(logits[1], given["sop"][:, 0].long(), len(ids)), logits


def assert_state_close(
    model: AlbertForPretraining, found: dict[str, Tensor], tf: dict[str, NDArray[Any]]
) -> None:
    for name, expected in from_tf_variables(tf, model.encoder.settings, "trace").items():
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-6, msg=name)


def test_every_layer_and_both_heads_say_what_the_reference_says() -> None:
    # In float64, so that what differs is the trace's own rounding: outputs are as large as 5.
    model, expected = reference_model("lamb").double(), part("lamb", "out/")
    layers: list[Tensor] = []
    model.encoder.feed_forwards[0].register_forward_hook(
        lambda _module, _inputs, output: layers.append(output)
    )
    lm, order, (lm_logits, order_logits) = losses(model, "lamb")
    found = {f"layer{i}": layer for i, layer in enumerate(layers)} | {
        "mlm": lm,
        "sop": order,
        "loss": lm + order,
        "logp": lm_logits.flatten(0, 1).log_softmax(-1),
        "solp": order_logits.log_softmax(-1),
    }
    assert len(layers) == model.encoder.settings.num_hidden_layers
    for name, tensor in found.items():
        wanted = torch.tensor(expected[name])
        found_so = tensor.view_as(wanted)  # a layer's pieces are laid end to end
        torch.testing.assert_close(found_so, wanted.double(), rtol=0, atol=1e-6, msg=name)


def test_first_gradients_are_those_of_the_reference() -> None:
    model = reference_model("lamb")
    lm, order, _ = losses(model, "lamb")
    (lm + order).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_state_close(model, found, part("lamb", "g0/"))
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert norm.item() == pytest.approx(float(trace("lamb")["out/global_norm_tf"]), rel=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_six_steps_follow_the_reference(kind: Literal["lamb", "adamw"]) -> None:
    model, given = reference_model(kind), recipe(kind)
    optimizer = build_optimizer(model, kind, given["lr"], weight_decay=0.01)
    for step in range(given["steps"]):
        rate = learning_rate_at(step, given["lr"], given["warm"], given["nsteps"], "google")
        for group in optimizer.param_groups:
            group["lr"] = rate
        lm, order, _ = losses(model, kind)
        expected = float(trace(kind)[f"trace/loss{step}"])
        assert (lm + order).item() == pytest.approx(expected, rel=0, abs=1e-6)
        optimizer.zero_grad()
        (lm + order).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert_state_close(model, model.state_dict(), part(kind, f"w{step + 1}/"))


@pytest.mark.parametrize("kind", KINDS)
def test_learning_rates_are_those_of_the_reference(kind: str) -> None:
    given, expected = recipe(kind), trace(kind)["trace/lr_all"]
    rates = [
        learning_rate_at(step, given["lr"], given["warm"], given["nsteps"], "google")
        for step in range(len(expected))
    ]
    np.testing.assert_allclose(rates, expected, rtol=0, atol=1e-9)


def test_a_model_of_transformers_gives_its_own_recorded_answers() -> None:
    folder = SHARED / "data" / "models" / "golden" / "tiny_g1"
    source = read_source(str(folder))
    model = source.start(source.settings).eval()
    with np.load(folder / "expected.npz") as file:
        expected = dict(file)
    given = {name: torch.tensor(expected[name]) for name in ("input_ids", "attention_mask")}
    ids, mask, types = *given.values(), torch.tensor(expected["token_type_ids"])
    every_position = torch.arange(ids.shape[1]).expand_as(ids)
    lm_logits, order_logits = logits_of(model, ids, mask, types, every_position)
    torch.testing.assert_close(
        lm_logits[..., :64], torch.tensor(expected["prediction_logits_first64"]), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(
        order_logits, torch.tensor(expected["sop_logits"]), rtol=0, atol=1e-5
    )
    labels = torch.tensor(expected["labels"])
    real = labels != -100
    loss = masked_lm_loss(lm_logits[real], labels[real], real.sum())
    loss = loss + sentence_order_loss(
        order_logits, torch.tensor(expected["sentence_order_label"]), len(ids)
    )
    assert loss.item() == pytest.approx(float(expected["loss"]), abs=1e-5)
    loss.backward()
    names = hf_names(model)
    for name, norm in zip(expected["grad_names"], expected["grad_norms"], strict=True):
        gradient = model.get_parameter(names[str(name)]).grad
        assert gradient is not None
        assert gradient.norm().item() == pytest.approx(norm, rel=1e-4, abs=1e-6), name


@pytest.fixture(scope="module")
def published() -> Tokenizer:
    return Tokenizer((SHARED / "data" / "models" / "30k-clean.model").read_bytes())


def corpus_lines(num_lines: int) -> list[str]:
    lines: list[str] = []
    for corpus in sorted((SHARED / "data" / "corpora" / "wiki_extracted").iterdir()):
        file = min(corpus.rglob("wiki_*"))
        with file.open(encoding="utf-8") as text:
            lines += islice((line for line in text if line.strip()), num_lines)
    return lines


def test_the_published_vocabulary_splits_encyclopedias_the_same_in_transformers(
    published: Tokenizer,
) -> None:
    lines = corpus_lines(1000)
    found = fast_tokenizer(published).encode_batch(lines, add_special_tokens=False)
    pairs = zip(lines, published.encode(lines), found, strict=True)
    different = [line for line, ids, encoding in pairs if ids != encoding.ids]
    assert len(lines) > 4000
    assert len(different) <= len(lines) / 1000, different  # splits with the same score
