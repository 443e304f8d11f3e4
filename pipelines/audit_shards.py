"""Stage: example shards to the findings of an auditor that did not write them."""

import logging

from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.manifest import StagePlan, read_manifest, shard_of
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import AUDIT, AuditResult

STAGE = AUDIT
FINDINGS = "findings.txt"
_MOST_BYTES = 4_000_000_000
"""Largest shards, in all, that the stage audits: the auditor reads about 30 MB a second."""

log = logging.getLogger(STAGE)


def run(examples: str, work: str) -> str:
    """Audit the examples; return the manifest of the findings. A failed check is no error."""
    plan = stage_plan(examples)
    if done := plan.find(work):
        return done
    from pipelines.audit import audit, table_of

    if sum(shard.num_bytes for shard in read_manifest(examples).shards) > _MOST_BYTES:
        log.warning("%s: more than 4 GB of shards; `albert audit %s` reads them", STAGE, examples)
        return plan.write(work, [], [], AuditResult(num_checks=0, failed=[]))
    findings = audit([examples])
    failed = [finding for finding in findings if finding.ok is False]
    for each in failed:
        log.warning("%s: %s: %s; expected %s", STAGE, each.check, each.found, each.expected)
    uri = storage.join(plan.folder(work), FINDINGS)
    storage.write_bytes(uri, f"{table_of(findings)}\n".encode())
    shard = shard_of(uri, plan.folder(work), "findings", len(findings))
    result = AuditResult(num_checks=len(findings), failed=[each.check for each in failed])
    return plan.write(work, [shard], [], result)


def stage_plan(examples: str) -> StagePlan:
    """Return what the findings depend on."""
    return StagePlan(
        stage=STAGE,
        settings={},
        inputs={"examples": read_manifest(examples).key},
        code=code_digest(__name__),
        libraries=library_versions("numpy", "pyarrow", "scipy", "sentencepiece"),
        input_manifests={"examples": examples},
    )


if __name__ == "__main__":
    stage_main(run)
