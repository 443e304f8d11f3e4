"""Model folders: what `transformers` computes with ours, and we with its own."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
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

from albert_core.conversion import huggingface
from albert_core.conversion.huggingface import from_hf_state, save_model_folder, to_hf_state
from albert_core.conversion.initial_weights import read_source
from albert_core.conversion.model_files import model_digest
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.errors import ConfigError, IntegrityError, VocabularyError
from albert_core.text.records import CLS, MASK, SEP, SPECIAL_PIECES
from albert_core.text.tokenizer import Tokenizer
from tests.albert_core.text.test_tokenizer import needs_the_published_model, published
from tests.albert_core.tiny_model import (
    BERT_SIZES,
    encoded,
    load_model,
    logits_of,
    random_model,
    tiny_settings,
)
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab

BERT: dict[str, Any] = {"embedding_size": 16, "sharing": "none", "hidden_act": "gelu"}
SHAPES: dict[str, dict[str, Any]] = {
    "all": {},
    "ffn": {"sharing": "ffn", "num_hidden_groups": 2},
    "two groups": {"num_hidden_groups": 2, "num_hidden_layers": 4},
    "groups that Hugging Face cuts elsewhere": {"num_hidden_layers": 18, "num_hidden_groups": 14},
    "two inner blocks": {"inner_group_num": 2, "num_hidden_groups": 2},
    "no projection": {"embedding_size": 16},
    "inner blocks, no projection": BERT | {"inner_group_num": 2},
    "bert": BERT,
}
NORM = "albert.embeddings.LayerNorm.bias"
HF_SIZES: dict[str, Any] = BERT_SIZES | {"vocab_size": 200, "num_hidden_layers": 4}


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Return input ids, attention mask and token types of a row of 9 pieces and one of 6."""
    input_ids = torch.randint(0, 200, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = (torch.arange(9) < torch.tensor([[9], [6]])).long()
    return input_ids, mask, (torch.arange(9) > 4).long().expand(2, 9).contiguous()


def assert_computes_the_same(model: AlbertForPretraining, hf: Any) -> None:
    input_ids, mask, token_types = batch()
    with torch.no_grad():
        found = hf.eval()(input_ids, attention_mask=mask, token_type_ids=token_types)
        everywhere = torch.arange(9).expand(2, 9)
        lm_logits, order_logits = logits_of(model.eval(), input_ids, mask, token_types, everywhere)
    found_order = found["sop_logits" if "sop_logits" in found else "seq_relationship_logits"]
    torch.testing.assert_close(found.prediction_logits, lm_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(found_order, order_logits, rtol=0, atol=1e-5)


def assert_equal(found: AlbertForPretraining, model: AlbertForPretraining) -> None:
    assert found.encoder.settings == model.encoder.settings
    torch.testing.assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_our_folder_is_read_by_transformers_and_what_either_wrote_is_read_back_to_the_bit(
    shape: str, tmp_path: Path
) -> None:
    model, ours, theirs = random_model(**SHAPES[shape]), tmp_path / "ours", tmp_path / "theirs"
    save_model_folder(model, tiny_vocab(), str(ours))
    hf, report = AutoModelForPreTraining.from_pretrained(ours, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert_computes_the_same(model, hf)
    is_bert = shape.startswith("bert")
    assert type(hf) is (BertForPreTraining if is_bert else AlbertForPreTraining)
    if is_bert:  # the classes that hold the model without copies
        assert sum(p.numel() for p in hf.parameters()) == sum(p.numel() for p in model.parameters())
    encoder = AutoModel.from_pretrained(ours).eval()
    assert type(encoder).__name__ == ("BertModel" if is_bert else "AlbertModel")
    input_ids, mask, token_types = batch()
    with torch.no_grad():
        found = encoder(input_ids, attention_mask=mask, token_type_ids=token_types)
        last, pooled = encoded(model.encoder, input_ids, mask, token_types)
    torch.testing.assert_close(found.last_hidden_state, last, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.pooler_output, pooled, rtol=0, atol=1e-5)
    hf.save_pretrained(theirs)
    for folder in (ours, theirs):
        assert_equal(load_model(folder), model)


def test_weights_in_parts_or_as_bin_are_named_and_read_after_what_is_advised(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model = AlbertForPreTraining(AlbertConfig(**HF_SIZES, embedding_size=8))
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    for read in (read_source, model_digest):
        with pytest.raises(IntegrityError, match=r"in several files, such as model-00001-of-\d+\."):
            read(str(tmp_path))
    for file in tmp_path.glob("model*"):
        file.unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(IntegrityError, match=r"are in pytorch_model\.bin, .*save_pretrained"):
        read_source(str(tmp_path))
    AlbertForPreTraining.from_pretrained(tmp_path).save_pretrained(tmp_path, max_shard_size="100GB")
    assert_computes_the_same(load_model(tmp_path), model)


def test_a_folder_has_the_vocabulary(tmp_path: Path) -> None:
    for vocabulary in (tiny_vocab(lower_case=False), tiny_vocab()):
        save_model_folder(random_model(), vocabulary, str(tmp_path))
        found = huggingface.read_tokenizer(str(tmp_path))
        assert (found.model, found.lower_case) == (vocabulary.model, vocabulary.lower_case)


@pytest.mark.parametrize("changes", [{}, BERT])
def test_what_transformers_changed_in_our_configuration_counts(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    save_model_folder(random_model(**changes), tiny_vocab(), str(tmp_path / "ours"))
    hf = AutoModelForPreTraining.from_pretrained(
        tmp_path / "ours", hidden_act="relu", hidden_dropout_prob=0.25
    )
    hf.save_pretrained(tmp_path / "theirs")
    found = load_model(tmp_path / "theirs")
    assert found.encoder.settings.hidden_dropout_prob == 0.25
    assert_computes_the_same(found, hf)


@pytest.mark.parametrize(
    "hf",
    [
        lambda: AlbertForPreTraining(AlbertConfig(**HF_SIZES, embedding_size=8)),
        lambda: AlbertForPreTraining(
            AlbertConfig(**HF_SIZES, embedding_size=8, num_hidden_groups=2, inner_group_num=2)
        ),
        lambda: BertForPreTraining(BertConfig(**HF_SIZES)),
    ],
    ids=["albert", "groups of two blocks", "bert"],
)
def test_a_folder_that_transformers_wrote_is_read(hf: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = hf()
    model.save_pretrained(tmp_path)
    found = load_model(tmp_path)
    assert found.encoder.settings.hidden_dropout_prob == model.config.hidden_dropout_prob
    assert_computes_the_same(found, model)


def test_the_names_that_published_bert_weights_have_for_layer_norms_are_understood() -> None:
    model = random_model(**BERT)
    state = {
        re.sub("Norm.weight$", "Norm.gamma", re.sub("Norm.bias$", "Norm.beta", name)): tensor
        for name, tensor in to_hf_state(model).items()
    } | {"bert.embeddings.position_ids": torch.arange(16)[None]}
    assert "bert.embeddings.LayerNorm.gamma" in state
    found = from_hf_state(state, model.encoder.settings, "here", "bert")
    torch.testing.assert_close(found, dict(model.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("there", "here", "lost", "message"),
    [
        ({"sharing": "none"}, {"sharing": "attention"}, "", "layers share it, but .*query.*other"),
        ({}, {"intermediate_size": 32}, "", r"ffn.weight is \(24, 16\), expected \(32, 16\)"),
        ({}, {}, NORM, rf"missing \['{NORM}'\]"),
        ({"num_hidden_groups": 2}, {}, "", r"unknown \['albert.encoder.albert_layer_groups.1"),
    ],
    ids=["not shared", "shape", "missing", "unknown"],
)
def test_tensors_of_another_model_are_refused_by_name(
    there: dict[str, Any], here: dict[str, Any], lost: str, message: str
) -> None:
    state = to_hf_state(random_model(**there))
    del state["predictions.decoder.weight"]
    state.pop(lost, None)
    with pytest.raises(IntegrityError, match=message):
        from_hf_state(state, tiny_settings(**here), "here", "albert")


def test_a_decoder_that_is_not_tied_is_refused_as_such() -> None:
    state = to_hf_state(random_model())
    state["predictions.decoder.weight"] = state["predictions.decoder.weight"] + 1
    with pytest.raises(IntegrityError, match="the decoder is always tied to the word embeddings"):
        from_hf_state(state, tiny_settings(), "here", "albert")


def test_a_projection_that_computes_something_is_not_dropped() -> None:
    state = to_hf_state(random_model(embedding_size=16))
    state["albert.encoder.embedding_hidden_mapping_in.bias"] += 1
    with pytest.raises(IntegrityError, match="must be the identity"):
        from_hf_state(state, tiny_settings(embedding_size=16), "here", "albert")


def test_half_precision_weights_become_float32_and_share_no_memory() -> None:
    model = random_model(embedding_size=16)
    half = {name: tensor.bfloat16() for name, tensor in to_hf_state(model).items()}
    found = from_hf_state(half, model.encoder.settings, "here", "albert")
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    own = from_hf_state(to_hf_state(model), model.encoder.settings, "here", "albert")
    before = model.sentence_order.bias.clone()
    own["sentence_order.bias"] += 1
    assert torch.equal(model.sentence_order.bias, before)


def test_a_folder_that_is_not_whole_or_not_of_these_models_says_what_is_wrong(
    tmp_path: Path,
) -> None:
    save_model_folder(random_model(), tiny_vocab(), str(tmp_path))
    (tmp_path / "spiece.model").unlink()
    with pytest.raises(IntegrityError, match=r"spiece.model is missing"):
        huggingface.read_tokenizer(str(tmp_path))
    for name in ("config.json", "model.safetensors"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-20])
        with pytest.raises(IntegrityError, match=f"{name} is (damaged|not a JSON)"):
            read_source(str(tmp_path))
        (tmp_path / name).write_bytes(content)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, error, message in (
        ({"model_type": "roberta"}, ConfigError, "model_type 'roberta'"),
        ({"layer_norm_eps": 1e-5}, ConfigError, "layer_norm_eps 1e-05"),
        ({"model_type": "bert"}, IntegrityError, "does not hold the whole encoder"),
        ({"albert_core": None}, ConfigError, "albert_core is None, expected an object"),
        ({"num_hidden_layers": 10**9}, ConfigError, "num_hidden_layers: .* less than or equal"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(error, match=message):
            read_source(str(tmp_path))
    (tmp_path / "config.json").write_text("null")
    with pytest.raises(IntegrityError, match=r"config.json is not a JSON object \(it is no object"):
        read_source(str(tmp_path))


# -- the tokenizer


VOCABULARIES = [
    tiny_vocab(),
    tiny_vocab(lower_case=False),
    tiny_vocab(keep_accents=True),
    tiny_vocab(lower_case=False, keep_accents=True),
]
TEXTS = [
    "",
    " ",
    "  bado   kelu\tdo \n",
    "mabe (kelo) - do. £1,234 \N{EN DASH} “quotes” ``x''",
    "\N{FULLWIDTH LATIN SMALL LETTER D}o \N{LATIN SMALL LIGATURE FI} ½ x²",
    "\N{ACUTE ACCENT}accent café İstanbul",
    "ΟΔΟΣ ΣΑΣ Σ aΣ.b",
    "bádo be\u0302lu か\u3099 が किं ไม่ عَ a\u0327\u0301 a\u0301\u0327",
    "각 한글 कि \u200b \ufeff z",
    "\N{COMBINING ACUTE ACCENT}abe \x01\x02 \x1cdo\x85be\xa0",
    "\x01be",
    "▁be▁",
    "＜unk＞ ＜pad＞ [cls] ［ＭＡＳＫ］",
]


@cache
def fast(which: int) -> Any:
    return huggingface.fast_tokenizer(VOCABULARIES[which])


def split_score(tokenizer: Tokenizer, ids: list[int]) -> float:
    return sum(tokenizer.processor.get_score(i) for i in ids)


def assert_same_pieces(tokenizer: Tokenizer, text: str, found: list[int]) -> None:
    [expected] = tokenizer.encode([text])
    if found != expected:  # of two splits with the same score either is right
        scores = [split_score(tokenizer, ids) for ids in (found, expected)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3), (text, found, expected)
        assert tokenizer.decode(found) == tokenizer.decode(expected)


@pytest.mark.parametrize(
    "tokenizer", VOCABULARIES, ids=["lower", "cased", "lower, accents", "cased, accents"]
)
@pytest.mark.parametrize("text", TEXTS)
def test_strange_texts_have_the_same_pieces(tokenizer: Tokenizer, text: str) -> None:
    found = huggingface.fast_tokenizer(tokenizer).encode(text, add_special_tokens=False).ids
    assert found == tokenizer.encode([text])[0]


@needs_the_published_model
@pytest.mark.parametrize("split", [True, False])
def test_a_comma_after_a_digit_is_split_as_in_pretraining(split: bool, tmp_path: Path) -> None:
    tokenizer = published(split_digit_commas=split)
    save_model_folder(random_model(vocab_size=tokenizer.vocab_size), tokenizer, str(tmp_path))
    texts = ["In 1948, 30,000 men", "Of 12, 3, and 7, none."]
    expected = tokenizer.encode(texts)
    assert (tokenizer.processor.encode(texts[0].lower()) == expected[0]) is not split
    assert huggingface.read_tokenizer(str(tmp_path)).encode(texts) == expected
    found = AutoTokenizer.from_pretrained(tmp_path)(texts, add_special_tokens=False)
    assert found["input_ids"] == expected


@settings(max_examples=300)
@given(st.text(max_size=40), st.sampled_from(range(len(VOCABULARIES))))
@example("00000", 0)
def test_any_other_text_has_the_same_pieces(text: str, which: int) -> None:
    assume(not any(piece in text for piece in SPECIAL_PIECES))  # written out, they are special
    found = fast(which).encode(text, add_special_tokens=False).ids
    assert_same_pieces(VOCABULARIES[which], text, found)


@pytest.fixture(scope="module")
def auto_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    for name, content in huggingface.tokenizer_files(tiny_vocab(), 64).items():
        (folder / name).write_bytes(content)
    return AutoTokenizer.from_pretrained(folder)


def test_auto_tokenizer_puts_special_pieces_round_one_text_and_two(auto_tokenizer: Any) -> None:
    texts = tiny_sentences(50, seed=7)
    ids = tiny_vocab().encode(texts)
    assert auto_tokenizer(texts)["input_ids"] == [[CLS, *a, SEP] for a in ids]
    pair = auto_tokenizer(texts[0], texts[1])
    a, b = ids[:2]
    assert pair["input_ids"] == [CLS, *a, SEP, *b, SEP]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert auto_tokenizer.model_max_length == 64
    assert auto_tokenizer.decode(ids[0]) == tiny_vocab().decode(ids[0])


def test_a_written_mask_is_the_mask_and_its_surroundings_are_split_as_in_training(
    auto_tokenizer: Any,
) -> None:
    [whole] = tiny_vocab().encode(["bado be kelu."])
    ids = auto_tokenizer("bado [MASK] kelu.", add_special_tokens=False)["input_ids"]
    [before], [after] = tiny_vocab().encode(["bado"]), tiny_vocab().encode(["kelu."])
    assert whole[: len(before)] == before
    assert ids == [*before, MASK, *after]
    at_the_end = auto_tokenizer("bado [MASK].", add_special_tokens=False)["input_ids"]
    assert at_the_end == [*before, MASK, tiny_vocab().pieces.index(".")]


def test_a_vocabulary_of_another_kind_is_refused() -> None:
    with pytest.raises(VocabularyError, match="model_type 2, expected 1"):
        huggingface.fast_tokenizer(tiny_vocab(model_type="bpe"))
