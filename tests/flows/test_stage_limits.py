import ast
from pathlib import Path

import pytest

import flows
from albert_core.stage.errors import ConfigError
from flows.stage_process import NO_LIMITS, STAGE_MODULES, Limits, limits_of


def test_without_a_word_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALBERT_SILENT_MINUTES", raising=False)
    monkeypatch.delenv("ALBERT_STAGE_HOURS", raising=False)
    assert limits_of("albert_core.training.pretrain") == NO_LIMITS == Limits(None, None)


def test_a_stage_has_its_own_limit_or_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBERT_SILENT_MINUTES", "pretrain=120, clean_corpus=0.5, 60")
    monkeypatch.setenv("ALBERT_STAGE_HOURS", "pretrain=48")
    assert limits_of("albert_core.training.pretrain") == Limits(7200.0, 172_800.0)
    assert limits_of("pipelines.clean_corpus") == Limits(30.0, None)
    assert limits_of("albert_core.finetuning.finetune") == Limits(3600.0, None)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "pretrain=", "pretrain=inf", "nan"])
def test_what_is_no_time_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBERT_STAGE_HOURS", text)
    with pytest.raises(ConfigError, match=r"ALBERT_STAGE_HOURS: .* must be a number above 0"):
        limits_of("albert_core.training.pretrain")


def test_a_stage_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBERT_SILENT_MINUTES", "pretrian=120")
    with pytest.raises(ConfigError, match="there is no stage 'pretrian'; there is clean_corpus"):
        limits_of("albert_core.training.pretrain")


def test_every_stage_that_a_flow_runs_may_have_a_limit() -> None:
    [folder] = flows.__path__
    firsts = [
        node.args[0]
        for path in Path(folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "run_stage"
    ]
    modules = [first.value for first in firsts if isinstance(first, ast.Constant)]
    assert {str(module).rpartition(".")[2] for module in modules} == set(STAGE_MODULES)
