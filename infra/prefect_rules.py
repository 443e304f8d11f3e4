"""Bring a Prefect server in line with `prefect_rules.yaml`: limits of queues, automations, alerts.

``python -m infra.prefect_rules``, after ``infra.deployments``. Doing it again changes nothing.

``ALBERT_PRETRAIN_AFTER_REFRESH`` (true or false) switches pretraining after a refresh on or off;
without it, the server keeps its choice, which is off at first. ``ALBERT_RESTARTS`` says how often a
crashed run is started again: 3 times, if it is not set. ``ALBERT_ALERT_WEBHOOK`` is the address
that is told of failed runs; without it, nobody is told.
"""

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

from albert_core.stage.errors import ConfigError
from infra.services import POOL

RULES = Path(__file__).with_name("prefect_rules.yaml")
PRETRAIN_AFTER_REFRESH = "ALBERT_PRETRAIN_AFTER_REFRESH"
RESTARTS = "ALBERT_RESTARTS"
ALERT_WEBHOOK = "ALBERT_ALERT_WEBHOOK"
_ALERT_BLOCK = "albert-alerts"


def apply_rules(argv: Sequence[str] | None = None) -> int:
    """Bring the server at PREFECT_API_URL in line; return the exit status."""
    parser = argparse.ArgumentParser(description=apply_rules.__doc__)
    parser.add_argument("--pool", default=POOL, help="work pool with the queues")
    pool = parser.parse_args(argv).pool
    rules = yaml.safe_load(RULES.read_text())
    with get_client(sync_client=True) as client:
        limit_queues(client, pool, rules["queues"])
        names = {
            **deployment_ids(client, rules["queues"]),
            **switches(os.environ),
            **alert_block(os.environ),
        }
        for automation in rules["automations"]:
            print(apply_automation(client, automation, names))
    return 0


def limit_queues(client: SyncPrefectClient, pool: str, limits: Mapping[str, int]) -> None:
    """Give each queue of the pool its limit, if it has none."""
    for name, limit in limits.items():
        try:
            queue = client.read_work_queue_by_name(name, work_pool_name=pool)
        except ObjectNotFound:
            queue = client.create_work_queue(name=name, work_pool_name=pool)
        if queue.concurrency_limit is None:
            client.update_work_queue(queue.id, concurrency_limit=limit)


def deployment_ids(client: SyncPrefectClient, names: Iterable[str]) -> dict[str, str]:
    """Return the id of each deployment that is there, by its name with underscores."""
    ids = {}
    for name in names:
        try:
            deployment = client.read_deployment_by_name(f"{name}/{name}")
        except ObjectNotFound:
            continue
        ids[name.replace("-", "_")] = str(deployment.id)
    return ids


def switches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the environment switches on or off, and how often a run may begin, as YAML.

    Raises:
        ConfigError: a switch is neither true nor false, or a number is none.
    """
    text = environment.get(PRETRAIN_AFTER_REFRESH, "")
    if text not in {"", "true", "false"}:
        raise ConfigError(f"{PRETRAIN_AFTER_REFRESH}={text!r} must be true or false")
    restarts = environment.get(RESTARTS) or "3"
    if not restarts.isdecimal():
        raise ConfigError(f"{RESTARTS}={restarts!r} must be a whole number; 0 is never")
    begun = [str(number + 1) for number in range(int(restarts))]
    return {"pretrain_after_refresh": text, **({"begun": str(begun)} if begun else {})}


def alert_block(environment: Mapping[str, str]) -> dict[str, str]:
    """Store the webhook's address as a secret of the server; return the id of its block, if any."""
    address = environment.get(ALERT_WEBHOOK)
    if not address:
        return {}
    block = Webhook(url=address, headers={"Content-Type": "application/json"})
    return {"alert_webhook": str(block.save(_ALERT_BLOCK, overwrite=True))}


def apply_automation(
    client: SyncPrefectClient, automation: Mapping[str, Any], names: Mapping[str, str]
) -> str:
    """Create or update an automation, or remove it if one of its names is not known.

    Args:
        client: of the server.
        automation: as Prefect has it, with ``$names`` in its texts. Without ``enabled`` it is on
            at first; an empty ``enabled`` leaves it as it is, at first off.
        names: what the names stand for.

    Returns:
        What was done, for the log.
    """
    there = client.read_automations_by_name(automation["name"])
    template = Template(yaml.safe_dump(dict(automation)))
    unknown = set(template.get_identifiers()) - names.keys()
    for existing in there if unknown else there[1:]:
        client.delete_automation(existing.id)
    if unknown:
        return f"{automation['name']}: none, without {', '.join(sorted(unknown))}"
    filled = yaml.safe_load(template.substitute(names))
    switch = filled.pop("enabled", None)
    if switch is None:
        switch = there[0].enabled if there else "enabled" not in automation
    wanted = AutomationCore.model_validate({**filled, "enabled": switch})
    if there:
        client.update_automation(there[0].id, wanted)
    else:
        client.create_automation(wanted)
    return f"{wanted.name}: {'on' if wanted.enabled else 'off'}"
