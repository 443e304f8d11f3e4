"""A registered fine-tuned model, as `mlflow.pyfunc` loads and serves it.

This file travels with the model version, and with it the modules of this project that it reaches.
"""

import hashlib
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from albert_core.finetuning.finetuned_model import COLUMNS, FinetunedModel

MODEL_ARTIFACT = "model"
"""Name of the folder of the fine-tuned model among the version's artifacts."""


class FinetunedPyfunc(PythonModel):
    """Labels texts, answers questions, or chooses, as it was fine-tuned to.

    MLflow's server calls it from several threads, as `FinetunedModel` allows.
    """

    model: FinetunedModel

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model from the version's own files.

        Raises:
            ValueError: a file changed after it was registered.
        """
        folder = context.artifacts[MODEL_ARTIFACT]
        for name, digest in (context.model_config or {}).get("sha256", {}).items():
            if hashlib.sha256(Path(folder, name).read_bytes()).hexdigest() != digest:
                raise ValueError(f"{folder}/{name} changed after it was registered")
        self.model = FinetunedModel(folder)

    def predict(
        self,
        context: PythonModelContext | None,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Return a row of `FinetunedModel.predict` for each row.

        Args:
            context: not used.
            model_input: the columns of `COLUMNS` for the kind of task.
            params: none.

        Raises:
            TaskError: a text is missing or empty.
        """
        names = [name for name in COLUMNS[self.model.task.kind] if name in model_input]
        columns = [model_input[name].tolist() for name in names]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        if not rows and len(model_input):  # the error names the missing columns
            rows = [{} for _ in range(len(model_input))]
        # As objects, so that a start beside None stays a whole number.
        return pd.DataFrame(self.model.predict(rows), dtype=object)


mlflow.models.set_model(FinetunedPyfunc())
