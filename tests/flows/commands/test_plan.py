import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from albert_core.planning.run_plan import ExampleSizes, find_hardware
from albert_core.stage.manifest import StagePlan
from albert_core.training.shards import ExampleShards
from flows.commands.main import main
from flows.commands.plan import plan_recipe
from flows.recipe import load_recipe
from tests.albert_core.made_examples import made_examples
from tests.made_results import made_result


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


EXTRAPOLATED = "--recipe tiny --hardware cpu2 --set model.hidden_size=64"
SAID: dict[str, tuple[str, ...]] = {
    "a plan says parameters, memory, speed, time and cost": (
        "--recipe base --hardware h200 --devices 2",
        "base on 2 x NVIDIA H200 SXM",
        "vocabulary                 30,000 pieces",
        "parameters                 11,813,810",
        "64 x 512 pieces, without checkpointing: fits",
        "989.5 TFLOP/s in bfloat16 [published]",
        "model FLOPs utilisation    0.420 [modelled]",
        "125,000 of 4,096 examples",
        "training.shard_state       ",
        "USD at 4.59 an hour and device [assumed]",
        "price                      assumed: RunPod",
    ),
    "figures of one's own are marked as given": (
        "--hardware l4 --peak-tflops 100 --memory-gib 8 --utilisation 0.25 --price-per-hour 1.5",
        "100 TFLOP/s in bfloat16 [given]",
        "model FLOPs utilisation    0.250 [given]",
        "64 x 512 pieces, without checkpointing: does NOT fit",
        "at 1.50 an hour and device [given]",
    ),
    "the next command has the settings that were planned": (
        "--recipe tiny --set training.num_steps=90 --set source.uri='a b'",
        "albert pretrain --recipe tiny --set training.num_steps=90 --set 'source.uri=a b' ",
    ),
    "a given share stands also where activations are computed again": (
        "--hardware l4 --utilisation 0.25 --set training.activation_checkpointing=true",
        "model FLOPs utilisation    0.250 [given]",
    ),
    "a known width is measured": (
        "--recipe tiny --hardware cpu2",
        "utilisation                measured: ",
    ),
    "on a CPU the process itself takes memory too": (
        "--recipe tiny --hardware cpu2",
        "the process itself         0.41 GiB beside the tensors [measured]; 0.62 GiB with those",
    ),
    "a width beyond the measured ones is called extrapolated": (
        EXTRAPOLATED,
        "[extrapolated]",
        "extrapolated to H 64 from measured shares of H 128 to 2048",
    ),
    "a batch other than the paper's comes with advice": (
        "--set training.batch_size=1024",
        "learning_rate              0.00088; the recipe has 0.00176",
        "warmup_steps               3,125; the recipe has 3,125",
        "num_steps                  500,000; the recipe has 125,000",
    ),
    "beyond eight devices, the exchange of gradients is said to count": (
        "--devices 9",
        "Nor is the exchange of gradients: beyond 8 devices",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_the_text_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, *lines = SAID[name]
    text = printed(capsys, *shlex.split(arguments))
    for line in lines:
        assert line in text


def test_a_manifest_gives_the_real_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = made_examples(str(tmp_path), num_examples=12, max_seq_length=20)
    lengths, num_predictions = ExampleShards(manifest, "train").sizes(np.arange(12))
    sizes = plan_recipe(load_recipe("tiny"), find_hardware("l4"), 1, examples=manifest).sizes
    assert sizes == ExampleSizes.mean_of(lengths, num_predictions.sum(), manifest)
    text = printed(capsys, "--recipe", "tiny", "--examples", manifest)
    assert f"{lengths.mean():,.0f} real pieces" in text
    assert "epochs                     2,666.67 of 12 examples" in text
    assert f"measured: {manifest}" in text


def test_the_folder_of_examples_will_do_and_that_of_another_result_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made_examples(str(tmp_path), num_examples=12, max_seq_length=20).rpartition("/")[0]
    assert "of 12 examples" in printed(capsys, "--recipe", "tiny", "--examples", folder)
    other = made_result("corpus")
    uri = StagePlan("corpus", {}, {}, "code", {}).write(str(tmp_path), [], [], other)
    assert main(["plan", "--recipe", "tiny", "--examples", uri]) == 2
    assert f"{uri} lists no examples to train on" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-5", "1e6"])
def test_a_number_of_examples_that_is_none_is_said(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--recipe", "tiny", f"--examples={number}"]) == 2
    assert f"{number!r}, expected a whole number above 0" in capsys.readouterr().err


def test_json_has_the_figures_of_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--recipe", "large", "--hardware", "a100"]
    plan = json.loads(printed(capsys, *arguments, "--json"))
    text = printed(capsys, *arguments)
    assert f"{plan['parameters']['with_heads']:,}" in text
    assert f"{plan['pieces_per_second']:,.0f}" in text
    assert f"{plan['cost_usd']:,.2f} USD" in text
    assert f"{plan['largest_micro_batch']:,} x fit" in text
    assert plan["fits"] is True
    assert "The paper's run with this batch" not in text
    assert plan["micro_batch"].keys().isdisjoint({"model", "vocab_size", "num_shards", "by_muon"})
    assert plan["paper_run_with_this_batch"]["learning_rate"] == 0.00176
    other = json.loads(printed(capsys, *EXTRAPOLATED.split(), "--json"))
    assert other["utilisation_basis"] == "extrapolated"


def test_the_table_has_every_row_beside_the_papers_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, "--table").splitlines()
    rows = [[cell for cell in line.split("  ") if cell] for line in lines[2:]]
    cells = {(row[0].strip(), row[1].strip()): [cell.strip() for cell in row[2:]] for row in rows}
    base = ["11,092,992", "11,683,584", "11,813,810", "12M", "with pooler or with heads"]
    assert cells["2", "ALBERT base"] == base
    assert cells["12", "3 layers, H 6144"][-2:] == ["499M", "none of them"]
    assert len(rows) == 28
    as_json = {
        (row["table"], row["model"]): row
        for row in json.loads(printed(capsys, "--table", "--json"))
    }
    assert as_json["2", "ALBERT base"]["with pooler"] == 11_683_584
    assert as_json["2", "ALBERT base"]["paper"] == "12M"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "bsae"], "no recipe 'bsae'; did you mean"),
        (["--hardware", "tpu"], "there is no hardware 'tpu'; there is h200"),
        (["--utilisation", "1.5"], "--utilisation is 1.5, but must be above 0, at most 1"),
        (["--price-per-hour", "-1"], "--price-per-hour is -1, but must be above 0"),
        (["--devices", "5000"], "5000 devices cannot share a batch of 4096 examples"),
        (["--set", "training.steps=1"], "--set training.steps=1: unknown setting"),
    ],
)
def test_a_mistake_ends_in_one_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
