"""The deployments and rules of a real Prefect server, and of `albert production`.

Deployments keep what a user changed, however often they are deployed; so do rules.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import jinja2
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.steps.core import run_steps
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from albert_core.stage.errors import ConfigError
from flows.prefect_server import AUTH_FILE, prefect_server
from infra import deployments
from infra.serve import PROJECT
from tests.infra.stack import open_folder
from tests.mlflow_server import free_port

ENTRIES = yaml.safe_load(deployments.DEPLOYMENTS.read_text())["deployments"]
QUEUES, AUTOMATIONS = yaml.safe_load(deployments.RULES.read_text()).values()
SILENT, NEVER_BEGAN, NOTES, RESTARTS, PRETRAINS, REPORTS = AUTOMATIONS
NAMES = {
    "pretrain_albert": str(uuid4()),
    "alert_webhook": str(uuid4()),
    "pretrain_after_refresh": "",
    "begun": "['1', '2']",
}
OTHER = {"recipe": "small", "source": "/mine", "overrides": ["training.seed=3"]}


@pytest.mark.parametrize(
    ("last", "there", "wanted", "expected"),
    [
        ("a", "a", "b", "b"),
        ("a", "mine", "b", "mine"),
        ("a", "mine", "a", "mine"),
        ({"x": 1}, {"x": 1}, {"x": 2, "y": 3}, {"x": 2, "y": 3}),
        ({"x": 1, "y": 1}, {"x": 1, "y": 1}, {"x": 1}, {"x": 1}),
        ({"x": 1}, {"x": 1, "mine": 2}, {"x": 2}, {"x": 2, "mine": 2}),
        ({"x": 1, "y": 1}, {"x": 5, "y": 1}, {"x": 2, "y": 2}, {"x": 5, "y": 2}),
        ({"x": 1}, {}, {"x": 2}, {}),
        ({"e": {"x": 1}}, {"e": {"x": 1, "y": 2}}, {"e": {"x": 3}}, {"e": {"x": 3, "y": 2}}),
    ],
)
def test_only_what_is_as_it_was_deployed_becomes_what_is_wanted_now(
    last: Any, there: Any, wanted: Any, expected: Any
) -> None:
    assert deployments.merged(last, there, wanted) == expected


def test_a_default_goes_to_the_deployments_that_have_the_parameter() -> None:
    given = {"recipe": "small", "source": "/texts", "task_folder": None}
    wanted = {entry["name"]: deployments.wanted_of(entry, given) for entry in ENTRIES}
    assert {name: each["parameters"] for name, each in wanted.items()} == {
        "pretrain-albert": {"recipe": "small", "source": "/texts"},
        "refresh-corpus": {"recipe": "small", "source": "/texts"},
        "evaluate-albert": {"model": "models:/albert-tiny@champion"},
    }


@pytest.fixture(scope="module")
def server(
    empty_prefect_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncPrefectClient]:
    """A client of a server of its own, with the deployments."""
    work = tmp_path_factory.mktemp("work")
    shutil.copy(empty_prefect_database, work)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setenv("PREFECT_HOME", str(tmp_path_factory.mktemp("home")))
        with prefect_server(str(work)):
            assert deployments.main(["--rules"]) == 0
            with get_client(sync_client=True) as client:
                yield client


def test_a_server_that_does_not_answer_is_one_sentence_with_its_address(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    with temporary_settings({PREFECT_API_URL: url}):
        assert deployments.main([]) == 75
    told = f"error: no Prefect server answers at {url} (ConnectError: "
    assert capsys.readouterr().err.startswith(told)


@pytest.mark.slow
def test_a_wrong_password_is_one_sentence(
    server: SyncPrefectClient, capsys: pytest.CaptureFixture[str]
) -> None:
    with temporary_settings({PREFECT_API_AUTH_STRING: "albert:guessed"}):
        assert deployments.main([]) == 71
    said = capsys.readouterr().err
    assert "error: Prefect's server refuses the request (" in said
    assert "PREFECT_API_AUTH_STRING" in said
    assert "Traceback" not in said


def test_a_job_variable_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        deployments.main(["--job-variable", "image"])
    assert "argument --job-variable: 'image' must be NAME=VALUE" in capsys.readouterr().err


def change(client: SyncPrefectClient) -> None:
    """Change deployments as a user does on their pages."""
    refresh = client.read_deployment_by_name("refresh-corpus/refresh-corpus")
    theirs = DeploymentUpdate(parameters=OTHER, tags=["albert", "mine"])
    client.update_deployment(refresh.id, theirs)
    [nightly] = refresh.schedules
    client.update_deployment_schedule(refresh.id, nightly.id, active=False)
    weekly = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 5 * * 0"))
    client.create_deployment_schedules(refresh.id, [weekly])
    client.pause_deployment(client.read_deployment_by_name("evaluate-albert/evaluate-albert").id)


def test_a_worker_changes_to_its_own_machines_code() -> None:
    for file in (deployments.DEPLOYMENTS, PROJECT / "infra/hosts/several_hosts.yaml"):
        assert yaml.safe_load(file.read_text())["pull"] == deployments.PULL_STEPS
    found = asyncio.run(run_steps(deployments.PULL_STEPS))
    assert (Path(found["directory"]) / "flows/pretrain_albert.py").is_file()


def state_of(client: SyncPrefectClient) -> dict[str, Any]:
    """Return what a user sees of each deployment, without what the flows' code decides."""
    fields = {"parameters", "tags", "paused", "schedules", "job_variables", "work_pool_name"}
    times = {"schedules": {"__all__": {"updated"}}}
    found = client.read_deployments()
    return {each.name: each.model_dump(include=fields, exclude=times) for each in found}


