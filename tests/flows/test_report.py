"""The reports of runs and stages, as the terminal and Prefect's pages show them."""

import re
import shlex
from pathlib import Path

import pytest

from albert_core.stage import storage
from albert_core.stage.manifest import Shard
from flows.report import Report, build_report, stage_report
from tests.flows.conftest import made_manifest
from tests.made_results import RESULTS

STAGES = ("corpus", "examples", "pretraining", "scores", "registration")


def report(
    tracking: str = "sqlite:////work/mlflow.db", work: str = "", **changed: dict[str, object]
) -> Report:
    work = work or storage.work_folder(None)
    made = {stage: made_manifest(stage, **changed.get(stage, {})) for stage in STAGES}
    return build_report("tiny", made, tracking, work)


def row(text: str, name: str) -> str:
    return next(line.split(name, 1)[1].strip() for line in text.splitlines() if name in line)


def test_the_report_has_the_numbers_of_every_stage() -> None:
    accounts = "2,000,000 in = 1,990,000 kept, 10,000 dropped (overflow 10,000)"
    gate = "0.1250 against 0.1000 of version 2: +0.0250, at least +0.0050 and at most +0.0450"
    expected = {
        "files left out, broken link": "1",
        "documents read": "1,000",
        "documents kept": "900",
        "  dropped, too short": "60",
        "  dropped, duplicate": "40",
        "to examples: pieces, all copies": accounts,
        "examples": "31,000 = 30,000 to train + 1,000 held out",
        "padding share": "6.2%",
        "masked LM loss, nats": "8.300 [8.200, 8.400]  ->  5.750 [5.700, 5.800]",
        "unigram loss, nats": "6.500; the model ends 0.750 below it",
        "sentence order accuracy": "0.500 [0.470, 0.530]  ->  0.510 [0.480, 0.540]",
        "minimal pairs accuracy": "0.500 [0.450, 0.550]  ->  0.600 [0.550, 0.650]",
        "generated": "0.630 [0.580, 0.680], 100 pairs",
        "  word order": "0.750 [0.700, 0.800], 50 pairs",
        "  articles": "0.510 [0.460, 0.560], 50 pairs; not surely above chance",
        "cola, matthews": "0.125 [0.062, 0.188]",
        "  over 3 seeds": "0.100 to 0.200",
        "  the best constant answer": "0.000",
        "cola, accuracy": "0.562 [0.500, 0.625]; not surely better than 0.5",
        "model": "albert-tiny, version 3",
        "alias": "champion",
        "the gate": "promoted",
        "because": "better than the champion",
        "  cola": gate,
    }
    done = report()
    rows = {name: value for rows in done.groups.values() for name, value in rows}
    assert {name: rows.get(name) for name in expected} == expected
    for name, value in rows.items():
        assert f"| {name} | {value} |" in done.markdown()
        assert re.search(rf"^  {re.escape(name)} +{re.escape(value)}$", done.text(), re.MULTILINE)
    for stage in STAGES:
        assert re.fullmatch(rf"{stage}/[0-9a-f]{{16}}", rows[f"of {stage}"])
    assert "Sentence order ended at 0.510 [0.480, 0.540]. On natural text it stays" in done.text()
    order = {"value": 0.93, "low": 0.92, "high": 0.94}
    learned = RESULTS["pretraining"].model_dump()["after"] | {"sentence_order_accuracy": order}
    told = report(pretraining={"after": learned}).text()
    assert "Sentence order ended at 0.930 [0.920, 0.940]." in told
    assert "On natural text" not in told
    of_nsp = {"masked_lm_loss": order, "next_sentence_accuracy": order}
    told = report(pretraining={"before": of_nsp, "after": of_nsp}).text()
    assert "Next sentence ended at 0.930 [0.920, 0.940]." in told


@pytest.mark.parametrize(
    ("median", "interval", "shown"),
    [
        (0.125, (-0.1, 0.2), "0.125 [-0.100, 0.200]; not surely better than 0"),
        (-0.0, (-0.0001, 0.0), "0.000 [0.000, 0.000]; not surely better than 0"),
        (0.125, (0.1, 0.2), "0.125 [0.100, 0.200]"),
        (1.0, (None, None), "1.000 no interval; not surely better than 0"),
        (-0.125, (-0.2, -0.1), "-0.125 [-0.200, -0.100]; not surely better than 0"),
    ],
)
def test_a_score_that_may_be_chance_or_is_worse_is_told_so(
    median: float, interval: tuple[float | None, float | None], shown: str
) -> None:
    cola = RESULTS["scores"].model_dump()["tasks"]["cola"]
    estimate = {"value": median, "low": interval[0], "high": interval[1]}
    found = {"median": estimate, "by_seed": {"1": median}}
    cola["metrics"] = {"matthews": cola["metrics"]["matthews"] | found}
    text = report(scores={"tasks": {"cola": cola}}).text()
    assert row(text, "matthews") == shown
    assert "seeds" not in text


