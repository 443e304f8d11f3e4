"""Stage: examples -> a pretrained model, resumable to the bit.

Start several ranks with ``python -m albert_core.training.launcher
--standalone --nproc-per-node N -m albert_core.training.pretrain ...``: torchrun, whose status says
whether to run again.

A run that gets SIGTERM leaves its update, saves what was before it and ends with status 75.
"""

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from albert_core.config import ModelSettings, TrainingSettings, check_shallow_share
from albert_core.conversion.model_files import manifest_beside
from albert_core.stage import command, errors, results, storage
from albert_core.stage.lineage import manifest_of, place_in
from albert_core.stage.machine import TRAINING_HOSTS, training_processes, whole_number
from albert_core.stage.manifest import MANIFEST, Manifest, StagePlan, digest_of, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.tasks.minimal_pairs import PAIRS, PairFiles, find_pairs, pair_digests
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from albert_core.model.albert import AlbertForPretraining


def run(
    model: ModelSettings,
    training: TrainingSettings,
    examples: str,
    work: str,
    task_folder: str = "",
) -> str:
    """Pretrain a model on the examples; return the manifest with its folder and scores.

    A run that was killed goes on from its newest checkpoint, also with other settings of
    `TrainingSettings.HOW_NOT_WHAT` and another number of ranks: no example is lost or repeated. A
    run that differs from another one only in `TrainingSettings.MEASURE` or in ``task_folder`` takes
    over its newest checkpoint. With other code it is another run, and with dropout, which draws for
    each micro-batch, also with another cut into ranks and micro-batches: ``continue_from`` can
    begin it where the first one was.

    Args:
        model: settings.
        training: settings.
        examples: manifest.
        work: folder for all results.
        task_folder: a sample of the minimal pairs in this folder is scored at each evaluation; see
            `find_pairs`. Empty: none.

    Raises:
        ConfigError: the examples are longer than the model's positions, the batch is smaller than
            the number of ranks, layers that do not share weights should come one by one,
            ``continue_from`` or ``initial_model`` does not fit the model, or there is nothing at
            ``continue_from``.
        SourceError: there is nothing at ``initial_model``.
        IntegrityError: a shard is not the one that was written.
        TaskError: a file of minimal pairs is malformed.
        TrainingError: too many updates in a row were skipped, a checkpoint could not be written,
            or ``continue_from`` was trained on other examples.
        RunAgain: SIGTERM came, or another rank is gone. No error: the process's exit.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    plan, start, files = _plan(model, training, examples, task_folder, ranks)
    if done := plan.find(work):
        return done
    manifest = read_manifest(examples)
    made = manifest.result_as(results.ExamplesResult)
    if made.max_seq_length > model.max_position_embeddings:
        raise errors.ConfigError(
            f"examples have up to {made.max_seq_length} pieces, but "
            f"model.max_position_embeddings is {model.max_position_embeddings}. Raise it, or "
            "lower examples.max_seq_length."
        )
    check_shallow_share(model, training)
    from albert_core.training.pretraining import pretrain

    pretrain(
        plan,
        work,
        model,
        training,
        Tokenizer.of_examples(manifest),
        files,
        start.checkpoint,
        start.weights,
    )
    return storage.join(plan.folder(work), MANIFEST)


def find_done(
    model: ModelSettings, training: TrainingSettings, examples: str, task_folder: str, work: str
) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    num_ranks = whole_number(TRAINING_HOSTS, 1) * training_processes(training.batch_size)
    return _plan(model, training, examples, task_folder, num_ranks)[0].done(work)


def check_start(
    model: ModelSettings, training: TrainingSettings, vocabulary: Tokenizer | None
) -> None:
    """Refuse weights to start from that are not there or do not fit, before there are examples.

    Args:
        model: settings.
        training: settings.
        vocabulary: the one that is given; None if it is not known yet.

    Raises:
        AlbertError: as `run` would find.
    """
    if training.continue_from:
        from albert_core.checkpoint import find_checkpoint, read_record
        from albert_core.training.beginning import check_continued

        checkpoint = find_checkpoint(training.continue_from)
        check_continued(checkpoint, read_record(checkpoint), model, training)
    elif training.initial_model:
        from albert_core.conversion.initial_weights import fitting_source

        fitting_source(training.initial_model, model, vocabulary)


class _Start(NamedTuple):
    """The starting point of a run, if it does not start from random weights."""

    checkpoint: str | None = None
    """URI of the checkpoint to continue from."""
    weights: "AlbertForPretraining | None" = None
    """The model with the first weights, on the CPU."""
    inputs: dict[str, str] = {}  # noqa: RUF012 - never changed
    """Digest of the content, by the setting's name: another content makes another run."""


