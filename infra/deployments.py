"""Bring a Prefect server in line with `prefect.yaml`, and with `prefect_rules.yaml` if asked to.

``python -m infra.deployments``; with ``--rules``, `albert serve` and `albert production` run it at
each start.

A deployment is made once. Later, a value that is on the server as it was deployed last becomes the
new one; one that differs was changed by a user and stays. Schedules and pauses are the user's once
the deployment is there. `prefect deploy` puts all of them back.

The rules are limits of queues, automations and alerts; applying them again changes nothing.
``ALBERT_PRETRAIN_AFTER_REFRESH`` (true or false) switches pretraining after a refresh on or off;
without it, the server keeps its choice, which is off at first. ``ALBERT_RESTARTS`` says how often a
crashed run is restarted; the default is 3. ``ALBERT_ALERT_WEBHOOK`` is the address to which failed
runs are reported; without it, they are not reported.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml
from prefect import Flow
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import actions, filters
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL
from prefect.utilities.callables import parameter_schema
from prefect.variables import Variable
from prefect.workers.process import ProcessWorker

from albert_core.stage.command import tell_failure
from albert_core.stage.errors import ConfigError, OutageError, is_transient
from albert_core.stage.settings import refuse_credentials
from infra.serve import PROJECT

DEPLOYMENTS = Path(__file__).with_name("prefect.yaml")
RULES = Path(__file__).with_name("prefect_rules.yaml")
KUBERNETES_PATCHES = Path(__file__).with_name("kubernetes") / "pools.yaml"
RECORD = "albert_deployed"
"""The Variable with what was deployed last, by the deployments' names."""
DEFAULTS = {name: f"albert_{name}" for name in ("recipe", "source", "task_folder")}
"""Parameter -> the Variable that is its default where `prefect.yaml` names the parameter."""
PULL_STEPS: list[dict[str, Any]] = [{"infra.deployments.code_folder": {}}]
"""What a worker does before it loads a flow."""
PRETRAIN_AFTER_REFRESH = "ALBERT_PRETRAIN_AFTER_REFRESH"
RESTARTS = "ALBERT_RESTARTS"
PROCESS_PATCH = {
    "variables": {"properties": {"command": None, "working_dir": None}},
    "job_configuration": {"command": None, "working_dir": None},
}
"""Patch of a process pool's template: a run chooses neither the command nor the folder of its
process, as Prefect's own template lets it."""
_ABSENT = object()


def main(argv: Sequence[str] | None = None) -> int:
    """Deploy to the server at PREFECT_API_URL; return the exit status, as that of a stage."""
    deployments = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]
    names = [each["name"] for each in deployments]
    parser = argparse.ArgumentParser(prog="python -m infra.deployments", description=main.__doc__)
    parser.add_argument("--name", action="append", choices=names, help="only this; may be repeated")
    parser.add_argument("--pool", help="work pool, in any case; default: as in prefect.yaml")
    parser.add_argument(
        "--kubernetes",
        choices=("cpu", "gpu"),
        help="make the work pool albert-cpu or albert-gpu, or bring it up to date; it is --pool",
    )
    parser.add_argument(
        "--job-variable", action="append", default=[], metavar="NAME=VALUE", type=_name_and_value
    )
    parser.add_argument("--rules", action="store_true", help="apply prefect_rules.yaml to the pool")
    for name in DEFAULTS:
        parser.add_argument(f"--{name.replace('_', '-')}", help="default of this parameter")
    options = parser.parse_args(argv)
    try:
        with get_client(sync_client=True) as client:
            _deploy_all(client, deployments, options)
    except Exception as error:  # noqa: BLE001 - a bug is raised again
        if not is_transient(error):
            return tell_failure(error)
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        return tell_failure(
            OutageError(
                f"no Prefect server answers at {PREFECT_API_URL.value()} ({said}). Start it, or "
                "give PREFECT_API_URL, the address of one that runs."
            )
        )
    return 0


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    return name, value


