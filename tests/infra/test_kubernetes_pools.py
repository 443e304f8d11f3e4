"""The jobs that Prefect makes from the pools' templates, against the schemas of Kubernetes."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import jsonschema
import kubernetes_validate
import pytest
from prefect.client.schemas.objects import Flow, FlowRun, WorkPool

from infra.deployments import kubernetes_template

IMAGE = "registry.example.org/albert/trainer:0.2.0"
VERSIONS = ("1.29", "1.33", "1.37")
HEARTBEAT = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
VARIABLES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "what prefect.yaml sets": {"stream_output": False, "env": HEARTBEAT},
    "an account, a secret, preemptible nodes": {
        "service_account_name": "trainer",
        "secret": "team-a",
        "namespace": "team-a",
        "node_selector": {"cloud.google.com/gke-spot": "true"},
        "tolerations": [{"key": "cloud.google.com/gke-spot", "operator": "Exists"}],
        "memory_limit": "200Gi",
        "grace_seconds": 600,
        "labels": {"team": "a"},
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    },
}
both_pools = pytest.mark.parametrize("pool", ["cpu", "gpu"])


def rendered(pool: str, **variables: Any) -> dict[str, Any]:
    """Return the job that Prefect's worker would send to the cluster."""
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration  # slow to import

    given = {"image": IMAGE, **variables}
    base = kubernetes_template(pool)
    jsonschema.validate(given, base["variables"])  # as Prefect's server does
    configuration = asyncio.run(
        KubernetesWorkerJobConfiguration.from_template_and_values(base, given)
    )
    run = FlowRun(id=uuid4(), name="loud-toad", flow_id=uuid4())
    configuration.prepare_for_flow_run(
        flow_run=run,
        flow=Flow(id=run.flow_id, name="pretrain-albert", labels={}),
        work_pool=WorkPool(
            name=f"albert-{pool}",
            type="kubernetes",
            base_job_template=base,
            default_queue_id=uuid4(),
        ),
        worker_name="worker",
    )
    job = configuration.job_manifest
    assert isinstance(job, dict)
    return job


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    [container] = pod_of(job)["containers"]
    return dict(container)


def environment_of(job: dict[str, Any]) -> dict[str, str]:
    entries = container_of(job)["env"]
    environment = {entry["name"]: entry["value"] for entry in entries}
    assert len(environment) == len(entries)
    return environment


@pytest.mark.parametrize("variables", VARIABLES.values(), ids=list(VARIABLES))
@both_pools
def test_kubernetes_knows_every_field_of_a_job(pool: str, variables: dict[str, Any]) -> None:
    job = rendered(pool, **variables)
    assert "{{" not in json.dumps(job)
    # Prefect refuses a template without these two, and Kubernetes drops them: they are a job's.
    with pytest.raises(kubernetes_validate.ValidationError, match="parallelism"):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)
    pod = pod_of(job)
    assert (pod.pop("parallelism"), pod.pop("completions")) == (1, 1)
    for version in VERSIONS:
        kubernetes_validate.validate(job, version, strict=True)


@both_pools
def test_a_job_runs_the_flow_in_the_image_without_rights(pool: str) -> None:
    job = rendered(pool, command="touch /tmp/evil")
    pod, container = pod_of(job), container_of(job)
    assert job["metadata"]["namespace"] == "albert"
    assert pod["serviceAccountName"] == "albert-job"
    assert container["image"] == IMAGE
    assert container["args"] == ["prefect", "flow-run", "execute"]
    assert "command" not in container  # the image's entry point stays
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False


@both_pools
def test_an_evicted_job_has_time_to_save_and_only_prefect_schedules_it_again(pool: str) -> None:
    job = rendered(pool, env=HEARTBEAT)
    assert job["spec"]["backoffLimit"] == 0
    assert pod_of(job)["restartPolicy"] == "Never"
    assert pod_of(job)["terminationGracePeriodSeconds"] >= 120
    assert job["spec"]["ttlSecondsAfterFinished"] == 86400
    environment = environment_of(job)
    assert environment["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"] == "reschedule"
    assert environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
    job = rendered(pool, env=HEARTBEAT, grace_seconds=600)
    assert pod_of(job)["terminationGracePeriodSeconds"] == 600
    assert int(environment_of(job)["ALBERT_STOP_SECONDS"]) == 600


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"grace_seconds": 30}, "less than the minimum of 120"),
        ({"image": None}, "None is not of type 'string'"),
        ({"gpus": "0"}, "does not match"),
        ({"workers": "0"}, "does not match"),
    ],
)
def test_variables_that_no_job_could_run_with_are_refused(
    variables: dict[str, Any], message: str
) -> None:
    with pytest.raises(jsonschema.ValidationError, match=message):
        rendered("gpu", **variables)


@pytest.mark.parametrize("gpus", ["1", "8"])
def test_a_job_has_as_many_gpus_as_asked_for(gpus: str) -> None:
    job = rendered("gpu", gpus=gpus)
    pod = pod_of(job)
    assert container_of(job)["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": gpus}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


@both_pools
def test_a_text_stage_has_a_worker_for_each_reserved_core_and_not_for_each_of_the_node(
    pool: str,
) -> None:
    job = rendered(pool)
    cores = container_of(job)["resources"]["requests"]["cpu"]
    assert environment_of(job)["ALBERT_WORKERS"] == cores
    assert environment_of(rendered(pool, workers="16"))["ALBERT_WORKERS"] == "16"


def test_a_cpu_job_asks_for_no_gpu() -> None:
    assert "nvidia" not in json.dumps(rendered("cpu"))


@both_pools
def test_passwords_come_from_a_secret_and_not_from_the_job(pool: str) -> None:
    sources = container_of(rendered(pool, secret="team-a"))["envFrom"]
    assert sources == [
        {"configMapRef": {"name": "albert"}},
        {"secretRef": {"name": "team-a", "optional": True}},
    ]
