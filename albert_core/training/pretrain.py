"""Stage: examples -> a pretrained model, resumable to the bit.

Start several ranks with ``python -m albert_core.training.launcher
--standalone --nproc-per-node N -m albert_core.training.pretrain ...``: torchrun, whose status says
whether to run again.

A run that gets SIGTERM does its update, saves a checkpoint and ends with status 75.
"""

import os
from typing import Any

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.environment import TRAINING_PROCESSES, whole_number
from albert_core.stage.errors import ConfigError
from albert_core.stage.lineage import PRETRAINING
from albert_core.stage.manifest import MANIFEST, StagePlan, read_manifest
from albert_core.stage.provenance import RANKS, code_digest, library_versions, machine
from albert_core.training.preemption import ending_when_told_to
from albert_core.training.start import StartingPoint, earlier_results, find_starting_point

STAGE = PRETRAINING


def run(model: ModelSettings, training: TrainingSettings, examples: str, work: str) -> str:
    """Pretrain a model on the examples; return the manifest with its folder and scores.

    A run that was killed goes on from its newest checkpoint, also with other settings of
    `TrainingSettings.HOW_NOT_WHAT` and another number of ranks: no example is lost or repeated.
    With dropout, which draws for each micro-batch, another cut into ranks and micro-batches is
    another run, which ``continue_from`` can begin where the first one was. A run that differs in
    `TrainingSettings.MEASURE` alone from a finished one takes over its last checkpoint.

    Raises:
        ConfigError: the examples are longer than the model's positions, the batch is smaller than
            the number of ranks, or there is nothing at ``continue_from`` or ``initial_model``.
        IntegrityError: a shard is not the one that was written.
        TrainingError: too many updates in a row were skipped, a checkpoint could not be written,
            or ``continue_from`` is of other examples.
        RunAgain: SIGTERM came, or another rank is gone. No error: the process's exit.
    """
    manifest = read_manifest(examples)
    start = find_starting_point(training, model, manifest)
    plan = _plan(model, training, examples, start, int(machine(os.environ)[RANKS]))
    if done := plan.find(work):
        return done
    if manifest.facts["max_seq_length"] > model.max_position_embeddings:
        raise ConfigError(
            f"examples have up to {manifest.facts['max_seq_length']} pieces, but "
            f"model.max_position_embeddings is {model.max_position_embeddings}. Raise it, or "
            "lower examples.max_seq_length."
        )
    from albert_core.training.pretraining import pretrain

    pretrain(plan, work, model, training, examples, start)
    return storage.join(plan.folder(work), MANIFEST)


def find_done(
    model: ModelSettings, training: TrainingSettings, examples: str, work: str
) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    start = find_starting_point(training, model, read_manifest(examples))
    num_ranks = whole_number(TRAINING_PROCESSES, 1)
    return _plan(model, training, examples, start, num_ranks).done(work)


def _plan(
    model: ModelSettings,
    training: TrainingSettings,
    examples: str,
    start: StartingPoint,
    num_ranks: int,
) -> StagePlan:
    manifest = read_manifest(examples)
    return StagePlan(
        stage=STAGE,
        settings={
            "model": model.model_dump(),
            "training": training.of_result,
            **_cut(model, training, num_ranks),
        },
        inputs={
            "examples": manifest.content,
            "vocab": manifest.inputs["vocab"],
            **start.inputs,
        },
        code=code_digest(__name__),
        libraries=library_versions("torch"),
        input_manifests={
            "examples": examples,
            "vocab": manifest.facts["vocab_manifest"],
            **earlier_results(training),
        },
    )


def _cut(model: ModelSettings, training: TrainingSettings, num_ranks: int) -> dict[str, Any]:
    """Return what dropout's draws depend on beside the seed; nothing without dropout."""
    if not model.hidden_dropout_prob and not model.attention_probs_dropout_prob:
        return {}
    cut = {
        RANKS: num_ranks,
        "micro_batch_size": training.micro_batch_size,
        "compile": training.compile,
    }
    return {"cut": cut}


if __name__ == "__main__":
    with ending_when_told_to():
        stage_main(run)