def _deploy_all(
    client: SyncPrefectClient, deployments: Sequence[Any], options: argparse.Namespace
) -> None:
    """Make the pools, deploy, and apply the rules, as far as the options ask for it.

    Raises:
        ConfigError: a default, a variable or a pool is impossible.
    """
    pool = f"albert-{options.kubernetes}" if options.kubernetes else options.pool
    forced: dict[str, Any] = {"work_pool_name": pool} if pool else {}
    forced["job_variables"] = dict(options.job_variable)
    if options.kubernetes:
        template = kubernetes_template(options.kubernetes)
        client.create_work_pool(_new_pool(pool, "kubernetes", template), overwrite=True)
    elif not pool:
        make_pools(client, {each["work_pool"]["name"] for each in deployments})
    given = {
        name: getattr(options, name) or Variable.get(variable)
        for name, variable in DEFAULTS.items()
    }
    where = "defaults"
    try:
        refuse_credentials(given, where)
        for each in deployments:
            where = each["name"]
            if not options.name or where in options.name:
                print(deploy(client, each, given, forced))
        where = RULES.name
        if options.rules:
            apply_rules(client, pool or deployments[0]["work_pool"]["name"])
    except (PrefectHTTPStatusError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from error


def make_pools(client: SyncPrefectClient, names: set[str]) -> None:
    """Make the work pools that are not there: of processes on the machines of their workers.

    A pool with Prefect's own template, which lets a run choose its command, is brought up to date.
    """
    prefects = ProcessWorker.get_default_base_job_template()
    template = patched(prefects, PROCESS_PATCH)
    there = {pool.name: pool for pool in client.read_work_pools()}
    for name in names - there.keys():
        client.create_work_pool(_new_pool(name, "process", template))
    for name in names & there.keys():
        if there[name].base_job_template == prefects:
            client.update_work_pool(name, actions.WorkPoolUpdate(base_job_template=template))


def _new_pool(name: str, kind: str, template: dict[str, Any]) -> actions.WorkPoolCreate:
    return actions.WorkPoolCreate(name=name, type=kind, base_job_template=template)


def kubernetes_template(kind: str) -> dict[str, Any]:
    """Return Prefect's template of a Kubernetes pool with our patches for ``kind``: cpu or gpu."""
    from prefect_kubernetes.worker import KubernetesWorker  # the extra `kubernetes`

    patches = yaml.safe_load(KUBERNETES_PATCHES.read_text())
    of_both = patched(KubernetesWorker.get_default_base_job_template(), patches["both"])
    return patched(of_both, patches[kind])


def patched(target: object, patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``target`` after a JSON merge patch (RFC 7386)."""
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), value) if isinstance(value, dict) else value
    return result


def deploy(
    client: SyncPrefectClient,
    entry: Mapping[str, Any],
    given: Mapping[str, str | None],
    forced: Mapping[str, Any],
) -> str:
    """Make the deployment, or bring it up to date; return what was done, for the log.

    Args:
        client: of the server.
        entry: the deployment in `prefect.yaml`.
        given: defaults of the parameters that the entry names; a missing one stays as it was.
        forced: pool and job variables that it gets whatever the user changed.

    Raises:
        PrefectHTTPStatusError: the flow does not take a default, or the pool is not there.
    """
    flow: Flow[..., Any] = load_flow_from_entrypoint(str(PROJECT / entry["entrypoint"]))
    of_code = {
        "entrypoint": entry["entrypoint"],
        "parameter_openapi_schema": parameter_schema(flow).model_dump(exclude_unset=True),
    }
    name = entry["name"]
    deployed: dict[str, Any] = Variable.get(RECORD, default={})
    last = deployed.get(name) or wanted_of(entry, {})
    before = last["parameters"]
    wanted = wanted_of(entry, {key: value or before.get(key) for key, value in given.items()})
    try:
        there = client.read_deployment_by_name(f"{flow.name}/{name}")
    except ObjectNotFound:
        schedules = [
            actions.DeploymentScheduleCreate(schedule=CronSchedule(**each))
            for each in entry.get("schedules", [])
        ]
        made = {**of_code, **_with(wanted, forced)}
        client.create_deployment(client.create_flow(flow), name, schedules=schedules, **made)
        done = "made"
    else:
        now = there.model_dump(mode="json", include=set(wanted), exclude_none=True)
        kept = merged(last, {**last, **now}, wanted)
        update = actions.DeploymentUpdate.model_validate({**of_code, **_with(kept, forced)})
        users = ", ".join(field for field in wanted if kept[field] != wanted[field])
        try:
            client.update_deployment(there.id, update)
        except PrefectHTTPStatusError as error:
            if not users:
                raise
            return f"{name}: left as it is, because of what was changed, {users}: {error}"
        done = f"up to date, but for what was changed: {users}" if users else "up to date"
    Variable.set(RECORD, {**deployed, name: wanted}, overwrite=True)
    return f"{name}: {done}"


def wanted_of(entry: Mapping[str, Any], given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what a user may change of a deployment, under the names of Prefect's server.

    Args:
        entry: the deployment in `prefect.yaml`.
        given: defaults of the parameters that the entry names.
    """
    pool = entry["work_pool"]
    parameters = {name: given.get(name) or value for name, value in entry["parameters"].items()}
    return {
        "description": entry["description"],
        "tags": entry["tags"],
        "parameters": {name: value for name, value in parameters.items() if value is not None},
        "job_variables": pool["job_variables"],
        "work_pool_name": pool["name"],
        "work_queue_name": pool["work_queue_name"],
    }


def merged(last: Any, there: Any, wanted: Any) -> Any:
    """Return the value wanted now, unless the one on the server is not the one deployed last.

    The entries of mappings are merged one by one.

    >>> merged({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 3, "b": 3})
    {'a': 2, 'b': 3}
    """
    if not all(isinstance(each, Mapping) for each in (last, there, wanted)):
        return wanted if there == last else there
    entries = {
        name: merged(*(each.get(name, _ABSENT) for each in (last, there, wanted)))
        for name in {**wanted, **there}
    }
    return {name: value for name, value in entries.items() if value is not _ABSENT}


def _with(values: Mapping[str, Any], forced: Mapping[str, Any]) -> dict[str, Any]:
    variables = {**values["job_variables"], **forced["job_variables"]}
    return {**values, **forced, "job_variables": variables, "pull_steps": PULL_STEPS}


def code_folder() -> dict[str, str]:
    """Return the folder of the code on the worker's machine; Prefect changes to it."""
    return {"directory": str(PROJECT)}


def apply_rules(client: SyncPrefectClient, pool: str) -> None:
    """Apply `prefect_rules.yaml`: give the pool's queues their limits, and make the automations.

    Raises:
        ConfigError: see `switches`.
    """
    rules = yaml.safe_load(RULES.read_text())
    names = switches(os.environ) | alert_block(os.environ)
    limit_queues(client, pool, rules["queues"])
    names |= deployment_ids(client, rules["queues"])
    for automation in rules["automations"]:
        print(apply_automation(client, automation, names))


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
    wanted = filters.DeploymentFilter.model_validate({"name": {"any_": list(names)}})
    found = client.read_deployments(deployment_filter=wanted)
    return {each.name.replace("-", "_"): str(each.id) for each in found}


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
    address = environment.get("ALBERT_ALERT_WEBHOOK")
    if not address:
        return {}
    block = Webhook(url=address, headers={"Content-Type": "application/json"})
    return {"alert_webhook": str(block.save("albert-alerts", overwrite=True))}


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
    if not there:
        client.create_automation(wanted)
    elif there[0].model_dump(exclude={"id"}) != wanted.model_dump():
        # Only then: the rule forgets which runs it waits for, of which one might never end.
        client.update_automation(there[0].id, wanted)
    return f"{wanted.name}: {'on' if wanted.enabled else 'off'}"


if __name__ == "__main__":
    sys.exit(main())