@pytest.mark.slow
def test_what_a_user_changed_outlasts_every_deploying(server: SyncPrefectClient) -> None:
    change(server)
    before = state_of(server)
    for source in ("/theirs", "/others"):
        assert deployments.main([f"--source={source}"]) == 0
        now = state_of(server)
        assert now["pretrain-albert"].pop("parameters") == {"recipe": "tiny", "source": source}
        assert now == {**before, "pretrain-albert": now["pretrain-albert"]}
    last = state_of(server)
    assert deployments.main([]) == 0
    assert state_of(server) == last


@pytest.mark.slow
def test_what_a_user_set_and_a_flow_no_longer_takes_stops_no_start(
    server: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        request = httpx.Request("PATCH", "http://here")
        raise PrefectHTTPStatusError("no", request=request, response=httpx.Response(409))

    def deploy(entry: dict[str, Any]) -> str:
        return deployments.deploy(server, entry, {}, {"job_variables": {}})

    pretrain, refresh, _ = ENTRIES
    monkeypatch.setattr(server, "update_deployment", refuse)
    told = "refresh-corpus: left as it is, because of what was changed, tags, parameters: no"
    assert deploy(refresh) == told
    with pytest.raises(PrefectHTTPStatusError):
        deploy(pretrain)


@pytest.mark.slow
def test_a_deployment_goes_to_a_pool_of_kubernetes(server: SyncPrefectClient) -> None:
    command = ["--kubernetes=gpu", "--name=evaluate-albert", "--job-variable=image=here/trainer"]
    for _ in range(2):
        assert deployments.main([*command, "--rules"]) == 0
    evaluate = server.read_deployment_by_name("evaluate-albert/evaluate-albert")
    assert (evaluate.work_pool_name, evaluate.job_variables["image"]) == (
        "albert-gpu",
        "here/trainer",
    )
    pool = server.read_work_pool("albert-gpu")
    assert pool.type == "kubernetes"
    assert "gpus" in pool.base_job_template["variables"]["properties"]
    for queue in QUEUES:
        found = server.read_work_queue_by_name(queue, work_pool_name="albert-gpu")
        assert found.concurrency_limit == 1


@pytest.mark.slow
def test_a_queue_gets_a_limit_only_if_it_has_none(server: SyncPrefectClient) -> None:
    for name, limit in {"free": None, "set": 5}.items():
        queue = server.create_work_queue(name, work_pool_name="albert")
        server.update_work_queue(queue.id, concurrency_limit=limit)
    deployments.limit_queues(server, "albert", {"free": 1, "set": 1, "new": 2})
    limits = {
        name: server.read_work_queue_by_name(name, work_pool_name="albert").concurrency_limit
        for name in ("free", "set", "new")
    }
    assert limits == {"free": 1, "set": 5, "new": 2}


def test_every_deployment_has_a_limited_queue_of_its_name() -> None:
    names = [each["name"] for each in ENTRIES]
    assert [each["work_pool"]["work_queue_name"] for each in ENTRIES] == names
    assert QUEUES.keys() == set(names)


def copy_of(automation: Automation, **changes: object) -> AutomationCore:
    return AutomationCore.model_validate(
        {**automation.model_dump(exclude={"id", "owner_resource"}), **changes}
    )


class Rules:
    """The automations of a real server."""

    def __init__(self, server: SyncPrefectClient) -> None:
        self.server = server

    def there(self) -> list[Automation]:
        return self.server.read_automations()

    def apply(self, automation: dict[str, Any], **names: str) -> str:
        return deployments.apply_automation(self.server, automation, {**NAMES, **names})

    def waiting(self) -> list[str]:
        """Return the ids by which the server keeps what the automations wait for."""
        found = self.server.request("POST", "/automations/filter", json={}).json()
        return [each["trigger"]["id"] for each in found]

    def switch(self, enabled: bool) -> None:
        """Switch every automation on or off, as the user does on Prefect's page."""
        for each in self.there():
            self.server.update_automation(each.id, copy_of(each, enabled=enabled))


@pytest.fixture
def rules(server: SyncPrefectClient) -> Rules:
    """No automation, at first."""
    for each in server.read_automations():
        server.delete_automation(each.id)
    return Rules(server)


@pytest.mark.slow
@pytest.mark.parametrize("automation", AUTOMATIONS, ids=lambda automation: automation["name"])
def test_each_automation_is_made_once_and_waits_on_over_a_start(
    automation: dict[str, Any], rules: Rules
) -> None:
    rules.apply(automation)
    waiting = rules.waiting()
    rules.apply(automation)
    assert rules.waiting() == waiting
    rules.server.create_automation(copy_of(rules.there()[0]))  # as two servers at once may
    rules.apply(automation)
    [made] = rules.there()
    assert made.name == automation["name"]
    assert made.description
    assert "$" not in made.model_dump_json()
    assert made.enabled == (automation != PRETRAINS)


@pytest.mark.slow
@pytest.mark.parametrize("automation", [SILENT, PRETRAINS], ids=["a rule", "one with a switch"])
def test_a_rule_stays_as_the_user_left_it(automation: dict[str, Any], rules: Rules) -> None:
    rules.apply(automation)
    for enabled in (True, False):
        rules.switch(enabled)
        rules.apply(automation)
        assert [each.enabled for each in rules.there()] == [enabled]


@pytest.mark.slow
def test_pretraining_after_a_refresh_is_as_the_environment_says(rules: Rules) -> None:
    assert rules.apply(PRETRAINS) == "albert-pretrains-on-a-changed-corpus: off"
    for enabled in (True, False):
        rules.apply(PRETRAINS, pretrain_after_refresh=str(enabled).lower())
        assert [each.enabled for each in rules.there()] == [enabled]


@pytest.mark.slow
def test_without_an_address_no_alert_is_left(
    rules: Rules, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALBERT_ALERT_WEBHOOK", "http://127.0.0.1/alerts")
    deployments.apply_rules(rules.server, "albert")
    assert sorted(each.name for each in rules.there()) == sorted(a["name"] for a in AUTOMATIONS)
    monkeypatch.delenv("ALBERT_ALERT_WEBHOOK")
    deployments.apply_rules(rules.server, "albert")
    assert "albert-reports-failures: none, without alert_webhook" in capsys.readouterr().out
    assert REPORTS["name"] not in [each.name for each in rules.there()]


def test_an_alert_is_json_even_when_its_message_has_quotes() -> None:
    environment = jinja2.Environment(autoescape=False)
    environment.filters["ui_url"] = lambda run: "http://here"
    state = SimpleNamespace(name="Failed", message='no file "a"\nat all')
    payload = environment.from_string(REPORTS["actions"][0]["payload"]).render(
        flow=SimpleNamespace(name="refresh-corpus"),
        flow_run=SimpleNamespace(name="tiny", state=state),
    )
    text = json.loads(payload)["text"]
    assert text == 'refresh-corpus, run tiny: Failed. no file "a"\nat all http://here'


@pytest.mark.slow
def test_an_impossible_switch_is_refused(
    server: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALBERT_RESTARTS", "-1")
    assert deployments.main(["--rules"]) == 2
    told = "error: prefect_rules.yaml: ALBERT_RESTARTS='-1' must be a whole number"
    assert told in capsys.readouterr().err
    with pytest.raises(ConfigError, match="ALBERT_PRETRAIN_AFTER_REFRESH='yes' must be true or"):
        deployments.switches({"ALBERT_PRETRAIN_AFTER_REFRESH": "yes"})


@pytest.mark.slow
def test_a_crashed_run_is_started_again_as_often_as_the_environment_says(rules: Rules) -> None:
    def apply(restarts: str) -> str:
        names = deployments.switches({"ALBERT_RESTARTS": restarts})
        return deployments.apply_automation(rules.server, NOTES, names)

    for number, counts in (("", ["1", "2", "3"]), ("1", ["1"])):
        apply(number)
        [made] = rules.there()
        assert made.trigger.model_dump()["match"]["prefect.run-count"] == counts
    assert apply("0") == "albert-notes-what-to-start-again: none, without begun"
    assert rules.there() == []
    awaits = NOTES["actions"][0]["name"]
    assert RESTARTS["trigger"]["after"] == [f"prefect.flow-run.{awaits}"]


@contextmanager
def client_of(api_url: str, work: Path) -> Iterator[SyncPrefectClient]:
    """Speak to the server of a work folder."""
    secret = (work / AUTH_FILE).read_text()
    with temporary_settings({PREFECT_API_URL: api_url, PREFECT_API_AUTH_STRING: secret}):
        with get_client(sync_client=True) as client:
            yield client


@contextmanager
def production(**options: object) -> Iterator[None]:
    """Run `albert production` until the block ends."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("albert"), "production", *given],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    )
    assert process.stdout
    try:
        assert any(line.startswith("Ctrl-C") for line in process.stdout)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_a_user_changed_outlasts_three_starts(tmp_path: Path) -> None:
    work, theirs = tmp_path / "work", tmp_path / "theirs"
    theirs.mkdir()
    with open_folder() as databases:
        options = {"work": work, "source": theirs, "postgres_folder": databases / "postgres"}
        ports = {f"{name}_port": free_port() for name in ("prefect", "mlflow", "postgres", "s3")}
        api_url = f"http://127.0.0.1:{ports['prefect_port']}/api"
        with production(**options, **ports):
            with client_of(api_url, work) as client:
                change(client)
                before = state_of(client)
        of_nobody = before["pretrain-albert"].pop("parameters")
        assert of_nobody == {"recipe": "tiny", "source": str(theirs)}
        for recipe in ("tiny", "base", "small"):
            with production(**options, **ports, recipe=recipe):
                with client_of(api_url, work) as client:
                    now = state_of(client)
            assert now["pretrain-albert"].pop("parameters")["recipe"] == recipe
            assert now == before


def test_a_run_chooses_neither_the_command_nor_the_folder_of_its_process() -> None:
    template = ProcessWorker.get_default_base_job_template()
    evil = {"command": "touch /tmp/evil", "working_dir": "/tmp", "env": {"A": "b"}}
    configuration: Any = asyncio.run(
        ProcessJobConfiguration.from_template_and_values(
            deployments.patched(template, deployments.PROCESS_PATCH), evil
        )
    )
    assert configuration.command is None
    assert configuration.working_dir is None
    assert configuration.env == {"A": "b"}
