"""What a model starts from: every kind of source, deeper models, and what does not fit."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    AlbertModel,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
)

from albert_core.checkpoint import save_checkpoint
from albert_core.conversion import initial_weights
from albert_core.conversion.huggingface import load_encoder, read_tokenizer, save_model_folder
from albert_core.conversion.initial_weights import convert_model, fitting_source
from albert_core.model.albert import AlbertForPretraining
from albert_core.scores.zero_shot import has_head
from albert_core.stage.errors import ConfigError, IntegrityError, SourceError
from albert_core.stage.manifest import read_manifest
from flows.commands.main import main
from tests.albert_core.made_scores import pretrained
from tests.albert_core.tiny_model import (
    BERT_SIZES,
    SAVED_SIZES,
    VOCAB_SIZE,
    encoded,
    load_model,
    logits_of,
    random_model,
    save_tiny_model,
    tiny_settings,
)
from tests.albert_core.tiny_vocab import tiny_vocab

BERT: dict[str, Any] = {"embedding_size": 16, "sharing": "none"}


def saved_model(folder: Path | str, **changes: Any) -> AlbertForPretraining:
    model = random_model(seed=1, **changes)
    save_model_folder(model, tiny_vocab(), str(folder))
    return model


def start(uri: Path | str, **changes: Any) -> AlbertForPretraining:
    settings = tiny_settings(**changes)
    return fitting_source(str(uri), settings, tiny_vocab()).start(settings)


def assert_same_weights(found: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)


# -- where the weights are


@pytest.mark.parametrize("changes", [{}, BERT], ids=["albert", "bert"])
def test_a_model_folder_in_any_store_gives_its_weights_to_a_model_with_another_dropout(
    changes: dict[str, Any],
) -> None:
    try:
        model = saved_model("memory://initial/model", **changes)
        found = start("memory://initial/model", **changes, hidden_dropout_prob=0.1)
    finally:
        fsspec.filesystem("memory").rm("/initial", recursive=True)
    assert_same_weights(found, model)
    assert found.encoder.settings == tiny_settings(**changes, hidden_dropout_prob=0.1)
    assert all(parameter.requires_grad for parameter in found.parameters())


def test_a_run_gives_the_model_it_ended_with(tmp_path: Path) -> None:
    manifest = pretrained(str(tmp_path), 0)
    model = save_tiny_model(f"{tmp_path}/the same")
    run = manifest.rpartition("/")[0]
    for uri in (manifest, run, f"{run}/"):
        assert_same_weights(start(uri, **SAVED_SIZES), model)
    with pytest.raises(ConfigError, match="of the stage 'examples', which makes no model"):
        start(read_manifest(manifest).input_manifests["examples"])
    with pytest.raises(SourceError, match=r"no manifest.json .* no .index file"):
        start(tmp_path / "nowhere")


def test_a_checkpoint_gives_its_weights_if_they_are_of_the_shape_it_records(tmp_path: Path) -> None:
    model = random_model(seed=1)
    for step, sharing in ((7, "all"), (8, "none")):
        settings = {"model": tiny_settings(sharing=sharing).model_dump()}
        record = {"step": step, "settings": settings}
        save_checkpoint(str(tmp_path), {"model": model.state_dict()}, record, keep=2)
    assert_same_weights(start(tmp_path / "step-00000007"), model)
    with pytest.raises(IntegrityError, match="step-00000008 does not hold the model"):
        start(tmp_path / "step-00000008")


# -- what a source may lack


ALBERT_CONFIG = AlbertConfig(vocab_size=VOCAB_SIZE, **BERT_SIZES, embedding_size=8)
BERT_CONFIG = BertConfig(vocab_size=VOCAB_SIZE, **BERT_SIZES, hidden_act="gelu_new")
HEADS, NO_POOLER = ["masked_lm", "sentence_order"], ["encoder.pooler", "sentence_order"]
LACKING = {
    "albert without heads": (AlbertModel, ALBERT_CONFIG, {}, HEADS),
    "albert fine-tuned": (AlbertForSequenceClassification, ALBERT_CONFIG, {}, HEADS),
    "bert for masked LM": (BertForMaskedLM, BERT_CONFIG, BERT, NO_POOLER),
}


@pytest.mark.parametrize(("kind", "config", "changes", "fresh"), LACKING.values(), ids=LACKING)
def test_what_a_published_model_lacks_is_drawn_and_logged(
    kind: Any,
    config: Any,
    changes: dict[str, Any],
    fresh: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hf = kind(config).eval()
    hf.save_pretrained(tmp_path)
    torch.manual_seed(11)
    found = start(tmp_path, **changes)
    torch.manual_seed(11)  # the seed decides what is drawn
    new = AlbertForPretraining(tiny_settings(**changes), VOCAB_SIZE).state_dict()
    drawn = {name for name, tensor in found.state_dict().items() if torch.equal(tensor, new[name])}
    constant = {name for name, tensor in new.items() if len(tensor.unique()) == 1}
    assert drawn - constant == {name for name in new if name.startswith(tuple(fresh))} - constant
    lacks = {r.getMessage() for r in caplog.records if "a new one is drawn" in r.getMessage()}
    words = {"masked_lm": "masked LM head", "encoder.pooler": "pooler"}
    assert lacks == {
        f"{tmp_path} has no {words.get(part, 'sentence order head')}: a new one is drawn"
        for part in fresh
    }
    no_place = "no place for it: ['classifier.bias', 'classifier.weight']"
    assert (no_place in caplog.text) is (kind is AlbertForSequenceClassification)
    input_ids = torch.randint(0, VOCAB_SIZE, (2, 9))
    with torch.no_grad():
        expected = hf.base_model(input_ids).last_hidden_state
        hidden, _ = encoded(found.eval().encoder, input_ids, None, torch.zeros_like(input_ids))
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)


def save_without(folder: Path, part: str) -> Any:
    hf = BertForPreTraining(BERT_CONFIG)
    state = {name: tensor for name, tensor in hf.state_dict().items() if part not in name}
    hf.save_pretrained(folder, state_dict=state)
    return hf


def test_part_of_a_head_is_no_head(tmp_path: Path) -> None:
    hf = save_without(tmp_path, "cls.seq_relationship.bias")
    found = start(tmp_path, **BERT)
    assert not torch.equal(found.sentence_order.weight, hf.cls.seq_relationship.weight)
    assert torch.equal(found.masked_lm.bias, hf.cls.predictions.bias)


# -- deeper models


@pytest.mark.parametrize(("groups", "layers"), [(1, 3), (2, 4)])
def test_a_deeper_model_that_shares_in_as_many_groups_has_the_same_weights(
    groups: int, layers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = saved_model(tmp_path, num_hidden_layers=layers, num_hidden_groups=groups)
    with caplog.at_level(logging.INFO):
        found = start(tmp_path, num_hidden_layers=12, num_hidden_groups=groups)
    assert len(found.encoder.route) == 12
    assert_same_weights(found, model)
    assert f"12 layers start from the {layers} of {tmp_path}" in caplog.text


@pytest.mark.parametrize("layers", [2, 7])
@pytest.mark.parametrize(
    "changes", [{"inner_group_num": 2}, {"embedding_size": 16}], ids=["inner blocks", "bert"]
)
def test_each_layer_of_a_model_that_does_not_share_is_followed_by_its_copies(
    changes: dict[str, Any], layers: int, tmp_path: Path
) -> None:
    unshared = {"sharing": "none"} | changes
    model = saved_model(tmp_path, **unshared)
    found = start(tmp_path, **unshared, num_hidden_layers=layers)
    inner = found.encoder.settings.inner_group_num
    for place in range(layers * inner):
        layer, block = divmod(place, inner)
        source = (0 if layer < layers / 2 else 1) * inner + block
        for kind in ("attentions", "feed_forwards"):
            own = getattr(found.encoder, kind)[place].state_dict()
            expected = getattr(model.encoder, kind)[source].state_dict()
            torch.testing.assert_close(own, expected, rtol=0, atol=0)
    if layers > 2:  # the copies are independent
        names = (f"encoder.attentions.{block}.query.weight" for block in (0, inner))
        first, copy = map(found.get_parameter, names)
        first.data += 1
        assert not torch.equal(first, copy)


@pytest.mark.parametrize(
    "wanted", [{"sharing": "none"}, {"sharing": "ffn"}, {"num_hidden_groups": 2}]
)
def test_a_model_that_shares_less_begins_with_the_same_outputs(
    wanted: dict[str, Any], tmp_path: Path
) -> None:
    model = saved_model(tmp_path)
    found = start(tmp_path, **wanted).eval()
    assert sum(p.numel() for p in found.parameters()) > sum(p.numel() for p in model.parameters())
    ids = torch.arange(5, 23).reshape(2, 9)
    rest = (None, torch.zeros_like(ids), torch.arange(9).expand(2, 9))
    with torch.no_grad():
        torch.testing.assert_close(
            logits_of(found, ids, *rest), logits_of(model, ids, *rest), rtol=0, atol=0
        )


# -- what does not fit


def test_weights_of_another_shape_are_refused_with_every_difference(tmp_path: Path) -> None:
    saved_model(tmp_path, num_hidden_layers=4)
    wanted = tiny_settings(embedding_size=4, intermediate_size=32, hidden_act="gelu")
    with pytest.raises(ConfigError) as error:
        fitting_source(str(tmp_path), wanted, tiny_vocab(210))
    for difference in (
        "embedding_size is 8 there and 4 here",
        "intermediate_size is 24 there and 32 here",
        "hidden_act is 'gelu_new' there and 'gelu' here",
        "vocab_size is 200 there and 210 here",
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
        fitting_source(str(tmp_path), tiny_settings(**here), None)


def test_weights_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    saved_model(tmp_path)
    with pytest.raises(ConfigError, match=r"another vocabulary: piece \d+ is"):
        fitting_source(str(tmp_path), tiny_settings(), tiny_vocab(lower_case=False))
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"do_lower_case": False}))
    with pytest.raises(ConfigError, match="another vocabulary: lower_case is False there and True"):
        start(tmp_path)


# -- conversion to a model folder


def test_a_converted_model_needs_its_vocabulary_and_lacks_no_head_but_that_of_masked_lm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "published"
    AlbertModel(ALBERT_CONFIG).save_pretrained(source)
    with pytest.raises(IntegrityError, match="no SentencePiece vocabulary"):
        convert_model(str(source), str(tmp_path / "a"))
    (source / "tokenizer_config.json").write_text("{}")
    (source / "spiece.model").write_bytes(tiny_vocab(210).model)
    with pytest.raises(IntegrityError, match="has 200 pieces, its tokenizer 210"):
        convert_model(str(source), str(tmp_path / "a"))
    (source / "spiece.model").write_bytes(tiny_vocab().model)
    for name in ("a", "b"):
        convert_model(str(source), str(tmp_path / name))
    assert "no sentence order head: a new one is drawn" in caplog.text
    assert "no masked LM head: a new one" not in caplog.text
    a, b = (load_model(tmp_path / name) for name in ("a", "b"))
    assert a.sentence_order.weight.std() > 0
    assert not torch.equal(a.masked_lm.dense.weight, b.masked_lm.dense.weight)  # it is in no folder
    a.masked_lm = b.masked_lm
    assert_same_weights(a, b)
    assert not has_head(str(tmp_path / "a"))
    encoder, _ = load_encoder(str(source))  # which needs no heads
    assert_same_weights(encoder, a.encoder)


def test_a_result_is_no_folder_to_convert_to_and_a_file_neither(tmp_path: Path) -> None:
    saved_model(tmp_path / "source")
    with pytest.raises(ConfigError, match=r"is in the result pretraining/0{16}, which must not ch"):
        convert_model(str(tmp_path / "source"), f"{tmp_path}/pretraining/{'0' * 16}/model")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file is a file\. Give another folder"):
        convert_model(str(tmp_path / "source"), f"{tmp_path}/file/model")


# -- releases of google-research/albert

V, E, H, F = 200, 8, 16, 24
TF_CONFIG: dict[str, Any] = {
    "attention_probs_dropout_prob": 0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0,
    "embedding_size": E,
    "hidden_size": H,
    "intermediate_size": F,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "num_hidden_groups": 1,
    "net_structure_type": 0,
    "layers_to_keep": [],
    "inner_group_num": 1,
    "vocab_size": V,
}
DATA = ".data-00000-of-00001"


@pytest.fixture
def fake_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for TensorFlow: its two functions that are called, on files of numpy."""

    def load_checkpoint(prefix: str) -> Any:
        assert Path(f"{prefix}.index").exists()
        with np.load(f"{prefix}{DATA}") as file:
            variables = dict(file)
        return SimpleNamespace(
            get_variable_to_shape_map=lambda: {n: v.shape for n, v in variables.items()},
            get_tensor=variables.__getitem__,
        )

    stand_in = SimpleNamespace(
        __spec__=None,
        train=SimpleNamespace(load_checkpoint=load_checkpoint),
        errors=SimpleNamespace(OpError=OSError),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", stand_in)


def tf_variables(
    num_groups: int = 1, inner_group_num: int = 1, width: int = E
) -> dict[str, NDArray[np.float32]]:
    """Return random weights, with what an optimizer adds to them; no projection where E = H.

    Names and shapes are written down from a published checkpoint, not derived from our code.
    """
    dense = {
        "bert/encoder/embedding_hidden_mapping_in": (width, H),
        "bert/pooler/dense": (H, H),
        "cls/predictions/transform/dense": (H, width),
    }
    if width == H:
        del dense["bert/encoder/embedding_hidden_mapping_in"]
    norms = {"bert/embeddings/LayerNorm": width, "cls/predictions/transform/LayerNorm": width}
    for group, inner in np.ndindex(num_groups, inner_group_num):
        block = f"bert/encoder/transformer/group_{group}/inner_group_{inner}"
        for name in ("self/query", "self/key", "self/value", "output/dense"):
            dense[f"{block}/attention_1/{name}"] = (H, H)
        dense[f"{block}/ffn_1/intermediate/dense"] = (H, F)
        dense[f"{block}/ffn_1/intermediate/output/dense"] = (F, H)
        norms |= {f"{block}/LayerNorm": H, f"{block}/LayerNorm_1": H}
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (V, width),
        "bert/embeddings/token_type_embeddings": (2, width),
        "bert/embeddings/position_embeddings": (16, width),
        "cls/predictions/output_bias": (V,),
        "cls/seq_relationship/output_weights": (2, H),
        "cls/seq_relationship/output_bias": (2,),
        **{f"{name}/kernel": shape for name, shape in dense.items()},
        **{f"{name}/bias": shape[1:] for name, shape in dense.items()},
        **{f"{name}/{leaf}": (size,) for name, size in norms.items() for leaf in ("gamma", "beta")},
    }
    draw = np.random.default_rng(5)
    weights = {n: draw.normal(0, 0.2, shape).astype(np.float32) for n, shape in shapes.items()}
    slots = {f"{n}/{slot}": w * 0 for n, w in weights.items() for slot in ("adam_m", "adam_v")}
    return weights | slots | {"global_step": np.array(125_000, np.int64)}


