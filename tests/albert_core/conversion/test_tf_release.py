import json
import os
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from torch import nn

from albert_core.conversion import initial_weights
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.errors import ConfigError, IntegrityError, SourceError
from tests.albert_core import tiny_tf_release
from tests.albert_core.tiny_model import load_model, tiny_settings
from tests.albert_core.tiny_vocab import tiny_vocab


def assert_has_weights(model: AlbertForPretraining, variables: dict[str, np.ndarray]) -> None:
    """Compare with the variables; whether their names are understood, parity with traces shows."""
    expected = initial_weights.from_tf_variables(variables, model.encoder.settings, "here")
    torch.testing.assert_close(dict(model.state_dict()), expected, rtol=0, atol=0)


@pytest.mark.usefixtures("fake_tensorflow")
@pytest.mark.parametrize(("groups", "inner", "embedding"), [(2, 2, 8), (1, 1, 16)])
def test_a_release_gives_its_weights_shape_and_vocabulary(
    groups: int, inner: int, embedding: int, tmp_path: Path
) -> None:
    variables = tiny_tf_release.tf_variables(groups, inner, embedding)
    shape = {"num_hidden_groups": groups, "inner_group_num": inner, "embedding_size": embedding}
    tiny_tf_release.write_tf_release(tmp_path, variables, **shape)
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
    tiny_tf_release.write_tf_release(tmp_path, {})
    assert initial_weights.read_tf_config(str(tmp_path)).hidden_act == "gelu_new"  # "gelu" there
    tiny_tf_release.write_tf_release(tmp_path, {}, hidden_act="swish")
    with pytest.raises(ConfigError, match=r"albert_config.json: hidden_act: .*'swish'"):
        initial_weights.read_tf_config(str(tmp_path))


@pytest.mark.usefixtures("fake_tensorflow")
def test_a_release_is_read_from_any_store(tmp_path: Path) -> None:
    tiny_tf_release.write_tf_release(tmp_path, tiny_tf_release.tf_variables())
    fsspec.filesystem("memory").put(f"{tmp_path}/", "/release", recursive=True)
    try:
        assert_has_weights(load_model("memory://release"), tiny_tf_release.tf_variables())
    finally:
        fsspec.filesystem("memory").rm("/release", recursive=True)


def test_without_tensorflow_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_tf_release.write_tf_release(tmp_path, tiny_tf_release.tf_variables())
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ConfigError, match=r"model.ckpt-best .* Run `pip install tensorflow`"):
        load_model(tmp_path)


def test_what_a_release_lacks_or_has_twice_is_named(tmp_path: Path) -> None:
    tiny_tf_release.write_tf_release(tmp_path, {})
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
        initial_weights.from_tf_variables(tiny_tf_release.tf_variables(22), settings, "here")


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
    python, variables = os.environ["ALBERT_TF_PYTHON"], tiny_tf_release.tf_variables(groups, inner)
    tiny_tf_release.save_variables(tmp_path / "variables.npz", variables)
    folder = tmp_path / "release"
    config = tiny_tf_release.TF_CONFIG_VALUES | {
        "num_hidden_groups": groups,
        "inner_group_num": inner,
    }
    folder.mkdir()
    (folder / "albert_config.json").write_text(json.dumps(config))
    prefix = folder / "model.ckpt-best"
    run_python(python, WRITE_BY_TENSORFLOW, str(tmp_path / "variables.npz"), str(prefix))
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    library = run_python(python, where).strip()
    given = (sys.executable, READ_BY_US, library, str(folder), str(tmp_path / "found.pt"))
    assert run_python(*given) == ""
    settings = initial_weights.read_tf_config(str(folder))
    tensors = torch.load(tmp_path / "found.pt", weights_only=True)
    expected = initial_weights.from_tf_variables(variables, settings, "here")
    torch.testing.assert_close(tensors, expected, rtol=0, atol=0)
    [data] = folder.glob("*.data-*")
    data.write_bytes(data.read_bytes()[::-1])
    assert run_python(*given).startswith(f"IntegrityError: {prefix}: TensorFlow cannot read it")


def test_tf_variables_get_their_names_and_optimizer_state_is_left_out() -> None:
    block = "bert/encoder/transformer/group_1/inner_group_0"
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = initial_weights.tf_to_hf(
        {
            "global_step": np.array([7], np.float32),
            f"module/{block}/ffn_1/intermediate/output/dense/kernel:0": kernel,
            f"{block}/ffn_1/intermediate/output/dense/kernel/adam_m": kernel,
            f"{block}/LayerNorm_1/gamma": kernel[0],
            "cls/seq_relationship/output_weights": kernel,
        }
    )
    layer = "albert.encoder.albert_layer_groups.1.albert_layers.0"
    expected = {
        f"{layer}.ffn_output.weight": torch.tensor(kernel.T),
        f"{layer}.full_layer_layer_norm.weight": torch.tensor(kernel[0]),
        "sop_classifier.classifier.weight": torch.tensor(kernel),
    }
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "name", ["output_weights", "bert/encoder/transformer/group_0/inner_group_0/other/kernel"]
)
def test_an_unknown_tf_variable_is_refused_by_name(name: str) -> None:
    with pytest.raises(IntegrityError, match=f"the variable {name}, which"):
        initial_weights.tf_to_hf({name: np.zeros(2, np.float32)})
