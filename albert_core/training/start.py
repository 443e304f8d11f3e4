"""Where a run starts that does not start from random weights: a model, or an earlier run.

Both are addresses in the settings; what counts of them is their content, which is an input of the
run, so that another content makes another run.
"""

import hashlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.stage.errors import ConfigError, IntegrityError, TrainingError
from albert_core.stage.lineage import manifest_of, place_in, read_work
from albert_core.stage.manifest import Manifest, StagePlan, read_manifest
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from albert_core.model.albert import AlbertForPretraining
    from albert_core.training.step import TrainState

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """What a run starts from; all None and empty for random weights."""

    checkpoint: str | None = None
    """URI of the checkpoint to continue from."""
    model: "AlbertForPretraining | None" = None
    """The model with the first weights, on the CPU."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Digest of the content, by the setting's name."""


def find_starting_point(
    settings: TrainingSettings, model: ModelSettings, examples: Manifest
) -> StartingPoint:
    """Return what the settings say that a run on ``examples`` starts from.

    A run that is continued from may itself go on meanwhile: what is meant is fixed here.

    Raises:
        ConfigError: there is no checkpoint, or the model or its vocabulary does not fit.
        IntegrityError: a file of the model is missing or damaged.
        SourceError: there is no model.
    """
    if not (settings.continue_from or settings.initial_model):
        return StartingPoint()
    from albert_core.checkpoint import checkpoint_digest, find_checkpoint

    if settings.continue_from:
        checkpoint = find_checkpoint(settings.continue_from)
        inputs = {"continue_from": checkpoint_digest(checkpoint)}
        return StartingPoint(checkpoint=checkpoint, inputs=inputs)
    import torch

    from albert_core.conversion.initial_weights import load_initial_weights

    torch.manual_seed(derive_seed(settings.seed, "initial-weights"))
    vocabulary = read_vocabulary(examples.facts["vocab_manifest"])
    weights = load_initial_weights(
        settings.initial_model, model, examples.facts["vocab_size"], vocabulary
    )
    return StartingPoint(model=weights, inputs={"initial_model": _weights_digest(weights)})


def earlier_results(settings: TrainingSettings) -> dict[str, str]:
    """Return the manifest of the result that a run starts from, by its stage, if it is a stage's.

    Of a run that is not finished it is the one that it was begun with.
    """
    source = settings.continue_from or settings.initial_model
    manifest = manifest_of(source) if source else None
    return {place_in(manifest).partition("/")[0]: manifest} if manifest else {}


def same_updates(plan: StagePlan, work: str) -> str | None:
    """Return the folder of a finished run of the updates of ``plan`` that is measured otherwise."""
    wanted = _updates(plan.settings, plan.inputs, plan.code, plan.libraries)
    for other in read_work(work, stages=[plan.stage]).results.values():
        made = other.manifest
        if _updates(made.settings, made.inputs, made.code, made.libraries) == wanted:
            return other.folder
    return None


def _updates(settings: dict[str, Any], *others: Any) -> list[Any]:
    measure = TrainingSettings.MEASURE
    training = {n: value for n, value in settings["training"].items() if n not in measure}
    return [settings | {"training": training}, *others]


def read_vocabulary(manifest: str) -> Tokenizer:
    """Return the vocabulary of the manifest at this URI."""
    lower_case = read_manifest(manifest).facts["lower_case"]
    return Tokenizer.load(manifest.rpartition("/")[0], lower_case)


def continue_run(
    state: "TrainState", checkpoint: str, settings: TrainingSettings, inputs: dict[str, str]
) -> None:
    """Take over weights, optimizer, step and place in the data from an earlier run.

    With other examples, the place in the data is their beginning. Everything else may be set anew:
    dropout, rates, batch, optimizer.

    Args:
        state: changed in place.
        checkpoint: its URI.
        settings: of this run.
        inputs: digests of this run's "examples" and "vocab".

    Raises:
        ConfigError: the steps are done already, or the seed would change the order in mid-epoch.
        IntegrityError: the checkpoint is damaged, or does not fit the model.
        TrainingError: it was trained on other examples, or on pieces of another vocabulary.
    """
    from albert_core.checkpoint import load_checkpoint

    tensors, record = load_checkpoint(checkpoint)
    before = _training_settings(record, checkpoint)
    same_examples = record["examples"] == inputs["examples"]
    _check_data(record, inputs, same_examples or settings.accept_other_examples, checkpoint)
    if record["step"] >= settings.num_steps:
        raise ConfigError(
            f"{checkpoint} is at step {record['step']:,}, but training.num_steps, which counts "
            f"from the beginning, is {settings.num_steps:,}: there is nothing to do. Raise it."
        )
    if same_examples and before["seed"] != settings.seed:
        raise ConfigError(
            f"{checkpoint} has training.seed {before['seed']}, this run {settings.seed}: the "
            "examples' order would change in mid-epoch, so that some would come twice. Give the "
            "same seed."
        )
    state.restore(tensors, record, checkpoint)
    if not same_examples:
        state.examples_taken = state.examples_skipped = 0
        state.evaluations = []
    log.info(
        "continuing from %s, step %s, %s",
        checkpoint,
        f"{state.step:,}",
        f"example {state.examples_taken:,}" if same_examples else "with other examples",
    )


def _training_settings(record: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = record["settings"]["training"]
    except (KeyError, TypeError) as error:
        raise IntegrityError(
            f"{checkpoint} has no record of its settings: it was not written by this version."
        ) from error
    return settings


def _check_data(
    record: dict[str, Any], inputs: dict[str, str], are_accepted: bool, checkpoint: str
) -> None:
    if record["vocab"] != inputs["vocab"]:
        raise TrainingError(
            f"{checkpoint} was trained with vocabulary {record['vocab'][:12]}, but these examples "
            f"were made with {inputs['vocab'][:12]}: the same piece would mean something else. "
            "Make the examples with the vocabulary of the run that is continued."
        )
    if not are_accepted:
        raise TrainingError(
            f"{checkpoint} was trained on examples {record['examples'][:12]}, but these are "
            f"{inputs['examples'][:12]}. Give the same examples, or set "
            "training.accept_other_examples = true to begin these from their first."
        )


def _weights_digest(model: "AlbertForPretraining") -> str:
    """Return a digest of the weights, the same from whatever kind of file they come."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
