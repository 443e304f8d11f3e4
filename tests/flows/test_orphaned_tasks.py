from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.context import TaskRunContext
from prefect.states import Crashed, Running

from flows.flow_options import end_orphaned_tasks


@task
def ran() -> UUID:
    context = TaskRunContext.get()
    assert context is not None
    return context.task_run.id


@flow(name="pretrain-albert")
def killed() -> UUID:
    return ran()


@flow(name="another-project")
def foreign() -> UUID:
    return ran()


@flow(name="refresh-corpus", on_running=[end_orphaned_tasks])
def next_one() -> UUID:
    return ran()


@pytest.mark.usefixtures("prefect_server")
def test_the_next_run_ends_the_tasks_of_a_killed_one() -> None:
    orphans: list[UUID] = []
    with get_client(sync_client=True) as client:
        for one in (killed, foreign):
            state = one(return_state=True)
            orphans.append(state.result())
            assert state.state_details.flow_run_id is not None
            client.set_flow_run_state(state.state_details.flow_run_id, Crashed(), force=True)
            client.set_task_run_state(orphans[-1], Running(), force=True)
            assert client.read_task_run(orphans[-1]).state_type == "RUNNING"
        own = next_one()
        states = [client.read_task_run(orphan).state_type for orphan in orphans]
        assert states == ["CRASHED", "RUNNING"]
        assert client.read_task_run(own).state_type != "CRASHED"
