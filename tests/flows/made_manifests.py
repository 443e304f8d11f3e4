"""Manifests as the stages write them, with made numbers."""

from typing import Any

from albert_core.stage.manifest import Account, Manifest

LOSS = "masked_lm_loss"

FACTS: dict[str, dict[str, Any]] = {
    "corpus": {"num_source_files": 12, "text_bytes": 3_500_000},
    "vocab": {"vocab_size": 4000, "lower_case": True},
    "examples": {
        "max_seq_length": 64,
        "max_predictions": 10,
        "num_train": 30_000,
        "num_held_out": 1_000,
        "unigram_nats": 6.5,
        "padding_share": 0.0625,
        "vocab_manifest": "",
    },
    "task": {},
    "pretraining": {
        "step": 1200,
        "model_folder": "model",
        "num_parameters": 500_000,
        "unigram_nats": 6.5,
        "mlflow_run_id": "0",
        "before": {
            LOSS: {"value": 8.3, "low": 8.2, "high": 8.4},
            "masked_lm_accuracy": {"value": 0.001, "low": 0.0, "high": 0.002},
            "sentence_order_accuracy": {"value": 0.5, "low": 0.47, "high": 0.53},
        },
        "after": {
            LOSS: {"value": 5.75, "low": 5.7, "high": 5.8},
            "masked_lm_accuracy": {"value": 0.15, "low": 0.14, "high": 0.16},
            "sentence_order_accuracy": {"value": 0.51, "low": 0.48, "high": 0.54},
        },
    },
    "finetuning": {
        "task": "cola",
        "metric": "matthews",
        "score": 0.125,
        "interval": [0.0625, 0.1875],
        "scores": {"matthews": 0.125, "accuracy": 0.5625},
        "num_examples": 1000,
    },
    "scores": {
        "tasks": {
            "cola": {
                "metrics": {
                    "matthews": {
                        "median": 0.125,
                        "interval": [0.0625, 0.1875],
                        "by_seed": {"1": 0.1, "2": 0.125, "3": 0.2},
                    },
                    "accuracy": {
                        "median": 0.5625,
                        "interval": [0.5, 0.625],
                        "by_seed": {"1": 0.55, "2": 0.5625, "3": 0.57},
                    },
                }
            }
        }
    },
    "registration": {
        "name": "albert-tiny",
        "version": "3",
        "alias": "champion",
        "verdict": "promoted",
        "reason": "better than the champion",
        "against": "2",
        "tasks": [
            {
                "task": "cola",
                "candidate": 0.125,
                "champion": 0.1,
                "difference": 0.025,
                "low": 0.005,
                "high": 0.045,
            }
        ],
        "model_uri": "models:/albert-tiny/3",
    },
}

ACCOUNTS = {
    "corpus": [
        Account(what="documents", total=1000, kept=900, dropped={"too_short": 60, "duplicate": 40})
    ],
    "examples": [
        Account(what="documents", total=900, kept=890, dropped={"too_short": 10}),
        Account(
            what="pieces, all copies", total=2_000_000, kept=1_990_000, dropped={"overflow": 10_000}
        ),
    ],
}


def made_manifest(stage: str, facts: dict[str, Any] | None = None) -> Manifest:
    """Return the manifest of ``stage``, with some facts changed."""
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
        facts=FACTS[stage] | (facts or {}),
    )