def test_the_next_commands_load_the_model_by_its_alias_or_else_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", str(Path.cwd() / "v" / "bin" / "python"))
    text = report().text()
    assert "export MLFLOW_TRACKING_URI=sqlite:////work/mlflow.db" in text
    assert 'mlflow.pyfunc.load_model("models:/albert-tiny@champion")' in text
    assert "    v/bin/python -m mlflow ui --backend-store-uri sqlite:////work/mlflow.db" in text
    assert text.endswith("    v/bin/albert serve")
    assert report(work="/data/w").text().endswith("    v/bin/albert serve --work /data/w")
    assert report(tracking="http://127.0.0.1:5000").text().endswith("    END")
    monkeypatch.setattr("sys.executable", "/elsewhere/bin/python")
    assert "    /elsewhere/bin/albert serve" in report().text()
    text = report(registration={"alias": None}).text()
    assert 'load_model("models:/albert-tiny/3")' in text
    assert row(text, "alias") == "none"


def test_the_next_commands_can_be_typed_whatever_blanks_and_quotes_the_folders_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/my v/bin/python")
    database = "sqlite:////it's mine/mlflow.db"
    typed = report(tracking=database, work="/it's mine").commands.splitlines()
    assert shlex.split(typed[0]) == ["export", f"MLFLOW_TRACKING_URI={database}"]
    assert shlex.split(typed[1])[0] == "/my v/bin/python"
    look = ["/my v/bin/python", "-m", "mlflow", "ui", "--backend-store-uri", database]
    assert shlex.split(typed[-2]) == look
    assert shlex.split(typed[-1]) == ["/my v/bin/albert", "serve", "--work", "/it's mine"]


@pytest.mark.parametrize("stage", ["corpus", "pretraining"])
def test_the_page_of_a_stage_has_the_numbers_files_and_links_of_its_manifest(stage: str) -> None:
    picture = Shard(path="curves.png", kind="page", num_rows=0, num_bytes=1_500_000, sha256="")
    made = made_manifest(stage).model_copy(
        update={
            "shards": [picture],
            "inputs": {"text": "0" * 64},
            "input_manifests": {"text": "/work/a|b/manifest.json"},
        }
    )
    text = stage_report(made, f"/work/{stage}/0/manifest.json", "http://127.0.0.1:5000").markdown()
    assert text.startswith(f"# {stage}\n")
    assert f"- manifest: `/work/{stage}/0/manifest.json`" in text
    assert f"- picture: `/work/{stage}/0/curves.png`" in text
    assert "| page | 1 files, 1.50 MB |" in text
    for account in made.accounts:
        assert f"| {account.what} | {str(account).partition(': ')[2]} |" in text
    numbers = {name: value for name, value in made.result.items() if isinstance(value, int)}
    for name, value in numbers.items():
        shown = str(value) if isinstance(value, bool) else f"{value:,}"
        assert f"| {name.replace('_', ' ')} | {shown} |" in text
    if run := made.result.get("mlflow_run_id"):
        assert f"- [MLflow run](http://127.0.0.1:5000/#/runs/{run})" in text
    if stage == "pretraining":
        assert "| after, masked lm loss | 5.750 [5.700, 5.800] |" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in tables)


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("<script>alert(1)</script>", r"\<script>alert(1)\</script>"),
        ("[x](javascript:y) `z`\nw", r"[x]\(javascript:y) \`z\` w"),
        ("`/work/a_b`", "`/work/a_b`"),
        (r"\<img src=x>", r"\\\<img src=x>"),
        (r"a\|b", r"a\\\|b"),
        (r"`a\|b`", r"\`a\\\|b\`"),
        ("[x][y]", r"[x]\[y]"),
        ("[x]: javascript:y", r"[x]\: javascript:y"),
        ("\x1b[31mred\r", r"\\x1b[31mred\\r"),
    ],
)
def test_what_a_user_named_is_neither_html_nor_a_link_on_a_page(named: str, shown: str) -> None:
    page = Report("t", {"g": [("a|b", named)]}).markdown()
    assert rf"| a\|b | {shown} |" in page