def _plan(
    model: ModelSettings,
    training: TrainingSettings,
    examples: str,
    task_folder: str,
    num_ranks: int,
) -> tuple[StagePlan, _Start, PairFiles]:
    manifest = read_manifest(examples)
    start, files = _starting_point(training, model, manifest), find_pairs(task_folder)
    settings: dict[str, Any] = {"model": model.model_dump(), "training": training.of_result}
    if model.num_hidden_layers == 1:
        settings["training"]["shallow_share"] = 0.0  # no layer comes later
    if model.hidden_dropout_prob or model.attention_probs_dropout_prob:
        # The draws of dropout depend on this besides the seed.
        size, compiled = training.micro_batch_size, training.compile
        settings["cut"] = {"ranks": num_ranks, "micro_batch_size": size, "compile": compiled}
    inputs = {"examples": manifest.content, "vocab": manifest.inputs["vocab"], **start.inputs}
    input_manifests = {
        "examples": examples,
        "vocab": manifest.input_manifests["vocab"],
        **_earlier_result(training),
    }
    if files:
        inputs[PAIRS] = digest_of(pair_digests(files))
        if task := manifest_beside(task_folder):
            input_manifests["task"] = task
    counted_by = ("numpy", "scipy") if training.initial_weights == "counts" else ()
    plan = StagePlan(
        stage=results.PRETRAINING,
        settings=settings,
        inputs=inputs,
        code=code_digest(__name__),
        libraries=library_versions("torch", *counted_by),
        input_manifests=input_manifests,
    )
    return plan, start, files


def _starting_point(settings: TrainingSettings, model: ModelSettings, examples: Manifest) -> _Start:
    """Return what the settings say that a run starts from.

    The checkpoint is chosen here once, because the run that is continued may still go on.

    Raises:
        ConfigError: there is no checkpoint, or the model or its vocabulary does not fit.
        IntegrityError: a file of the model is missing or damaged.
        SourceError: there is no model.
    """
    if settings.continue_from:
        from albert_core.checkpoint import checkpoint_digest, find_checkpoint

        checkpoint = find_checkpoint(settings.continue_from)
        return _Start(checkpoint, inputs={"continue_from": checkpoint_digest(checkpoint)})
    if not settings.initial_model:
        return _Start()
    import torch

    from albert_core.conversion.initial_weights import fitting_source

    source = fitting_source(settings.initial_model, model, Tokenizer.of_examples(examples))
    torch.manual_seed(derive_seed(settings.seed, "initial-weights"))
    return _Start(weights=source.start(model), inputs={"initial_model": source.digest()})


def _earlier_result(settings: TrainingSettings) -> dict[str, str]:
    """Return the manifest of the result that a run starts from, by its stage, if it is a stage's.

    For an unfinished run it is the manifest that it began with.
    """
    source = settings.continue_from or settings.initial_model
    manifest = manifest_of(source) if source else None
    return {place_in(manifest).partition("/")[0]: manifest} if manifest else {}


if __name__ == "__main__":
    command.stage_main(run)
