"""A model to register: how it does, what it was made of, and the tags and texts that say so."""

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.models import ModelSignature

from albert_core.conversion.model_files import model_digest
from albert_core.intervals import CLUSTER_SHARE
from albert_core.registry.gate import ByTask, Decision, Measured
from albert_core.registry.versions import MANIFEST_TAG, THREADS_TAG, RegisteredVersion, fetch
from albert_core.stage import errors, results, storage
from albert_core.stage import lineage as stages
from albert_core.stage.lineage import Lineage, model_folder_of, place_in
from albert_core.stage.manifest import Manifest, digest_of, read_manifest
from albert_core.text.arrow_files import read_arrow
from albert_core.tracking.server import DIGEST_TAG, REGISTRATION_TAG, Output

_FILE = "measured.json"
"""Among the files of a version: `Measured` by task."""
_HELD_OUT = "held_out"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to register: what it is, how it does, and what it was made of."""

    name: str
    """Of the registered model."""
    trained: str
    """Manifest of the stage that made it."""
    output: Output
    """The model."""
    measured: ByTask
    over_seeds: bool
    """See `gate`."""
    lineage: Lineage
    served_by: str
    """The module that `mlflow.pyfunc` runs, one file that ends with `mlflow.models.set_model`. What
    it reaches of this project goes along."""
    signature: ModelSignature
    example: Mapping[str, Any]
    """A row of its input."""

    @property
    def score(self) -> float | None:
        """The mean over the tasks; None without any, as where only minimal pairs were scored."""
        return mean(task.score for task in self.measured.values()) if self.measured else None

    @property
    def made_of(self) -> dict[str, str]:
        """What it was made of and how, a short text each, in the order of the making."""
        places = self.lineage.before(place_in(self.trained))
        made = [each.manifest for place, each in self.lineage.results.items() if place in places]
        return {name: said for manifest in made for name, said in _facts(manifest)}

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of its version: what it is first, then what programs ask for.

        MLflow's pages sort them by name. Of the results it was made of, the nearest comes first.
        What the held-out scores are, its metrics say.
        """
        about = {f"about.{name}": said for name, said in self.made_of.items() if name != _HELD_OUT}
        scores = {f"score.{name}": repr(task.score) for name, task in self.measured.items()}
        tags = about | scores | ({} if self.score is None else {"score": repr(self.score)})
        tags |= {REGISTRATION_TAG: key, DIGEST_TAG: self.output.digest, THREADS_TAG: "right"}
        for result in reversed(self.lineage.results.values()):
            stage, made = result.manifest.stage, result.manifest.key
            for tag, value in ((f"lineage.{stage}", made), (f"{MANIFEST_TAG}{stage}", result.uri)):
                tags[tag] = f"{tags[tag]}, {value}" if tag in tags else value
        return tags

    def page(self, uri: str, decision: Decision) -> str:
        """Return the text of its version's page, as Markdown.

        Args:
            uri: models:/<name>/<version>.
            decision: of the gate.
        """
        cells = {name: said.replace("|", "\\|") for name, said in self.made_of.items()}
        rows = [f"| {name.replace('_', ' ')} | {said} |" for name, said in cells.items()]
        scores = ", ".join(f"{task} {each.score:.4f}" for task, each in self.measured.items())
        return (
            "| made of | |\n| --- | --- |\n" + "\n".join(rows) + "\n\n"
            f"On dev: {scores or 'no task'}.\n\n"
            f"The gate: {decision.verdict}, {decision.reason}.\n\n"
            "The files of this version have the manifests of all of it in `lineage`; "
            f"`albert lineage {uri}` prints them."
        )


def model_page(name: str) -> str:
    """Return the text of a registered model's page, as Markdown."""
    return (
        "A version is a model that was trained and scored; its page says what it was made of, and "
        "its source run is the training. The alias `champion` is the best one so far, `previous` "
        "the champion before, `candidate` the newest that is not champion.\n\n"
        f'`mlflow.pyfunc.load_model("models:/{name}@champion")` serves it, '
        f'`mlflow.transformers.load_model("models:/{name}@champion")` is its pipeline.'
    )


def _facts(made: Manifest) -> Iterator[tuple[str, str]]:
    if made.stage == stages.CORPUS:
        corpus = made.result_as(results.CorpusResult)
        names = [corpus.source] if isinstance(corpus.source, str) else corpus.source
        size = f"{corpus.num_documents:,} documents, {corpus.text_bytes / 1e6:,.1f} MB"
        yield "text", f"{', '.join(names)}: {size}"
    elif made.stage == stages.VOCAB:
        yield "vocabulary", f"{made.result_as(results.VocabularyResult).vocab_size:,} pieces"
    elif made.stage == stages.EXAMPLES:
        examples = made.result_as(results.ExamplesResult)
        yield "examples", f"{examples.num_train:,} of up to {examples.max_seq_length} pieces"
    elif made.stage == stages.PRETRAINING:
        trained = made.result_as(results.PretrainingResult)
        settings = trained.settings.get("training", {})
        how = f", {settings['optimizer']}" if "optimizer" in settings else ""
        batch = f" of {settings['batch_size']:,} examples" if "batch_size" in settings else ""
        held_out = (f"{name.replace('_', ' ')} {each}" for name, each in trained.after.items())
        yield "size", f"{trained.num_parameters:,} parameters"
        yield "training", f"{trained.step:,} updates{batch}{how}"
        yield _HELD_OUT, ", ".join(held_out)
    elif made.stage == stages.FINETUNING:
        tuned = made.result_as(results.FinetuningResult)
        updates = f"{tuned.num_train:,} examples, {tuned.num_steps:,} updates"
        yield "fine_tuning", f"{tuned.title}, {updates}"