def write_release(folder: Path, variables: Mapping[str, NDArray[Any]], **changes: Any) -> None:
    """Write a release to ``folder``, whose checkpoint only `fake_tensorflow` can read."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "albert_config.json").write_text(json.dumps(TF_CONFIG | changes))
    (folder / "30k-clean.model").write_bytes(tiny_vocab().model)
    for name in (".index", ".meta"):
        (folder / f"model.ckpt-best{name}").write_bytes(b"")
    arrays: dict[str, Any] = dict(variables)
    with (folder / f"model.ckpt-best{DATA}").open("wb") as file:
        np.savez(file, **arrays)


def assert_has_weights(
    model: AlbertForPretraining, variables: dict[str, NDArray[np.float32]]
) -> None:
    """Compare with the variables; whether their names are understood, parity with traces shows."""
    expected = initial_weights.from_tf_variables(variables, model.encoder.settings, "here")
    torch.testing.assert_close(dict(model.state_dict()), expected, rtol=0, atol=0)


@pytest.mark.usefixtures("fake_tensorflow")
@pytest.mark.parametrize(("groups", "inner", "embedding"), [(2, 2, 8), (1, 1, 16)])
def test_a_release_gives_its_weights_shape_and_vocabulary(
    groups: int, inner: int, embedding: int, tmp_path: Path
) -> None:
    variables = tf_variables(groups, inner, embedding)
    shape = {"num_hidden_groups": groups, "inner_group_num": inner, "embedding_size": embedding}
    write_release(tmp_path, variables, **shape)
    for uri in (str(tmp_path), str(tmp_path / "model.ckpt-best")):
        model = load_model(uri)
        assert len(model.encoder.attentions) == groups * inner
        assert isinstance(model.encoder.projection, nn.Identity) is (embedding == 16)
        assert_has_weights(model, variables)
        tokenizer = initial_weights.read_tf_tokenizer(uri)
        assert tokenizer.pieces == tiny_vocab().pieces
        assert (tokenizer.lower_case, tokenizer.split_digit_commas) == (True, True)


def test_the_config_of_a_release_means_what_it_does_in_the_reference(tmp_path: Path) -> None:
    (tmp_path / "albert_config.json").write_text("{}")
    assert initial_weights.read_tf_config(str(tmp_path)).hidden_size == 4096  # as in the reference
    write_release(tmp_path, {})
    assert initial_weights.read_tf_config(str(tmp_path)).hidden_act == "gelu_new"  # "gelu" there
    write_release(tmp_path, {}, hidden_act="swish")
    with pytest.raises(ConfigError, match=r"albert_config.json: hidden_act: .*'swish'"):
        initial_weights.read_tf_config(str(tmp_path))
    (tmp_path / "albert_config.json").write_text("{")
    with pytest.raises(IntegrityError, match=r"albert_config.json is not a JSON object"):
        initial_weights.read_tf_config(str(tmp_path))


@pytest.mark.usefixtures("fake_tensorflow")
def test_a_release_is_read_from_any_store(tmp_path: Path) -> None:
    write_release(tmp_path, tf_variables())
    fsspec.filesystem("memory").put(f"{tmp_path}/", "/release", recursive=True)
    try:
        assert_has_weights(load_model("memory://release"), tf_variables())
    finally:
        fsspec.filesystem("memory").rm("/release", recursive=True)


def test_without_tensorflow_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_release(tmp_path, tf_variables())
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ConfigError, match=r"model.ckpt-best .* Run `pip install tensorflow`"):
        load_model(tmp_path)


def test_what_a_release_lacks_or_has_twice_is_named(tmp_path: Path) -> None:
    write_release(tmp_path, {})
    (tmp_path / "model.ckpt-5000.index").write_bytes(b"")
    two = r"\['model.ckpt-5000', 'model.ckpt-best'\], expected one"
    with pytest.raises(SourceError, match=two):
        load_model(tmp_path)
    (tmp_path / "30k-clean.model").unlink()
    with pytest.raises(IntegrityError, match="the SentencePiece models none, expected one"):
        initial_weights.read_tf_tokenizer(str(tmp_path))
    (tmp_path / "albert_config.json").unlink()
    with pytest.raises(IntegrityError, match=r"albert_config.json is missing"):
        load_model(tmp_path)


def test_groups_that_the_reference_cuts_unevenly_are_refused() -> None:
    settings = tiny_settings(num_hidden_layers=22, num_hidden_groups=22)
    with pytest.raises(ConfigError, match="22 layers into 22 groups unevenly"):
        initial_weights.from_tf_variables(tf_variables(22), settings, "here")


WRITE_BY_TENSORFLOW = """
import sys
import numpy as np
import tensorflow as tf
variables, prefix = sys.argv[1:]
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    for name, value in np.load(variables).items():
        tf.compat.v1.get_variable(name, initializer=value)
    session.run(tf.compat.v1.global_variables_initializer())
    tf.compat.v1.train.Saver().save(session, prefix)
