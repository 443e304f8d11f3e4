import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    AutoModel,
    AutoModelForPreTraining,
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
)

from albert_core.conversion.model_folder import (
    from_hf_state,
    load_model,
    load_model_folder,
    save_model_folder,
    to_hf_state,
)
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.errors import ConfigError, IntegrityError
from albert_core.text.records import CLS, SEP
from tests.albert_core import tiny_model
from tests.albert_core.tiny_model import BERT_SIZES
from tests.albert_core.tiny_vocab import tiny_vocab

BERT: dict[str, Any] = {"embedding_size": 16, "sharing": "none", "hidden_act": "gelu"}
SHAPES: dict[str, dict[str, Any]] = {
    "all": {},
    "attention": {"sharing": "attention"},
    "ffn": {"sharing": "ffn", "num_hidden_groups": 2},
    "none": {"sharing": "none"},
    "two groups": {"num_hidden_groups": 2},
    "groups that Hugging Face cuts elsewhere": {"num_hidden_layers": 18, "num_hidden_groups": 14},
    "two inner blocks": {"inner_group_num": 2, "num_hidden_groups": 2},
    "inner blocks, not shared": {"inner_group_num": 2, "sharing": "none"},
    "no projection": {"embedding_size": 16},
    "bert": BERT,
}
HF_SIZES: dict[str, Any] = BERT_SIZES | {"vocab_size": 200, "num_hidden_layers": 4}


