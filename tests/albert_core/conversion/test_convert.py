from pathlib import Path

import pytest
import torch
from transformers import AlbertConfig, AlbertModel

from albert_core.conversion.initial_weights import convert_model
from albert_core.conversion.model_folder import load_model, load_model_folder
from albert_core.conversion.tf_release import load_tf_release
from flows.commands.main import main
from tests.albert_core.tiny_model import BERT_SIZES
from tests.albert_core.tiny_tf_release import fake_tensorflow, tf_variables, write_tf_release
from tests.albert_core.tiny_vocab import tiny_vocab

__all__ = ["fake_tensorflow"]


@pytest.mark.usefixtures("fake_tensorflow")
def test_a_release_becomes_a_model_folder(tmp_path: Path) -> None:
    release, folder = tmp_path / "release", tmp_path / "folder"
    write_tf_release(release, tf_variables())
    assert main(["convert", str(release), str(folder)]) == 0
    model, tokenizer = load_model_folder(str(folder))
    expected = load_tf_release(str(release))
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert tokenizer.model == tiny_vocab().model


def test_a_head_that_a_published_model_lacks_is_always_the_same(tmp_path: Path) -> None:
    source = tmp_path / "published"
    config = AlbertConfig(vocab_size=200, embedding_size=8, **BERT_SIZES)
    AlbertModel(config).save_pretrained(source)
    (source / "spiece.model").write_bytes(tiny_vocab().model)
    (source / "tokenizer_config.json").write_text("{}")
    for name in ("a", "b"):
        convert_model(str(source), str(tmp_path / name))
    a, b = (load_model(str(tmp_path / name)) for name in ("a", "b"))
    assert a.sentence_order.weight.std() > 0
    torch.testing.assert_close(a.state_dict(), b.state_dict(), rtol=0, atol=0)


def test_what_cannot_be_converted_is_said_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(tmp_path / "nowhere"), str(tmp_path / "folder")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "nowhere is nothing to start from" in said
    assert not (tmp_path / "folder").exists()
