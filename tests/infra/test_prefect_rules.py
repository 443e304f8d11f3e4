"""The rules of the Prefect server are of its own kind, and applying them twice adds nothing."""

import json
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import jinja2
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

from albert_core.stage.errors import ConfigError
from infra.deployments import DEPLOYMENTS, RULES, apply_automation, limit_queues, switches

NAMES = {
    "pretrain_albert": str(uuid4()),
    "alert_webhook": str(uuid4()),
    "pretrain_after_refresh": "",
    "begun": "['1', '2']",
}
QUEUES, AUTOMATIONS = yaml.safe_load(RULES.read_text()).values()
SILENT, NEVER_BEGAN, NOTES, RESTARTS, PRETRAINS, REPORTS = AUTOMATIONS


class Server:
    """Stands for a Prefect server, with automations by id and queues by name."""

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
        if name not in self.queues:
            raise ObjectNotFound(Exception(name))
        return self.queues[name]

    def create_work_queue(self, name: str, work_pool_name: str) -> SimpleNamespace:
        return self.queues.setdefault(name, SimpleNamespace(id=name, concurrency_limit=None))

    def update_work_queue(self, queue_id: str, concurrency_limit: int) -> None:
        self.queues[queue_id].concurrency_limit = concurrency_limit

    @property
    def client(self) -> SyncPrefectClient:
        return cast(SyncPrefectClient, self)

    def apply(self, automation: dict[str, Any], **names: str) -> str:
        return apply_automation(self.client, automation, {**NAMES, **names})

    def enabled(self) -> list[bool]:
        return [each.enabled for each in self.automations.values()]

    def switch(self, enabled: bool) -> None:
        """Switch every automation on or off, as the user does on Prefect's page."""
        for automation_id, automation in self.automations.items():
            changed = automation.model_copy(update={"enabled": enabled})
            self.automations[automation_id] = changed


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize("automation", AUTOMATIONS, ids=lambda automation: automation["name"])
def test_each_automation_is_one_of_prefects_own_and_is_made_once(
    automation: dict[str, Any], server: Server
) -> None:
    for _ in range(2):
        server.apply(automation)
    server.create_automation(next(iter(server.automations.values())))  # as two servers at once may
    server.apply(automation)
    [made] = server.automations.values()
    assert made.name == automation["name"]
    assert made.description
    assert "$" not in made.model_dump_json()
    assert made.enabled == (automation != PRETRAINS)


@pytest.mark.parametrize("automation", [SILENT, PRETRAINS], ids=["a rule", "one with a switch"])
def test_a_rule_stays_as_the_user_left_it(automation: dict[str, Any], server: Server) -> None:
    server.apply(automation)
    for enabled in (True, False):
        server.switch(enabled)
        server.apply(automation)
        assert server.enabled() == [enabled]


def test_pretraining_after_a_refresh_is_as_the_environment_says(server: Server) -> None:
    assert server.apply(PRETRAINS) == "albert-pretrains-on-a-changed-corpus: off"
    for enabled in (True, False):
        server.apply(PRETRAINS, pretrain_after_refresh=str(enabled).lower())
        assert server.enabled() == [enabled]


def test_without_an_address_no_alert_is_left(server: Server) -> None:
    server.apply(REPORTS)
    assert len(server.automations) == 1
    without = {name: value for name, value in NAMES.items() if name != "alert_webhook"}
    result = apply_automation(server.client, REPORTS, without)
    assert result == "albert-reports-failures: none, without alert_webhook"
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


def test_a_queue_gets_a_limit_only_if_it_has_none(server: Server) -> None:
    for name, limit in {"free": None, "set": 5}.items():
        server.queues[name] = SimpleNamespace(id=name, concurrency_limit=limit)
    limit_queues(server.client, "albert", {"free": 1, "set": 1, "new": 2})
    limits = {name: queue.concurrency_limit for name, queue in server.queues.items()}
    assert limits == {"free": 1, "set": 5, "new": 2}


def test_every_deployment_has_a_limited_queue_of_its_name() -> None:
    deployments = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]
    names = [each["name"] for each in deployments]
    assert [each["work_pool"]["work_queue_name"] for each in deployments] == names
    assert QUEUES.keys() == set(names)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("ALBERT_PRETRAIN_AFTER_REFRESH", "yes", "'yes' must be true or false"),
        ("ALBERT_RESTARTS", "-1", "'-1' must be a whole number"),
    ],
)
def test_an_impossible_switch_is_refused(variable: str, text: str, message: str) -> None:
    assert switches({})["pretrain_after_refresh"] == ""
    with pytest.raises(ConfigError, match=f"{variable}={message}"):
        switches({variable: text})


def test_a_crashed_run_is_started_again_as_often_as_the_environment_says(server: Server) -> None:
    for number, counts in (("", ["1", "2", "3"]), ("1", ["1"])):
        apply_automation(server.client, NOTES, switches({"ALBERT_RESTARTS": number}))
        [made] = server.automations.values()
        assert made.trigger.model_dump()["match"]["prefect.run-count"] == counts
    assert apply_automation(server.client, NOTES, switches({"ALBERT_RESTARTS": "0"})) == (
        "albert-notes-what-to-start-again: none, without begun"
    )
    assert server.automations == {}
    awaits = NOTES["actions"][0]["name"]
    assert RESTARTS["trigger"]["after"] == [f"prefect.flow-run.{awaits}"]
