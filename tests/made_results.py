"""What each stage tells in its manifest, with made numbers."""

import json
from pathlib import Path
from typing import Any

from albert_core.stage import results
from albert_core.stage.manifest import sealed, unsealed
from albert_core.stage.settings import Settings

_LOSS, _ACCURACY, _ORDER = "masked_lm_loss", "masked_lm_accuracy", "sentence_order_accuracy"
_PAIR_SCORES = {
    name: results.PairScore(
        accuracy=results.Estimate(value=value, low=value - 0.05, high=value + 0.05), num_pairs=50
    )
    for name, value in (("word_order", 0.75), ("articles", 0.51))
}
_PAIRS = results.PairSetScores(
    accuracy=results.Estimate(value=0.63, low=0.58, high=0.68),
    num_pairs=100,
    phenomena=_PAIR_SCORES,
    paradigms=_PAIR_SCORES,
)
_MACHINE = results.Machine(ranks=1, threads=2, device="cpu", vectors="AVX2")

RESULTS: dict[str, Settings] = {
    "corpus": results.CorpusResult(
        source="notes/**",
        num_documents=900,
        num_source_files=12,
        text_bytes=3_500_000,
        num_sentences_cut=0,
    ),
    "vocab": results.VocabularyResult(
        vocab_size=4000,
        lower_case=True,
        trained=True,
        sample_share=0.5,
        pieces_per_word=1.5,
        unknown_piece_share=0.001,
    ),
    "examples": results.ExamplesResult(
        objective="sop",
        fidelity="paper",
        max_seq_length=64,
        max_predictions=10,
        num_documents_held_out=30,
        num_train=30_000,
        num_held_out=1_000,
        num_pieces_borrowed=0,
        num_pairs_without_other_document=0,
        num_predictions=280_000,
        swapped_share=0.5,
        padding_share=0.0625,
        unigram_nats=6.5,
        length_only_accuracy=0.5,
        vocab_size=4000,
    ),
    "audit": results.AuditResult(num_checks=53, failed=["shuffle"]),
    "task": results.TaskResult(
        num_pairs={"be_dropped": 50},
        num_rows={"train": 900, "dev": 100},
        sources=["a", "b"],
        word_accuracy=0.75,
    ),
    "contamination": results.ContaminationResult(
        ngram_words=13,
        shares={"cola": {"dev": 0.25}},
        num_judged={"cola": {"dev": 250}},
        parts={"cola": {"dev": {}}},
        num_examples={"cola": {"dev": 1000}},
    ),
    "pretraining": results.PretrainingResult(
        model_folder="model",
        machines=[_MACHINE],
        mlflow_run_id="0",
        step=1200,
        num_parameters=500_000,
        objective="sop",
        evaluations=[{"step": 1200, _LOSS: 5.75}],
        skipped_steps={"not_finite": 0},
        unigram_nats=6.5,
        length_only_accuracy=0.5,
        before={
            _LOSS: results.Estimate(value=8.3, low=8.2, high=8.4),
            _ACCURACY: results.Estimate(value=0.001, low=0.0, high=0.002),
            _ORDER: results.Estimate(value=0.5, low=0.47, high=0.53),
            "minimal_pairs_accuracy": results.Estimate(value=0.5, low=0.45, high=0.55),
        },
        after={
            _LOSS: results.Estimate(value=5.75, low=5.7, high=5.8),
            _ACCURACY: results.Estimate(value=0.15, low=0.14, high=0.16),
            _ORDER: results.Estimate(value=0.51, low=0.48, high=0.54),
            "minimal_pairs_accuracy": results.Estimate(value=0.6, low=0.55, high=0.65),
        },
        settings={},
    ),
    "finetuning": results.FinetuningResult(
        model_folder="model",
        machines=[_MACHINE],
        mlflow_run_id="0",
        task="cola",
        title="CoLA",
        kind="classification",
        seed=1,
        metric="matthews",
        scores={
            "matthews": results.Estimate(value=0.125, low=0.0625, high=0.1875),
            "accuracy": results.Estimate(value=0.5625, low=0.5, high=0.625),
        },
        jackknife="jackknife.arrow",
        num_clusters=1000,
        num_choices=3,
        other_scores={},
        constant_scores={"matthews": 0.0, "accuracy": 0.5},
        found={"dev": {}},
        hyperparameters={},
        best_step=40,
        num_steps=60,
        num_train=900,
        num_examples=1000,
        predictions={"dev": "dev.arrow"},
    ),
    "zero-shot": results.ZeroShotResult(sets={"generated": _PAIRS}),
    "scores": results.ScoresResult(
        model="albert-tiny",
        average=None,
        scores={"cola": {"matthews": 0.125, "accuracy": 0.5625}},
        tasks={
            "cola": results.TaskScoresResult(
                title="CoLA",
                num_examples=1000,
                num_train=900,
                dev_overlap=None,
                dev_judged=None,
                metrics={
                    "matthews": results.MetricResult(
                        median=results.Estimate(value=0.125, low=0.0625, high=0.1875),
                        by_seed={"1": 0.1, "2": 0.125, "3": 0.2},
                        constant_answer=0.0,
                    ),
                    "accuracy": results.MetricResult(
                        median=results.Estimate(value=0.5625, low=0.5, high=0.625),
                        by_seed={"1": 0.55, "2": 0.5625, "3": 0.57},
                        constant_answer=0.5,
                    ),
                },
            )
        },
        minimal_pairs={"generated": _PAIRS},
        text="the table",
        page="scores.html",
        mlflow_run_id="0",
    ),
    "registration": results.RegistrationResult(
        name="albert-tiny",
        version="3",
        alias="champion",
        verdict="promoted",
        reason="better than the champion",
        difference=0.025,
        lower_bound=0.005,
        tasks=(
            results.TaskDifference(
                task="cola",
                candidate=0.125,
                champion=0.1,
                difference=0.025,
                low=0.005,
                high=0.045,
                num_clusters=1000,
                best=0.1,
                fell=False,
            ),
        ),
        against="2",
        model_uri="models:/albert-tiny/3",
        mlflow_run_id="0",
    ),
}
"""Stage -> result."""


def made_result(stage: str, **changes: Any) -> Settings:
    """Return the result of a stage with some fields changed, given as JSON values."""
    made = RESULTS[stage]
    return type(made).model_validate_json(json.dumps(made.model_dump() | changes))


def replace_in_manifest(path: Path, old: str, new: str) -> None:
    """Replace a text in a manifest, as if its stage had written it so."""
    content = json.dumps(unsealed(str(path)), ensure_ascii=False).replace(old, new)
    path.write_bytes(sealed(json.loads(content)))
