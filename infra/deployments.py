"""Make the deployments of `prefect.yaml` once; later change only what the user has not changed.

``python -m infra.deployments``, which `albert serve` and `albert production` do at each start. A
value that is on the server as it was deployed last becomes the new one; one that differs was
changed by a user and stays. Schedules and pauses are the user's once the deployment is there.
`prefect deploy` puts all of them back.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import actions
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.variables import Variable
from prefect.workers.process import ProcessWorker

from albert_core.stage.command import FAILURE, FAILURE_STATUS
from infra.services import PROJECT

DEPLOYMENTS = Path(__file__).with_name("prefect.yaml")
RECORD = "albert_deployed"
"""The Variable with what was deployed last, by the deployments' names."""
DEFAULTS = {name: f"albert_{name}" for name in ("recipe", "source", "task_folder")}
"""Parameter -> the Variable that is its default where `prefect.yaml` names the parameter."""
IMAGE_FOLDER = "/opt/prefect"
"""Where an image has the code: `infra/Dockerfile`."""
_NOT_CHOSEN = {"command", "working_dir"}
"""What a run may not choose of the process that it becomes."""
_ABSENT = object()


def main(argv: Sequence[str] | None = None) -> int:
    """Deploy to the server at PREFECT_API_URL; return the exit status."""
    deployments = yaml.safe_load(DEPLOYMENTS.read_text())["deployments"]
    names = [each["name"] for each in deployments]
    parser = argparse.ArgumentParser(prog="python -m infra.deployments", description=main.__doc__)
    parser.add_argument("--name", action="append", choices=names, help="only this; may be repeated")
    parser.add_argument("--pool", help="work pool, in any case; default: as in prefect.yaml")
    parser.add_argument("--job-variable", action="append", default=[], metavar="NAME=VALUE")
    for name in DEFAULTS:
        parser.add_argument(f"--{name.replace('_', '-')}", help="default of this parameter")
    options = parser.parse_args(argv)
    forced: dict[str, Any] = {"work_pool_name": options.pool} if options.pool else {}
    forced["job_variables"] = dict(each.split("=", 1) for each in options.job_variable)
    with get_client(sync_client=True) as client:
        if not options.pool:
            make_pools(client, {each["work_pool"]["name"] for each in deployments})
        given = {
            name: getattr(options, name) or Variable.get(variable)
            for name, variable in DEFAULTS.items()
        }
        try:
            for each in deployments:
                if each["name"] in (options.name or names):
                    print(deploy(client, each, given, forced))
        except PrefectHTTPStatusError as error:
            print(f"{FAILURE}{each['name']}: {error}", file=sys.stderr)
            return FAILURE_STATUS
    return 0


def make_pools(client: SyncPrefectClient, names: set[str]) -> None:
    """Make the work pools that are not there: of processes on the machines of their workers.

    A run says neither which command its process runs nor where: Prefect's own template lets it,
    and is replaced where a pool has it.
    """
    prefects = ProcessWorker.get_default_base_job_template()
    template = pool_template(prefects)
    there = {pool.name: pool for pool in client.read_work_pools()}
    for name in names - there.keys():
        pool = actions.WorkPoolCreate(name=name, type="process", base_job_template=template)
        client.create_work_pool(pool)
    for name in names & there.keys():
        if there[name].base_job_template == prefects:
            client.update_work_pool(name, actions.WorkPoolUpdate(base_job_template=template))


def pool_template(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template of a work pool without the variables that name a command or a folder."""
    variables, job = template["variables"], template["job_configuration"]
    properties = {n: each for n, each in variables["properties"].items() if n not in _NOT_CHOSEN}
    return {
        **template,
        "variables": {**variables, "properties": properties},
        "job_configuration": {n: each for n, each in job.items() if n not in _NOT_CHOSEN},
    }


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
        given: defaults of the parameters that the entry names; without one, it is that of before.
        forced: pool and job variables that it gets whatever the user changed.

    Raises:
        PrefectHTTPStatusError: a default is none that the flow takes, or a pool is not there.
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
    """Return what a user may change of a deployment, as Prefect's server names it.

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
    """Return the value wanted now, unless the one that is there is not the one deployed last.

    Of mappings each entry is merged by itself.

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
    folder = IMAGE_FOLDER if "image" in variables else str(PROJECT)
    pull = {"prefect.deployments.steps.set_working_directory": {"directory": folder}}
    return {**values, **forced, "job_variables": variables, "pull_steps": [pull]}


if __name__ == "__main__":
    sys.exit(main())
