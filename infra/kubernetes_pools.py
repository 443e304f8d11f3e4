"""The base job templates of the Kubernetes work pools: Prefect's own, with a patch.

``python -m infra.kubernetes_pools gpu`` prints one, for ``prefect work-pool create``.
"""

from pathlib import Path
from typing import Any

import yaml
from prefect_kubernetes.worker import KubernetesWorker

PATCHES = Path(__file__).with_name("kubernetes") / "pools.yaml"


def base_job_template(pool: str) -> dict[str, Any]:
    """Return the template of albert-``pool``, where the pool is cpu or gpu."""
    patches = yaml.safe_load(PATCHES.read_text())
    template = _patched(KubernetesWorker.get_default_base_job_template(), patches["both"])
    return _patched(template, patches[pool])


def _patched(target: object, patch: dict[str, Any]) -> dict[str, Any]:
    """Return ``target`` after a JSON merge patch (RFC 7386)."""
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _patched(result.get(key), value) if isinstance(value, dict) else value
    return result
