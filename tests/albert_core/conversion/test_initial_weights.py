import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForSequenceClassification,
    AlbertModel,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
)

from albert_core.config import ModelSettings
from albert_core.conversion.initial_weights import load_initial_weights, load_pretrained
from albert_core.conversion.model_folder import load_model, save_model_folder
from albert_core.conversion.tf_release import from_tf_variables, read_tf_config
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.errors import ConfigError, IntegrityError, SourceError
from albert_core.stage.manifest import StagePlan
from tests.albert_core.tiny_model import BERT_SIZES, random_model, tiny_settings
from tests.albert_core.tiny_model import VOCAB_SIZE as V
from tests.albert_core.tiny_tf_release import fake_tensorflow, tf_variables, write_tf_release
from tests.albert_core.tiny_vocab import tiny_vocab

__all__ = ["fake_tensorflow"]

GOLDEN = Path(__file__).parents[4] / "shared/data/models/golden/tiny_g1"
BERT: dict[str, Any] = {"embedding_size": 16, "sharing": "none"}


def saved_model(folder: Path, **changes: Any) -> AlbertForPretraining:
    model = random_model(seed=1, **changes)
    save_model_folder(model, tiny_vocab(), str(folder))
    return model


def assert_same_weights(found: AlbertForPretraining, expected: AlbertForPretraining) -> None:
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)


