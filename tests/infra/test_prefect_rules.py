"""The rules of the Prefect server are of Prefect's own kind, and twice is as good as once."""

import json
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import jinja2
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.schemas.automations import AutomationCore

from albert_core.stage.errors import ConfigError
from infra import prefect_rules
from infra.prefect_rules import RULES, apply_automation, limit_queues, switches

NAMES = {
    "pretrain_albert": str(uuid4()),
    "alert_webhook": str(uuid4()),
    "pretrain_after_refresh": "",
}
AUTOMATIONS = {each["name"]: each for each in yaml.safe_load(RULES.read_text())["automations"]}
SILENT = AUTOMATIONS["albert-ends-silent-runs"]
PRETRAINS = AUTOMATIONS["albert-pretrains-on-a-changed-corpus"]
REPORTS = AUTOMATIONS["albert-reports-failures"]


class Server:
    """Stands for a Prefect server: its automations by id, its queues by name."""

    def __init__(self) -> None:
        self.automations: dict[str, AutomationCore] = {}
        self.queues: dict[str, SimpleNamespace] = {}

    def read_automations_by_name(self, name: str) -> list[SimpleNamespace]:
        found = [(i, each) for i, each in self.automations.items() if each.name == name]
        return [SimpleNamespace(id=i, enabled=each.enabled) for i, each in found]

    def create_automation(self, automation: AutomationCore) -> None:
        self.automations[str(uuid4())] = automation

    def update_automation(self, automation_id: str, automation: AutomationCore) -> None:
        self.automations[automation_id] = automation

    def delete_automation(self, automation_id: str) -> None:
        del self.automations[automation_id]

    def read_work_queue_by_name(self, name: str, work_pool_name: str) -> SimpleNamespace:
        return self.queues[name]

    def update_work_queue(self, queue_id: str, concurrency_limit: int) -> None:
        self.queues[queue_id].concurrency_limit = concurrency_limit

    @property
    def client(self) -> SyncPrefectClient:
        return cast(SyncPrefectClient, self)

    def apply(self, automation: dict[str, Any], **names: str) -> str:
        return apply_automation(self.client, automation, {**NAMES, **names})

    def enabled(self) -> list[bool]:
        return [each.enabled for each in self.automations.values()]


@pytest.mark.parametrize("name", AUTOMATIONS)
def test_each_automation_is_one_of_prefects_own(name: str) -> None:
    server = Server()
    server.apply(AUTOMATIONS[name])
    [made] = server.automations.values()
    assert made.name == name
    assert made.description
    assert "$" not in made.model_dump_json()


def test_a_second_time_updates_and_adds_nothing() -> None:
    server = Server()
    for _ in range(2):
        server.apply(SILENT)
    assert server.enabled() == [True]


def test_a_run_is_given_four_heartbeats() -> None:
    deployments = yaml.safe_load(RULES.parents[1].joinpath("prefect.yaml").read_text())
    for deployment in deployments["deployments"]:
        variables = deployment["work_pool"]["job_variables"]["env"]
        assert SILENT["trigger"]["within"] == 4 * int(
            variables["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]
        )
        assert "albert" in deployment["tags"]


def test_pretraining_after_a_refresh_is_off_at_first_then_as_the_user_left_it() -> None:
    server = Server()
    assert server.apply(PRETRAINS) == "albert-pretrains-on-a-changed-corpus: off"
    for automation_id, automation in server.automations.items():
        server.automations[automation_id] = automation.model_copy(update={"enabled": True})
    server.apply(PRETRAINS)
    assert server.enabled() == [True]
    server.apply(PRETRAINS, pretrain_after_refresh="false")
    assert server.enabled() == [False]
    server.apply(PRETRAINS, pretrain_after_refresh="true")
    assert server.enabled() == [True]


def test_what_the_user_switched_off_on_the_page_stays_off() -> None:
    server = Server()
    server.apply(SILENT)
    for automation_id, automation in server.automations.items():
        server.automations[automation_id] = automation.model_copy(update={"enabled": False})
    server.apply(SILENT)
    assert server.enabled() == [False]


def test_without_an_address_no_alert_is_left() -> None:
    server = Server()
    server.apply(REPORTS)
    assert len(server.automations) == 1
    without = {name: value for name, value in NAMES.items() if name != "alert_webhook"}
    said = apply_automation(server.client, REPORTS, without)
    assert said == "albert-reports-failures: none, without alert_webhook"
    assert server.automations == {}


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


def test_a_queue_gets_a_limit_only_if_it_has_none() -> None:
    server = Server()
    server.queues = {
        "free": SimpleNamespace(id="free", concurrency_limit=None),
        "set": SimpleNamespace(id="set", concurrency_limit=5),
    }
    limit_queues(server.client, "albert", {"free": 1, "set": 1})
    assert [queue.concurrency_limit for queue in server.queues.values()] == [1, 5]


def test_every_deployment_has_a_limited_queue() -> None:
    rules = yaml.safe_load(RULES.read_text())
    deployments = yaml.safe_load(RULES.parents[1].joinpath("prefect.yaml").read_text())
    queues = {each["work_pool"]["work_queue_name"] for each in deployments["deployments"]}
    assert queues == rules["queues"].keys() == set(prefect_rules._DEPLOYMENTS)


def test_a_switch_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(ConfigError, match="ALBERT_PRETRAIN_AFTER_REFRESH='yes' must be true or"):
        switches({"ALBERT_PRETRAIN_AFTER_REFRESH": "yes"})
