"""A registered pretrained model, as `mlflow.pyfunc` loads and serves it.

This file travels with the model version: it needs transformers, torch and pandas, and nothing of
this project.
"""

import hashlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import torch
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from torch import Tensor
from transformers import AutoModelForPreTraining, AutoTokenizer

MODEL_ARTIFACT = "model"
"""Name of the folder in Hugging Face's layout among the version's artifacts."""
_TASKS = ("fill_mask", "embed", "sentence_order")
_BATCH_SIZE = 32
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")
"""JSON may hold it, but it is no character."""
_IN_ORDER = 0


class AlbertPyfunc(PythonModel):
    """Fills masks, embeds texts and scores sentence order.

    MLflow's server calls it from several threads. Only the tokenizer is not immutable.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model and its tokenizer from the version's own files.

        Raises:
            ValueError: a file changed after it was registered.
        """
        folder, config = context.artifacts[MODEL_ARTIFACT], context.model_config or {}
        self.objective = config.get("objective")
        for name, digest in config.get("sha256", {}).items():
            if hashlib.sha256(Path(folder, name).read_bytes()).hexdigest() != digest:
                raise ValueError(f"{folder}/{name} changed after it was registered")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        # A call first sets how the shared tokenizer truncates and pads. Some versions of the
        # library refuse that while another thread encodes ("Already borrowed").
        self._tokenizing = threading.Lock()
        self.model = AutoModelForPreTraining.from_pretrained(folder).eval()
        heads = getattr(self.model, "cls", self.model)  # BertForPreTraining has them in a module
        self.masked_lm = heads.predictions
        self.order = heads.seq_relationship if heads is not self.model else heads.sop_classifier
        self.max_seq_length = int(self.model.config.max_position_embeddings)

    def predict(
        self,
        context: PythonModelContext | None,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Do one of three tasks with each row; a text longer than the model takes is truncated.

        Args:
            context: not used.
            model_input: column "text"; for "sentence_order" also "text_b".
            params: "task" is one of

                * "fill_mask", the default: for each "[MASK]" in each text, the "top_k" (5) most
                  probable pieces. Columns row (of the input), mask (its number in the text),
                  piece, probability.
                * "embed": the mean of the last layer over all pieces, special ones included.
                  Columns text, embedding (a list of float).
                * "sentence_order": the probability that text_b follows text, not the other way
                  round. Columns text, text_b, probability.

        Raises:
            ValueError: the task is none of these, or was not learned; or a text is missing, or has
                no "[MASK]" or one beyond the longest length.
        """
        options: dict[str, Any] = {"task": "fill_mask", "top_k": 5} | (params or {})
        task = options["task"]
        if task not in _TASKS:
            raise ValueError(f"task is {task!r}, expected one of {', '.join(_TASKS)}")
        if task == "sentence_order" and self.objective not in (None, "sop"):
            raise ValueError(
                f"the model has not learned sentence order: examples.objective was "
                f"{self.objective!r}, not 'sop'"
            )
        texts = _texts(model_input, "text")
        with torch.no_grad():
            if task == "fill_mask":
                return self._fill_mask(texts, options["top_k"])
            if task == "embed":
                return self._embed(texts)
            return self._sentence_order(texts, _texts(model_input, "text_b"))

    def _fill_mask(self, texts: list[str], top_k: int) -> pd.DataFrame:
        vocab_size = int(self.model.config.vocab_size)
        if not isinstance(top_k, int) or not 1 <= top_k <= vocab_size:
            raise ValueError(f"top_k is {top_k!r}, expected 1 to {vocab_size}")
        rows: list[tuple[int, int, str, float]] = []
        for begin, inputs in self._batches(texts):
            hidden = self.model.base_model(**inputs).last_hidden_state  # (B, S, H)
            is_mask = inputs["input_ids"] == self.tokenizer.mask_token_id
            self._check_masks(texts, begin, is_mask)
            best = self.masked_lm(hidden[is_mask]).softmax(dim=-1).topk(top_k)
            places = is_mask.nonzero()[:, 0].tolist()
            for i, place in enumerate(places):
                mask = places[:i].count(place)
                pieces = self.tokenizer.convert_ids_to_tokens(best.indices[i].tolist())
                rows += [
                    (begin + place, mask, piece, probability)
                    for piece, probability in zip(pieces, best.values[i].tolist(), strict=True)
                ]
        return pd.DataFrame(rows, columns=["row", "mask", "piece", "probability"])

    def _check_masks(self, texts: list[str], begin: int, is_mask: Tensor) -> None:
        for place, found in enumerate(is_mask.sum(dim=1).tolist()):
            text = texts[begin + place]
            expected = text.count(self.tokenizer.mask_token)
            if not expected:
                raise ValueError(
                    f"row {begin + place} has no {self.tokenizer.mask_token} to fill: {text[:80]!r}"
                )
            if found < expected:
                raise ValueError(
                    f"row {begin + place} has a {self.tokenizer.mask_token} beyond the first "
                    f"{self.max_seq_length} pieces, which is all that this model reads. Shorten it."
                )

    def _embed(self, texts: list[str]) -> pd.DataFrame:
        embeddings: list[list[float]] = []
        for _, inputs in self._batches(texts):
            hidden = self.model.base_model(**inputs).last_hidden_state  # (B, S, H)
            weights = inputs["attention_mask"][:, :, None]
            embeddings += ((hidden * weights).sum(dim=1) / weights.sum(dim=1)).tolist()
        return pd.DataFrame({"text": texts, "embedding": embeddings})

    def _sentence_order(self, texts: list[str], texts_b: list[str]) -> pd.DataFrame:
        probabilities: list[float] = []
        for _, inputs in self._batches(texts, texts_b):
            pooled = self.model.base_model(**inputs).pooler_output
            order = self.order(pooled).softmax(dim=-1)  # (B, 2)
            probabilities += order[:, _IN_ORDER].tolist()
        return pd.DataFrame({"text": texts, "text_b": texts_b, "probability": probabilities})

    def _batches(self, *texts: list[str]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield the number of the first row and the padded inputs of a few rows."""
        for begin in range(0, len(texts[0]), _BATCH_SIZE):
            with self._tokenizing:
                inputs = self.tokenizer(
                    *(column[begin : begin + _BATCH_SIZE] for column in texts),
                    padding=True,
                    truncation=True,
                    max_length=self.max_seq_length,
                    return_tensors="pt",
                )
            yield begin, inputs


def _texts(rows: pd.DataFrame, column: str) -> list[str]:
    if column not in rows:
        raise ValueError(
            f"the column {column!r} is missing; there is {', '.join(map(str, rows.columns))}"
        )
    texts = rows[column].tolist()
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"row {number}: {column} is {text!r}, expected a text")
        if _HALF_A_PAIR.search(text):
            raise ValueError(f"row {number}: {column} has half of a surrogate pair: {text!r}")
    return texts


mlflow.models.set_model(AlbertPyfunc())