"""
READ_BY_US = """
import sys
tensorflow, folder, result = sys.argv[1:]
sys.path.append(tensorflow)  # last, so that every other library is this environment's
import torch
from albert_core.stage.errors import AlbertError
from albert_core.conversion.initial_weights import read_source
try:
    torch.save(read_source(folder).tensors, result)
except AlbertError as error:
    print(f"{type(error).__name__}: {error}")
"""


def run_python(python: str, code: str, *arguments: str) -> str:
    root = str(Path(__file__).parents[3])
    return subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, text=True, check=True, cwd=root
    ).stdout


@pytest.mark.slow
@pytest.mark.skipif("ALBERT_TF_PYTHON" not in os.environ, reason="names no python with tensorflow")
@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (2, 1), (2, 2)])
def test_a_checkpoint_that_tensorflow_wrote_gives_its_weights_to_the_bit(
    groups: int, inner: int, tmp_path: Path
) -> None:
    """ALBERT_TF_PYTHON must be of this interpreter's version: its tensorflow is imported here."""
    python, variables = os.environ["ALBERT_TF_PYTHON"], tf_variables(groups, inner)
    write_release(tmp_path, variables, num_hidden_groups=groups, inner_group_num=inner)
    prefix, result = str(tmp_path / "model.ckpt-best"), str(tmp_path / "found.pt")
    run_python(python, WRITE_BY_TENSORFLOW, f"{prefix}{DATA}", prefix)
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    library = run_python(python, where).strip()
    given = (sys.executable, READ_BY_US, library, str(tmp_path), result)
    assert run_python(*given) == ""
    settings = initial_weights.read_tf_config(str(tmp_path))
    tensors = torch.load(result, weights_only=True)
    expected = initial_weights.from_tf_variables(variables, settings, "here")
    torch.testing.assert_close(tensors, expected, rtol=0, atol=0)
    data = Path(f"{prefix}{DATA}")
    data.write_bytes(data.read_bytes()[::-1])
    assert run_python(*given).startswith(f"IntegrityError: {prefix}: TensorFlow cannot read it")


