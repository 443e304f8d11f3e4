"""Manifests as the stages write them, with made numbers."""

from typing import Any

from albert_core.stage.manifest import Account, Manifest
from tests.made_results import made_result

ACCOUNTS = {
    "corpus": [
        Account(what="documents", total=1000, kept=900, dropped={"too_short": 60, "duplicate": 40}),
        Account(what="source files", total=9, kept=8, dropped={"broken_link": 1}),
    ],
    "examples": [
        Account(what="documents", total=900, kept=890, dropped={"too_short": 10}),
        Account(
            what="pieces, all copies", total=2_000_000, kept=1_990_000, dropped={"overflow": 10_000}
        ),
    ],
}


def made_manifest(stage: str, **changes: Any) -> Manifest:
    """Return the manifest of ``stage``, with some fields of its result changed."""
    return Manifest(
        stage=stage,
        key="0123456789abcdef",
        settings={},
        inputs={},
        input_manifests={},
        code="",
        libraries={},
        shards=[],
        accounts=ACCOUNTS.get(stage, []),
        result=made_result(stage, **changes).model_dump(mode="json"),
    )
