"""A model to register, and what its version says of it: columns, tags and page."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from mlflow.models import ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, Map, ParamSchema, ParamSpec, Schema

from albert_core.config import RegistrySettings
from albert_core.registry.gate import ByTask
from albert_core.registry.versions import MANIFEST_TAG
from albert_core.stage import results
from albert_core.stage.lineage import Lineage, place_in
from albert_core.stage.manifest import Manifest
from albert_core.tracking import server

_HELD_OUT = "held_out"
_LONG, _DOUBLE, _STRING = DataType.long, DataType.double, DataType.string
_TEXT_B = "text_b"
_TEXTS = {"text": _STRING, _TEXT_B: _STRING}
_COLUMNS: dict[str, tuple[Mapping[str, DataType | Array | Map], ...]] = {
    "pretrained": (_TEXTS, {"row": _LONG, "mask": _LONG, "piece": _STRING, "probability": _DOUBLE}),
    "classification": (
        _TEXTS,
        {"label": _STRING, "probability": _DOUBLE, "probabilities": Map(_DOUBLE)},
    ),
    "regression": (_TEXTS, {"value": _DOUBLE}),
    "choice": (
        {"article": _STRING, "question": _STRING, "options": Array(_STRING)},
        {"option": _STRING, "index": _LONG, "probability": _DOUBLE}
        | {"probabilities": Array(_DOUBLE)},
    ),
    "spans": (
        {"question": _STRING, "context": _STRING},
        {"answer": _STRING, "start": _LONG, "end": _LONG}
        | {"score": _DOUBLE, "no_answer_probability": _DOUBLE},
    ),
}
"""Kind of model -> the columns that it takes and returns, as `served_model.py` and
`FinetunedModel.predict` say."""
_OPTIONAL = ("start", "end", "score", "no_answer_probability")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to register, with its scores and its lineage."""

    name: str
    """Name of the registered model."""
    trained: str
    """Manifest of the stage that made it."""
    output: server.Output
    """The model."""
    measured: ByTask
    over_seeds: bool
    """See `gate`."""
    settings: RegistrySettings
    """Settings of the gate."""
    champion_scores: str = ""
    """Manifest of the champion's scores; empty: those it was registered with."""
    lineage: Lineage
    served_by: str
    """The module beside this one that `mlflow.pyfunc` runs: one file that ends with
    `mlflow.models.set_model`. The modules of this project that it reaches go along."""
    kind: str
    """Kind of the task that it was fine-tuned on, or "pretrained"; see `_COLUMNS`."""
    num_texts: int | None = None
    """Texts in a row of it, where these are one or two and not both will do."""
    example: Mapping[str, Any]
    """A row of its input."""

    @property
    def score(self) -> float | None:
        """The mean over the tasks; None without any, as where only minimal pairs were scored."""
        return mean(task.score for task in self.measured.values()) if self.measured else None

    @property
    def signature(self) -> ModelSignature:
        """The columns and parameters that it takes, and the columns that it returns."""
        optional = _OPTIONAL if self.num_texts else (*_OPTIONAL, _TEXT_B)
        unused = (_TEXT_B,) if self.num_texts == 1 else ()
        inputs, outputs = (
            Schema(
                [
                    ColSpec(of, name, name not in optional)
                    for name, of in columns.items()
                    if name not in unused
                ]
            )
            for columns in _COLUMNS[self.kind]
        )
        if self.kind != "pretrained":
            return ModelSignature(inputs, outputs)
        params = [ParamSpec("task", "string", "fill_mask"), ParamSpec("top_k", "long", 5)]
        return ModelSignature(inputs, outputs, ParamSchema(params))

    @property
    def made_of(self) -> dict[str, str]:
        """Short texts about what it was made of and how, in the order of the making."""
        places = self.lineage.before(place_in(self.trained))
        # A run that went on from another's checkpoint is made of a run that may never have ended.
        before = (made for place, made in self.lineage.results.items() if place in places)
        return {k: v for made in before if made.is_finished for k, v in _facts(made.manifest)}

    def tags(self, key: str) -> dict[str, str]:
        """Return the tags of its version: those for people first, then those for programs.

        MLflow's pages sort them by name. Of the results it was made of, the nearest comes first.
        The held-out scores are among its metrics.
        """
        tags = {f"about.{name}": said for name, said in self.made_of.items() if name != _HELD_OUT}
        tags |= {f"score.{name}": repr(task.score) for name, task in self.measured.items()}
        tags |= {} if self.score is None else {"score": repr(self.score)}
        tags |= {server.REGISTRATION_TAG: key, server.DIGEST_TAG: self.output.digest}
        for result in reversed(self.lineage.results.values()):
            stage, made = result.manifest.stage, result.manifest.key
            for tag, value in ((f"lineage.{stage}", made), (f"{MANIFEST_TAG}{stage}", result.uri)):
                tags[tag] = f"{tags[tag]}, {value}" if tag in tags else value
        return tags

    def page(self, uri: str, decision: results.Decision) -> str:
        """Return the text of its version's page, as Markdown.

        Args:
            uri: models:/<name>/<version>.
            decision: decision of the gate.
        """
        rows = [
            f"| {name.replace('_', ' ')} | {results.in_cell(said)} |"
            for name, said in self.made_of.items()
        ]
        scores = ", ".join(f"{task} {each.score:.4f}" for task, each in self.measured.items())
        return (
            "| made of | |\n| --- | --- |\n" + "\n".join(rows) + "\n\n"
            f"On dev: {scores or 'no task'}.\n\n"
            f"The gate: {decision.verdict}, {decision.reason}.\n\n"
            "The files of this version have the manifests of all of it in `lineage`; "
            f"`albert lineage {shlex.quote(uri)}` prints them."
        )


def _facts(made: Manifest) -> Iterator[tuple[str, str]]:
    if made.stage == results.CORPUS:
        corpus = made.result_as(results.CorpusResult)
        names = [corpus.source] if isinstance(corpus.source, str) else corpus.source
        size = f"{corpus.num_documents:,} documents, {corpus.text_bytes / 1e6:,.1f} MB"
        yield "text", f"{', '.join(names)}: {size}"
    elif made.stage == results.VOCAB:
        yield "vocabulary", f"{made.result_as(results.VocabularyResult).vocab_size:,} pieces"
    elif made.stage == results.EXAMPLES:
        examples = made.result_as(results.ExamplesResult)
        yield "examples", f"{examples.num_train:,} of up to {examples.max_seq_length} pieces"
    elif made.stage == results.PRETRAINING:
        trained = made.result_as(results.PretrainingResult)
        settings = trained.settings.get("training", {})
        how = f", {settings['optimizer']}" if "optimizer" in settings else ""
        batch = f" of {settings['batch_size']:,} examples" if "batch_size" in settings else ""
        held_out = (f"{name.replace('_', ' ')} {each}" for name, each in trained.after.items())
        yield "size", f"{trained.num_parameters:,} parameters"
        yield "training", f"{trained.step:,} updates{batch}{how}"
        yield _HELD_OUT, ", ".join(held_out)
    elif made.stage == results.FINETUNING:
        tuned = made.result_as(results.FinetuningResult)
        updates = f"{tuned.num_train:,} examples, {tuned.num_steps:,} updates"
        yield "fine_tuning", f"{tuned.title}, {updates}"