def logits(model: AlbertForPretraining) -> tuple[Tensor, Tensor]:
    input_ids = torch.randint(0, V, (2, 9), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found: tuple[Tensor, Tensor] = model.eval()(
            input_ids, None, torch.zeros_like(input_ids), torch.arange(9).expand(2, 9)
        )
    return found


# -- where the weights are


@pytest.mark.parametrize("changes", [{}, BERT], ids=["albert", "bert"])
def test_a_model_folder_gives_its_weights_to_a_model_with_another_dropout(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model = saved_model(tmp_path, **changes)
    wanted = tiny_settings(**changes, hidden_dropout_prob=0.1)
    found = load_initial_weights(str(tmp_path), wanted, V)
    assert_same_weights(found, model)
    assert found.encoder.settings == wanted
    assert all(p.requires_grad for p in found.parameters())


def test_a_run_gives_the_model_it_ended_with(tmp_path: Path) -> None:
    plan = StagePlan(
        stage="pretraining", settings={}, inputs={}, code="c", libraries={}, input_manifests={}
    )
    run = Path(plan.folder(str(tmp_path)))
    model = saved_model(run / "model")
    manifest = plan.write(str(tmp_path), [], [], {"model_folder": "model"})
    for uri in (manifest, str(run), f"{run}/"):
        assert_same_weights(load_initial_weights(uri, tiny_settings(), V), model)


def test_the_manifest_of_a_stage_without_a_model_is_refused(tmp_path: Path) -> None:
    plan = StagePlan(stage="make_examples", settings={}, inputs={}, code="c", libraries={})
    uri = plan.write(str(tmp_path), [], [], {})
    with pytest.raises(ConfigError, match="of the stage 'make_examples', which makes no model"):
        load_initial_weights(uri, tiny_settings(), V)


def write_checkpoint(folder: Path, state: dict[str, Any], model: ModelSettings) -> None:
    folder.mkdir()
    torch.save(state, folder / "state.pt")
    digest = hashlib.sha256((folder / "state.pt").read_bytes()).hexdigest()
    record = {"step": 7, "sha256": digest, "settings": {"model": model.model_dump()}}
    (folder / "checkpoint.json").write_text(json.dumps(record))


def test_a_checkpoint_gives_its_weights(tmp_path: Path) -> None:
    model, folder = random_model(seed=1), tmp_path / "step-00000007"
    write_checkpoint(folder, {"model": model.state_dict(), "optimizer": {}}, tiny_settings())
    assert_same_weights(load_initial_weights(str(folder), tiny_settings(), V), model)


def test_a_checkpoint_that_is_not_of_the_shape_it_records_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000007"
    write_checkpoint(
        folder, {"model": random_model(seed=1).state_dict()}, tiny_settings(sharing="none")
    )
    with pytest.raises(IntegrityError, match="step-00000007 does not hold the model"):
        load_initial_weights(str(folder), tiny_settings(), V)


@pytest.mark.usefixtures("fake_tensorflow")
def test_a_tf_release_gives_its_weights(tmp_path: Path) -> None:
    write_tf_release(tmp_path, tf_variables())
    expected = from_tf_variables(tf_variables(), read_tf_config(str(tmp_path)))
    wanted = tiny_settings(num_hidden_layers=4)
    for uri in (str(tmp_path), str(tmp_path / "model.ckpt-best")):
        found = load_initial_weights(uri, wanted, V, tiny_vocab())
        assert_same_weights(found, expected)


@pytest.mark.usefixtures("fake_tensorflow")
def test_a_tf_hub_module_without_the_sentence_order_head_gets_a_new_one(tmp_path: Path) -> None:
    variables = {
        f"module/{name}": value
        for name, value in tf_variables().items()
        if "seq_relationship" not in name
    }
    write_tf_release(tmp_path, variables)
    found = load_initial_weights(str(tmp_path), tiny_settings(num_hidden_layers=4), V)
    kernel = tf_variables()["bert/pooler/dense/kernel"]
    np.testing.assert_array_equal(found.encoder.pooler.weight.detach(), kernel.T)


def test_weights_are_read_from_any_store(tmp_path: Path) -> None:
    model = random_model(seed=1)
    save_model_folder(model, tiny_vocab(), "memory://initial/model")
    try:
        found = load_initial_weights("memory://initial/model", tiny_settings(), V, tiny_vocab())
    finally:
        fsspec.filesystem("memory").rm("/initial", recursive=True)
    assert_same_weights(found, model)


def test_what_is_nothing_to_start_from_says_what_could_be(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no manifest.json .* no .index file"):
        load_initial_weights(str(tmp_path / "nowhere"), tiny_settings(), V)


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN} is not here")
def test_the_golden_model_s_weights_give_its_recorded_answers() -> None:
    with np.load(GOLDEN / "expected.npz") as file:
        expected = {name: torch.tensor(file[name]) for name in file.files if "grad" not in name}
    wanted = load_model(str(GOLDEN)).encoder.settings
    model = load_initial_weights(str(GOLDEN), wanted, 30_000).eval()
    ids = expected["input_ids"]
    lm_logits, order_logits = model(
        ids,
        expected["attention_mask"],
        expected["token_type_ids"],
        torch.arange(ids.shape[1]).expand_as(ids),
    )
    found = {"prediction_logits_first64": lm_logits[..., :64], "sop_logits": order_logits}
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5, msg=name)


# -- what a source may lack


def hf_folder(folder: Path, hf: Any) -> str:
    hf.save_pretrained(folder)
    return str(folder)


ALBERT_CONFIG = AlbertConfig(vocab_size=V, **BERT_SIZES, embedding_size=8)
BERT_CONFIG = BertConfig(vocab_size=V, **BERT_SIZES, hidden_act="gelu_new")
LACKING = {
    "albert without heads": (AlbertModel, ALBERT_CONFIG, {}, ["masked_lm", "sentence_order"]),
    "albert for masked LM": (
        AlbertForMaskedLM,
        ALBERT_CONFIG,
        {},
        ["encoder.pooler", "sentence_order"],
    ),
    "albert fine-tuned": (
        AlbertForSequenceClassification,
        ALBERT_CONFIG,
        {},
        ["masked_lm", "sentence_order"],
    ),
    "bert without heads": (BertModel, BERT_CONFIG, BERT, ["masked_lm", "sentence_order"]),
    "bert for masked LM": (
        BertForMaskedLM,
        BERT_CONFIG,
        BERT,
        ["encoder.pooler", "sentence_order"],
    ),
}


@pytest.mark.parametrize(("kind", "config", "changes", "fresh"), LACKING.values(), ids=LACKING)
def test_what_a_published_model_lacks_is_drawn_anew_and_said(
    kind: Any,
    config: Any,
    changes: dict[str, Any],
    fresh: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hf = kind(config).eval()
    folder = hf_folder(tmp_path, hf)
    found = []
    for _ in range(2):
        torch.manual_seed(11)
        found.append(load_initial_weights(folder, tiny_settings(**changes), V))
    assert_same_weights(*found)  # the seed says what is drawn
    torch.manual_seed(11)
    new = AlbertForPretraining(tiny_settings(**changes), V).state_dict()
    drawn = {n for n, t in found[0].state_dict().items() if torch.equal(t, new[n])}
    constant = {n for n, t in new.items() if len(t.unique()) == 1}  # as new in either
    assert drawn - constant == {n for n in new if n.startswith(tuple(fresh))} - constant
    lacks = {r.getMessage() for r in caplog.records if "a new one is drawn" in r.getMessage()}
    words = {"masked_lm": "masked LM head", "encoder.pooler": "pooler"}
    assert lacks == {
        f"{folder} has no {words.get(part, 'sentence order head')}: a new one is drawn"
        for part in fresh
    }
    input_ids = torch.randint(0, V, (2, 9))
    base = hf.base_model
    with torch.no_grad():
        expected = base(input_ids).last_hidden_state
        hidden, _ = found[0].eval().encoder(input_ids, None, torch.zeros_like(input_ids))
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)


def test_what_this_model_has_no_place_for_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = hf_folder(tmp_path, AlbertForSequenceClassification(ALBERT_CONFIG))
    load_initial_weights(folder, tiny_settings(), V)
    assert "no place for it: ['classifier.bias', 'classifier.weight']" in caplog.text


def test_a_source_whose_encoder_is_not_whole_is_refused(tmp_path: Path) -> None:
    hf = BertForPreTraining(BERT_CONFIG)
    state = {n: t for n, t in hf.state_dict().items() if "layer.1.output.dense" not in n}
    hf.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(IntegrityError, match=r"missing \['bert.encoder.layer.1.output.dense.bias"):
        load_initial_weights(str(tmp_path), tiny_settings(**BERT), V)


def test_part_of_a_head_is_no_head(tmp_path: Path) -> None:
    hf = BertForPreTraining(BERT_CONFIG)
    state = {n: t for n, t in hf.state_dict().items() if n != "cls.seq_relationship.bias"}
    hf.save_pretrained(tmp_path, state_dict=state)
    found = load_initial_weights(str(tmp_path), tiny_settings(**BERT), V)
    assert not torch.equal(found.sentence_order.weight, hf.cls.seq_relationship.weight)
    assert torch.equal(found.masked_lm.bias, hf.cls.predictions.bias)


# -- deeper models


def test_a_deeper_model_that_shares_all_has_the_same_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = saved_model(tmp_path, num_hidden_layers=3)
    with caplog.at_level(logging.INFO):
        found = load_initial_weights(str(tmp_path), tiny_settings(num_hidden_layers=12), V)
    assert len(found.encoder.route) == 12
    assert_same_weights(found, model)
    assert f"12 layers start from the 3 of {tmp_path}" in caplog.text


@pytest.mark.parametrize("layers", [2, 4, 6, 7])
@pytest.mark.parametrize("changes", [{"inner_group_num": 2}, BERT], ids=["inner blocks", "bert"])
def test_each_layer_of_a_model_that_does_not_share_is_followed_by_its_copies(
    changes: dict[str, Any], layers: int, tmp_path: Path
) -> None:
    unshared = {"sharing": "none"} | changes
    model = saved_model(tmp_path, **unshared)
    wanted = tiny_settings(**unshared, num_hidden_layers=layers)
    found = load_initial_weights(str(tmp_path), wanted, V)
    inner = wanted.inner_group_num
    for layer in range(layers):
        source = 0 if layer < layers / 2 else 1
        for block in range(inner):
            for kind in ("attentions", "feed_forwards"):
                own = getattr(found.encoder, kind)[layer * inner + block].state_dict()
                expected = getattr(model.encoder, kind)[source * inner + block].state_dict()
                torch.testing.assert_close(own, expected, rtol=0, atol=0)
    if layers > 2:  # the copies are independent
        first, copy = (
            found.get_parameter(f"encoder.attentions.{block}.query.weight") for block in (0, inner)
        )
        first.data += 1
        assert not torch.equal(first, copy)


def test_what_only_a_part_shares_goes_to_that_part(tmp_path: Path) -> None:
    model = saved_model(tmp_path, sharing="attention")
    found = load_initial_weights(
        str(tmp_path), tiny_settings(sharing="attention", num_hidden_layers=4), V
    )
    assert len(found.encoder.attentions) == 1
    for layer, source in enumerate([0, 0, 1, 1]):
        assert torch.equal(
            found.get_parameter(f"encoder.feed_forwards.{layer}.inner.weight"),
            model.get_parameter(f"encoder.feed_forwards.{source}.inner.weight"),
        )


def test_groups_deepen_group_by_group(tmp_path: Path) -> None:
    model = saved_model(tmp_path, num_hidden_groups=2, num_hidden_layers=4)
    wanted = tiny_settings(num_hidden_groups=2, num_hidden_layers=12)
    assert_same_weights(load_initial_weights(str(tmp_path), wanted, V), model)


@pytest.mark.parametrize(
    "wanted", [{"sharing": "none"}, {"sharing": "ffn"}, {"num_hidden_groups": 2}]
)
def test_a_model_that_shares_less_begins_by_saying_the_same(
    wanted: dict[str, Any], tmp_path: Path
) -> None:
    model = saved_model(tmp_path)
    found = load_initial_weights(str(tmp_path), tiny_settings(**wanted), V)
    assert sum(p.numel() for p in found.parameters()) > sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(logits(found), logits(model), rtol=0, atol=0)


# -- what does not fit


def test_weights_of_another_shape_are_refused_with_every_difference(tmp_path: Path) -> None:
    saved_model(tmp_path, num_hidden_layers=4)
    wanted = tiny_settings(embedding_size=4, intermediate_size=32, hidden_act="gelu")
    with pytest.raises(ConfigError) as error:
        load_initial_weights(str(tmp_path), wanted, 300)
    for difference in (
        "embedding_size is 8 there and 4 here",
        "intermediate_size is 24 there and 32 here",
        "hidden_act is 'gelu_new' there and 'gelu' here",
        "vocab_size is 200 there and 300 here",
        "num_hidden_layers is 4 there and only 2 here",
    ):
        assert difference in str(error.value)
    assert "hidden_size" not in str(error.value)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ({"sharing": "none"}, {"sharing": "all"}),
        ({"sharing": "ffn"}, {"sharing": "attention"}),
        ({"num_hidden_groups": 2}, {"num_hidden_groups": 1}),
    ],
)
def test_weights_that_would_have_to_become_one_are_refused(
    there: dict[str, Any], here: dict[str, Any], tmp_path: Path
) -> None:
    saved_model(tmp_path, **there)
    with pytest.raises(ConfigError, match=r"there and .* here, so that one block would start"):
        load_initial_weights(str(tmp_path), tiny_settings(**here), V)


