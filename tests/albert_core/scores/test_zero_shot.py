"""The stage that scores a pretrained model on minimal pairs."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from albert_core.scores import zero_shot as stage
from albert_core.stage.errors import TaskError
from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import ZeroShotResult
from albert_core.tasks.likelihoods import is_right
from albert_core.tasks.minimal_pairs import find_pairs, read_pairs
from albert_core.text.arrow_files import read_arrow
from tests.albert_core.made_pairs import write_pairs
from tests.albert_core.tiny_model import MAX_POSITIONS, save_tiny_model
from tests.albert_core.tiny_vocab import tiny_vocab


def test_each_pair_has_its_outcome_and_the_scores_are_their_means(tmp_path: Path) -> None:
    folder, work = str(tmp_path / "model"), str(tmp_path / "work")
    model = save_tiny_model(folder)
    tasks = str(write_pairs(tmp_path / "tasks", 30))
    (tmp_path / "tasks" / "zorro").mkdir()
    long, short = "ba " * (MAX_POSITIONS + 1), "ba di.\ndi ba.\n"
    (tmp_path / "tasks" / "zorro" / "order-swapped.txt").write_text(f"{long}\nba.\n{short * 3}")

    uri = stage.run(folder, tasks, work)

    manifest = read_manifest(uri)
    assert [str(account) for account in manifest.accounts] == [
        "zorro pairs: 4 in = 3 kept, 1 dropped (too_long 1)",
        "made pairs: 30 in = 30 kept",
    ]
    scores = manifest.result_as(ZeroShotResult).sets
    pairs = read_pairs("made", find_pairs(tasks)["made"])
    right = is_right(model, tiny_vocab(), pairs, torch.device("cpu"))
    outcomes = read_arrow(f"{Path(uri).parent}/outcomes/made.arrow").to_pydict()
    assert outcomes["is_right"] == right.tolist()
    assert outcomes["good"] == [pair.good for pair in pairs]
    assert 0 < right.sum() < 30
    assert scores["made"].accuracy.value == pytest.approx(right.mean())
    assert scores["made"].phenomena["other"].num_pairs == 10
    assert list(scores["zorro"].phenomena) == ["order"]
    assert stage.stage_plan(folder, tasks).done(work) == uri
    write_pairs(tmp_path / "tasks", 31)
    assert stage.stage_plan(folder, tasks).done(work) is None


def test_what_can_not_be_scored_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_tiny_model(str(folder))
    with pytest.raises(TaskError, match="has no minimal pairs: expected blimp"):
        stage.run(str(folder), str(tmp_path), str(tmp_path / "work"))
    [file] = write_pairs(tmp_path).glob("minimal_pairs/*")
    file.write_text('{"sentence_good": "Ba di.", "sentence_bad": "ba di."}')
    with pytest.raises(TaskError, match=r"no pair: made pairs: 1 in = 0 kept, .*same_pieces 1"):
        stage.run(str(folder), str(tmp_path), str(tmp_path / "work"))
    state = safetensors.torch.load_file(folder / "model.safetensors")
    headless = {name: tensor for name, tensor in state.items() if "predictions" not in name}
    assert len(headless) < len(state)
    assert stage.has_head(str(folder))
    safetensors.torch.save_file(headless, folder / "model.safetensors", {"format": "pt"})
    assert not stage.has_head(str(folder))
    with pytest.raises(TaskError, match="has no masked LM head"):
        stage.run(str(folder), str(write_pairs(tmp_path)), str(tmp_path / "work"))