# How it does


def read_scores(scores: str, digest: str) -> dict[str, Measured]:
    """Return how the model with this digest does, by task.

    Scores of two pretrained models are comparable if the files of the task and the settings of the
    fine-tuning are the same, except the seed.

    Args:
        scores: manifest of a table of scores.
        digest: of the model's files.

    Raises:
        IntegrityError: a manifest or the predictions are missing.
        RegistryError: the scores are another model's.
    """
    read = {uri: read_manifest(uri) for uri in read_manifest(scores).input_manifests.values()}
    found = {uri: made for uri, made in read.items() if made.stage == stages.FINETUNING}
    own = {uri for uri, manifest in found.items() if manifest.inputs["model"] == digest}
    others = sorted(found.keys() - own)
    # A task may start from the model that was fine-tuned on MNLI.
    started = {model_digest(model_folder_of(uri)) for uri in own} if others else set()
    for uri in others:
        if (other := found[uri].inputs["model"]) not in started:
            raise errors.RegistryError(
                f"{scores} has scores of the model {other[:12]} (in {uri}), expected the model "
                f"{digest[:12]}. Fine-tune that one on all tasks and score it."
            )
    data_of = {}
    for uri, manifest in found.items():
        files = {name: value for name, value in manifest.inputs.items() if name != "model"}
        settings = {name: value for name, value in manifest.settings.items() if name != "seed"}
        task = manifest.result_as(results.FinetuningResult).task
        data_of[task] = digest_of([digest_of([files, settings]), uri in own])
    return measure(found, data_of)


def measure(finetunings: Mapping[str, Manifest], data_of: Mapping[str, str]) -> dict[str, Measured]:
    """Return how a model does on each task, from fine-tunings of it.

    Args:
        finetunings: their manifests by URI, in any order; several of a task differ in their seed.
        data_of: by the task's name, a digest of what makes its scores comparable.

    Raises:
        IntegrityError: a file is missing.
        RegistryError: a score is not a number.
    """
    runs: dict[str, list[Measured]] = {}
    for uri, manifest in sorted(finetunings.items(), key=lambda run: run[1].settings["seed"]):
        result = manifest.result_as(results.FinetuningResult)
        runs.setdefault(result.task, []).append(_measure_run(uri, result, data_of[result.task]))
    return {
        task: replace(
            of_task[0],
            scores=tuple(each.score for each in of_task),
            without=np.mean([each.without for each in of_task], axis=0),
        )
        for task, of_task in sorted(runs.items())
    }


def _measure_run(uri: str, result: results.FinetuningResult, data: str) -> Measured:
    """Return how one fine-tuning does in what counts in the paper's average.

    That is the mean of F1 and exact match for SQuAD, else the key metric.
    """
    names = list(result.scores) if result.kind == "spans" else [result.metric]
    score = mean(result.scores[name].value for name in names)
    if not math.isfinite(score):
        raise errors.RegistryError(
            f"{uri}: {', '.join(names)} on {result.task} is {score}, expected a number. A model "
            "that answers so is not registered; fine-tune again with a lower learning rate."
        )
    table = read_arrow(storage.join(uri.rpartition("/")[0], result.jackknife))
    return Measured(
        data=data,
        scores=(score,),
        without=np.mean([table[name].to_numpy() for name in names], axis=0),
        shares=table[CLUSTER_SHARE].to_numpy(),
        constant=mean(result.constant_scores[name] for name in names),
    )


def write_measured(measured: ByTask, folder: Path) -> None:
    """Write to ``folder`` how a candidate does, which later candidates are compared with."""
    found = {task: asdict(each) for task, each in measured.items()}
    content = json.dumps(found, default=np.ndarray.tolist)
    (folder / _FILE).write_text(content, encoding="utf-8")


def read_measured(client: MlflowClient, version: RegisteredVersion) -> dict[str, Measured]:
    """Return what was written when ``version`` was registered; nothing if nothing was.

    Raises:
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = fetch(client, version, _FILE, scratch)
        found = json.loads(path.read_text(encoding="utf-8")) if path else {}
    return {
        task: Measured(
            data=each["data"],
            scores=tuple(each["scores"]),
            without=np.array(each["without"]),
            shares=np.array(each["shares"]),
            constant=each["constant"],
        )
        for task, each in found.items()
    }
