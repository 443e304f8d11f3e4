import re

import pytest

from flows.report import Report, build_report
from tests.flows.made_manifests import FACTS, made_manifest

STAGES = ("corpus", "examples", "pretraining", "scores", "registration")


def report(**changed: dict[str, object]) -> Report:
    made = {stage: made_manifest(stage, changed.get(stage)) for stage in STAGES}
    return build_report("tiny", made, "sqlite:////work/mlflow.db")


def row(text: str, name: str) -> str:
    return next(line.split(name, 1)[1].strip() for line in text.splitlines() if name in line)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("documents read", "1,000"),
        ("documents kept", "900"),
        ("dropped, too short", "60"),
        ("dropped, duplicate", "40"),
        (
            "to examples: pieces, all copies",
            "2,000,000 in = 1,990,000 kept, 10,000 dropped (overflow 10,000)",
        ),
        ("examples  ", "31,000 = 30,000 to train + 1,000 held out"),
        ("padding share", "6.2%"),
        ("masked LM loss, nats", "8.300 [8.200, 8.400]  ->  5.750 [5.700, 5.800]"),
        ("unigram loss, nats", "6.500; the model ends 0.750 below it"),
        ("sentence order accuracy", "0.500 [0.470, 0.530]  ->  0.510 [0.480, 0.540]"),
        ("cola, matthews", "0.125 [0.062, 0.188]"),
        ("over 3 seeds", "0.100 to 0.200"),
        ("cola, accuracy", "0.562 [0.500, 0.625]"),
        ("model  ", "albert-tiny, version 3"),
        ("alias", "champion"),
        ("the gate", "promoted"),
        ("because", "better than the champion"),
        ("cola", "0.1250 against 0.1000 of version 2: +0.0250 [+0.0050, +0.0450]"),
    ],
)
def test_the_report_says(name: str, value: str) -> None:
    rows = [line.strip() for line in report().text().splitlines()]
    assert any(re.fullmatch(rf"{re.escape(name)}\s*{re.escape(value)}", line) for line in rows)


def test_the_report_says_what_to_expect_of_sentence_order() -> None:
    text = report().text()
    assert "Sentence order ended at 0.510 [0.480, 0.540]. On natural text it stays near 0.5" in text


def test_a_model_above_the_unigram_loss_is_told_so() -> None:
    after = FACTS["pretraining"]["after"] | {"masked_lm_loss": {"value": 7, "low": 6, "high": 8}}
    text = report(pretraining={"after": after}).text()
    assert row(text, "unigram loss, nats") == "6.500; the model ends 0.500 above it"


def scores(median: float, low: float, high: float) -> dict[str, object]:
    found = {"median": median, "interval": [low, high], "by_seed": {"1": median}}
    return {"tasks": {"cola": {"metrics": {"matthews": found}}}}


def test_a_score_that_may_be_chance_is_told_so() -> None:
    text = report(scores=scores(0.125, -0.1, 0.2)).text()
    assert row(text, "matthews").endswith("the interval holds 0, so no better than chance")


def test_a_score_of_zero_has_no_sign() -> None:
    text = report(scores=scores(-0.0, -0.0001, 0.0)).text()
    assert row(text, "matthews").startswith("0.000 [0.000, 0.000]")
    assert "seeds" not in text


def test_the_next_commands_load_the_model_by_its_alias() -> None:
    text = report().text()
    assert "export MLFLOW_TRACKING_URI=sqlite:////work/mlflow.db" in text
    assert 'mlflow.pyfunc.load_model("models:/albert-tiny@champion")' in text
    assert "python -m mlflow ui --backend-store-uri sqlite:////work/mlflow.db" in text
    assert "    albert serve" in text


def test_a_model_without_alias_is_loaded_by_its_version() -> None:
    text = report(registration={"alias": None}).text()
    assert 'load_model("models:/albert-tiny/3")' in text
    assert row(text, "alias") == "none"


def test_the_artifact_has_the_same_rows_as_the_terminal() -> None:
    markdown = report().markdown()
    for rows in report().groups.values():
        assert all(f"| {name} | {value} |" in markdown for name, value in rows)