def test_weights_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    saved_model(tmp_path)
    load_initial_weights(str(tmp_path), tiny_settings(), V, tiny_vocab())
    with pytest.raises(ConfigError, match=r"another vocabulary: piece \d+ is"):
        load_initial_weights(str(tmp_path), tiny_settings(), V, tiny_vocab(lower_case=False))


# -- the start of fine-tuning


def test_fine_tuning_starts_from_any_source_with_its_own_shape_and_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved_model(tmp_path / "ours", num_hidden_layers=3)
    found, tokenizer = load_pretrained(str(tmp_path / "ours"))
    assert found.encoder.settings == model.encoder.settings
    assert_same_weights(found, model)
    assert tokenizer.pieces == tiny_vocab().pieces
    headless = hf_folder(tmp_path / "theirs", AlbertModel(ALBERT_CONFIG))
    with pytest.raises(IntegrityError, match="no SentencePiece vocabulary"):
        load_pretrained(headless)
    for name in ("spiece.model", "tokenizer_config.json"):
        (tmp_path / "theirs" / name).write_bytes((tmp_path / "ours" / name).read_bytes())
    assert load_pretrained(headless)[0].encoder.settings == tiny_settings()


@pytest.mark.usefixtures("fake_tensorflow")
def test_fine_tuning_starts_from_a_tf_release(tmp_path: Path) -> None:
    write_tf_release(tmp_path, tf_variables())
    model, tokenizer = load_pretrained(str(tmp_path))
    assert model.encoder.settings.num_hidden_layers == 4
    assert tokenizer.vocab_size == V