def test_a_variable_of_a_release_gets_its_place_and_an_unknown_one_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    variables, settings = tf_variables(2), tiny_settings(num_hidden_groups=2)
    block = "bert/encoder/transformer/group_1/inner_group_0"
    kernel = variables.pop(f"{block}/ffn_1/intermediate/output/dense/kernel")
    variables[f"module/{block}/ffn_1/intermediate/output/dense/kernel:0"] = kernel
    variables["output_weights"] = kernel  # of a fine-tuning
    found = initial_weights.from_tf_variables(variables, settings, "here")
    for name, value in (
        ("encoder.feed_forwards.1.output.weight", kernel.T),
        ("encoder.feed_forwards.1.norm.weight", variables[f"{block}/LayerNorm_1/gamma"]),
        ("sentence_order.weight", variables["cls/seq_relationship/output_weights"]),
    ):
        np.testing.assert_array_equal(found[name], value)
    assert (
        "here: left out, because this model has no place for it: ['output_weights']" in caplog.text
    )
    variables[f"{block}/other/kernel"] = kernel
    with pytest.raises(IntegrityError, match=r"unknown \['.*group_1.inner_group_0.other.weight'\]"):
        initial_weights.from_tf_variables(variables, settings, "here")


@pytest.mark.usefixtures("fake_tensorflow")
def test_a_tf_hub_module_without_the_sentence_order_head_gets_a_new_one(tmp_path: Path) -> None:
    variables = {
        f"module/{name}": value
        for name, value in tf_variables().items()
        if "seq_relationship" not in name
    }
    write_release(tmp_path, variables)
    found = start(tmp_path, num_hidden_layers=4)
    kernel = tf_variables()["bert/pooler/dense/kernel"]
    np.testing.assert_array_equal(found.encoder.pooler.weight.detach(), kernel.T)
    assert found.sentence_order.weight.std() > 0


@pytest.mark.usefixtures("fake_tensorflow")
def test_a_release_becomes_a_model_folder(tmp_path: Path) -> None:
    release, folder = tmp_path / "release", tmp_path / "folder"
    write_release(release, tf_variables())
    assert main(["convert", str(release), str(folder)]) == 0
    expected = start(release / "model.ckpt-best", num_hidden_layers=4)
    assert_same_weights(load_model(folder), expected)
    assert read_tokenizer(str(folder)).model == tiny_vocab().model
