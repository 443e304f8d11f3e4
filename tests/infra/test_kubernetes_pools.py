"""The jobs that Prefect makes of the pools' templates, against the schemas of Kubernetes."""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
from prefect.client.schemas.objects import Flow, FlowRun, WorkPool

PROJECT = Path(__file__).parents[2]
KUBERNETES = PROJECT / "infra" / "kubernetes"
IMAGE = "registry.example.org/albert/trainer:0.2.0"
POOLS = ["cpu", "gpu"]
VERSIONS = ["1.29", "1.33", "1.37"]
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


def template(pool: str) -> dict[str, Any]:
    return json.loads((KUBERNETES / f"{pool}_pool.json").read_text())  # type: ignore[no-any-return]


def rendered(pool: str, **variables: Any) -> dict[str, Any]:
    """Return the job that Prefect's worker would send to the cluster."""
    worker = pytest.importorskip("prefect_kubernetes.worker", reason="extra kubernetes")
    given = {"image": IMAGE, **variables}
    base = template(pool)
    jsonschema.validate(given, base["variables"])  # as Prefect's server does
    configuration = asyncio.run(
        worker.KubernetesWorkerJobConfiguration.from_template_and_values(base, given)
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


def environment_of(job: dict[str, Any]) -> dict[str, str]:
    [container] = pod_of(job)["containers"]
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names))
    return {entry["name"]: entry["value"] for entry in container["env"]}


def validate(resource: dict[str, Any], version: str) -> None:
    """Raise unless Kubernetes of this version knows every field of the resource."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="extra dev")
    kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("variables", VARIABLES.values(), ids=list(VARIABLES))
@pytest.mark.parametrize("pool", POOLS)
def test_kubernetes_knows_every_field_of_a_job(
    pool: str, variables: dict[str, Any], version: str
) -> None:
    job = rendered(pool, **variables)
    pod = pod_of(job)
    # Prefect refuses a template without these two, and Kubernetes drops them: they are a job's.
    assert (pod.pop("parallelism"), pod.pop("completions")) == (1, 1)
    validate(job, version)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    pytest.importorskip("kubernetes_validate", reason="extra dev")
    job = rendered("cpu")
    with pytest.raises(Exception, match="parallelism"):
        validate(job, VERSIONS[-1])


@pytest.mark.parametrize("pool", POOLS)
def test_nothing_of_the_template_is_left_unfilled(pool: str) -> None:
    assert "{{" not in json.dumps(rendered(pool))


@pytest.mark.parametrize("pool", POOLS)
def test_a_job_runs_the_flow_in_the_image_without_rights(pool: str) -> None:
    pod = pod_of(rendered(pool))
    [container] = pod["containers"]
    assert container["image"] == IMAGE
    assert container["args"] == ["prefect", "flow-run", "execute"]
    assert "command" not in container  # the image's entry point stays
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("pool", POOLS)
def test_an_evicted_job_has_time_to_save_and_is_scheduled_anew_by_prefect_alone(pool: str) -> None:
    job = rendered(pool, env=HEARTBEAT)
    assert job["spec"]["backoffLimit"] == 0
    assert pod_of(job)["restartPolicy"] == "Never"
    assert pod_of(job)["terminationGracePeriodSeconds"] >= 120
    assert job["spec"]["ttlSecondsAfterFinished"] == 86400
    environment = environment_of(job)
    assert environment["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"] == "reschedule"
    assert environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"


def test_a_grace_of_less_than_two_minutes_is_refused() -> None:
    with pytest.raises(jsonschema.ValidationError, match="less than the minimum of 120"):
        rendered("gpu", grace_seconds=30)


@pytest.mark.parametrize("gpus", ["1", "8"])
def test_as_many_ranks_train_as_the_job_has_gpus(gpus: str) -> None:
    job = rendered("gpu", gpus=gpus)
    pod = pod_of(job)
    [container] = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert environment_of(job)["ALBERT_TRAINING_PROCESSES"] == gpus
    assert environment_of(job)["ALBERT_FINETUNING_PROCESSES"] == gpus
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


def test_a_gpu_job_has_shared_memory_of_its_own() -> None:
    pod = pod_of(rendered("gpu", shm_size="32Gi"))
    [container] = pod["containers"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}} in pod["volumes"]


def test_a_cpu_job_asks_for_no_gpu() -> None:
    assert "nvidia" not in json.dumps(rendered("cpu"))


@pytest.mark.parametrize("pool", POOLS)
def test_passwords_come_from_a_secret_and_not_from_the_job(pool: str) -> None:
    [container] = pod_of(rendered(pool, secret="team-a"))["containers"]
    assert {"secretRef": {"name": "team-a", "optional": True}} in container["envFrom"]
    assert {"configMapRef": {"name": "albert"}} in container["envFrom"]


def test_the_templates_differ_only_in_what_a_gpu_needs() -> None:
    cpu, gpu = (copy.deepcopy(template(pool)["job_configuration"]) for pool in POOLS)
    pod = pod_of(gpu["job_manifest"])
    [container] = pod["containers"]
    del container["env"], container["resources"]["limits"]["nvidia.com/gpu"]
    container["volumeMounts"].remove({"name": "shm", "mountPath": "/dev/shm"})
    pod["volumes"].pop()
    assert gpu == cpu