def random_model(**changes: Any) -> AlbertForPretraining:
    return tiny_model.random_model(**{"num_hidden_layers": 4} | changes)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    input_ids = torch.randint(0, 200, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = (torch.arange(9) < torch.tensor([[9], [6]])).long()
    return input_ids, mask, (torch.arange(9) > 4).long().expand(2, 9).contiguous()


def assert_says_the_same(model: AlbertForPretraining, hf: Any) -> None:
    input_ids, mask, token_types = batch()
    with torch.no_grad():
        found = hf.eval()(input_ids, attention_mask=mask, token_type_ids=token_types)
        lm_logits, order_logits = model(input_ids, mask, token_types, torch.arange(9).expand(2, 9))
    found_order = found["sop_logits" if "sop_logits" in found else "seq_relationship_logits"]
    torch.testing.assert_close(found.prediction_logits, lm_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(found_order, order_logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_transformers_reads_our_folder_and_says_the_same(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(**changes)
    save_model_folder(model, tiny_vocab(), str(tmp_path), "albert")
    loaded: Any = AlbertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    hf, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert_says_the_same(model, hf)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_a_model_of_bert_s_shape_is_read_by_the_bert_classes_and_says_the_same(
    activation: str, tmp_path: Path
) -> None:
    model = random_model(**BERT | {"hidden_act": activation})
    save_model_folder(model, tiny_vocab(), str(tmp_path))
    loaded: Any = BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    hf, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert sum(p.numel() for p in hf.parameters()) == sum(p.numel() for p in model.parameters())
    assert_says_the_same(model, hf)


@pytest.mark.parametrize(
    ("changes", "family"),
    [(BERT, "Bert"), ({}, "Albert"), (BERT | {"inner_group_num": 2}, "Albert")],
    ids=["bert", "albert", "inner blocks"],
)
def test_auto_classes_find_the_family_that_the_model_fits_and_our_pieces(
    changes: dict[str, Any], family: str, tmp_path: Path
) -> None:
    model, vocabulary = random_model(**changes), tiny_vocab()
    save_model_folder(model, vocabulary, str(tmp_path))
    assert_says_the_same(model, AutoModelForPreTraining.from_pretrained(tmp_path))
    encoder = AutoModel.from_pretrained(tmp_path).eval()
    assert type(encoder).__name__ == f"{family}Model"
    input_ids, mask, token_types = batch()
    with torch.no_grad():
        found = encoder(input_ids, attention_mask=mask, token_type_ids=token_types)
        expected = model.encoder(input_ids, mask, token_types)
    torch.testing.assert_close(found.last_hidden_state, expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found.pooler_output, expected[1], rtol=0, atol=1e-5)
    [pieces] = vocabulary.encode(["bado kelu, mabe"])
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("bado kelu, mabe")["input_ids"] == [CLS, *pieces, SEP]


def test_only_a_model_of_bert_s_shape_can_be_written_for_the_bert_classes(tmp_path: Path) -> None:
    model = random_model(embedding_size=16, sharing="attention")
    with pytest.raises(ConfigError, match="sharing 'attention' and inner_group_num 1 is no BERT"):
        save_model_folder(model, tiny_vocab(), str(tmp_path), "bert")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_a_folder_gives_back_the_model_and_the_tokenizer(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model, vocabulary = random_model(**changes), tiny_vocab(lower_case=False)
    save_model_folder(model, vocabulary, str(tmp_path))
    found, tokenizer = load_model_folder(str(tmp_path))
    assert found.encoder.settings == model.encoder.settings
    torch.testing.assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in found.parameters())
    assert (tokenizer.model, tokenizer.lower_case) == (vocabulary.model, False)


@pytest.mark.parametrize("architecture", ["albert", None])
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_weights_that_transformers_read_and_wrote_again_are_equal_to_the_bit(
    changes: dict[str, Any], architecture: Literal["albert"] | None, tmp_path: Path
) -> None:
    model = random_model(**changes)
    save_model_folder(model, tiny_vocab(), str(tmp_path / "ours"), architecture)
    hf = AutoModelForPreTraining.from_pretrained(tmp_path / "ours")
    hf.save_pretrained(tmp_path / "theirs")
    found = load_model(str(tmp_path / "theirs"))
    assert found.encoder.settings == model.encoder.settings
    torch.testing.assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("changes", [{}, {"sharing": "none"}, BERT])
def test_what_transformers_changed_in_our_configuration_counts(
    changes: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model_folder(random_model(**changes), tiny_vocab(), str(tmp_path / "ours"))
    hf = AutoModelForPreTraining.from_pretrained(
        tmp_path / "ours", hidden_act="relu", hidden_dropout_prob=0.25
    )
    hf.save_pretrained(tmp_path / "theirs")
    found = load_model(str(tmp_path / "theirs")).eval()
    assert found.encoder.settings.hidden_dropout_prob == 0.25
    assert_says_the_same(found, hf)
    assert "hidden_act, hidden_dropout_prob is not what" in caplog.text


@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (2, 1), (2, 2)])
def test_reads_a_folder_that_transformers_wrote(groups: int, inner: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    hf = AlbertForPreTraining(
        AlbertConfig(**HF_SIZES, embedding_size=8, num_hidden_groups=groups, inner_group_num=inner)
    )
    hf.save_pretrained(tmp_path)
    assert_says_the_same(load_model(str(tmp_path)).eval(), hf)


def test_reads_a_bert_that_transformers_wrote(tmp_path: Path) -> None:
    torch.manual_seed(0)
    hf = BertForPreTraining(BertConfig(**HF_SIZES))
    hf.save_pretrained(tmp_path)
    found = load_model(str(tmp_path)).eval()
    assert found.encoder.settings.hidden_dropout_prob == 0.1
    assert_says_the_same(found, hf)


def test_the_names_that_published_bert_weights_have_for_layer_norms_are_understood() -> None:
    model = random_model(**BERT)
    state = {
        re.sub(
            "LayerNorm.weight$", "LayerNorm.gamma", re.sub("LayerNorm.bias$", "LayerNorm.beta", n)
        ): t
        for n, t in to_hf_state(model, "bert").items()
    } | {"bert.embeddings.position_ids": torch.arange(16)[None]}
    assert "bert.embeddings.LayerNorm.gamma" in state
    found = from_hf_state(state, model.encoder.settings, architecture="bert")
    torch.testing.assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_layers_that_are_said_to_be_shared_but_differ_are_refused() -> None:
    settings = random_model(sharing="none").encoder.settings
    state = to_hf_state(random_model(sharing="none"))
    with pytest.raises(IntegrityError, match=r"the layers share it, but .*query.*other values"):
        from_hf_state(state, settings.model_copy(update={"sharing": "attention"}))


def test_a_projection_that_this_model_cannot_hold_is_refused() -> None:
    model = random_model(embedding_size=16)
    state = to_hf_state(model)
    state["albert.encoder.embedding_hidden_mapping_in.bias"] += 1
    with pytest.raises(IntegrityError, match="must be the identity"):
        from_hf_state(state, model.encoder.settings)


def test_a_checkpoint_without_the_sentence_order_head_is_refused_by_name() -> None:
    model = random_model()
    state = {k: v for k, v in to_hf_state(model).items() if "sop_classifier" not in k}
    with pytest.raises(IntegrityError, match=r"missing \['sop_classifier.classifier.bias'"):
        from_hf_state(state, model.encoder.settings)


def test_weights_of_another_shape_are_refused() -> None:
    state = to_hf_state(random_model())
    with pytest.raises(IntegrityError, match=r"ffn.weight is \(24, 16\), expected \(32, 16\)"):
        from_hf_state(state, random_model(intermediate_size=32).encoder.settings)


def test_half_precision_weights_become_float32_and_share_no_memory() -> None:
    model = random_model(embedding_size=16)
    state = {name: tensor.bfloat16() for name, tensor in to_hf_state(model).items()}
    found = from_hf_state(state, model.encoder.settings)
    assert {parameter.dtype for parameter in found.parameters()} == {torch.float32}
    again = from_hf_state(to_hf_state(found), model.encoder.settings)
    again.sentence_order.bias.data += 1
    assert not torch.equal(again.sentence_order.bias, found.sentence_order.bias)


def test_a_folder_that_is_not_whole_or_not_of_these_models_says_what_is_wrong(
    tmp_path: Path,
) -> None:
    save_model_folder(random_model(), tiny_vocab(), str(tmp_path))
    (tmp_path / "spiece.model").unlink()
    with pytest.raises(IntegrityError, match=r"spiece.model is missing"):
        load_model_folder(str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    with pytest.raises(IntegrityError, match=r"whole of a BertForPreTraining.* and \d+ more"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    with pytest.raises(ConfigError, match="model_type 'roberta'"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    save_model_folder(random_model(), tiny_vocab(), str(tmp_path))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-20])
    with pytest.raises(IntegrityError, match=f"{name} is (damaged|not JSON)"):
        load_model(str(tmp_path))


def test_a_tokenizer_of_another_size_is_not_saved_with_the_model(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="the model has 201 pieces, the tokenizer 200"):
        save_model_folder(random_model(vocab_size=201), tiny_vocab(), str(tmp_path))
