"""How long a stage may take, and may say nothing, on this machine.

ALBERT_SILENT_MINUTES  a stage that prints no line for so long is stopped and tried again
ALBERT_STAGE_HOURS     a stage that takes so long is stopped

Either is one number, for all stages, or several by the name of the stage's module:
``training=120, finetuning=30, 60``, where the bare one is for the others. Unset: no limit.
"""

import os
from dataclasses import dataclass

from albert_core.contract.errors import ConfigError

SILENT_MINUTES = "ALBERT_SILENT_MINUTES"
STAGE_HOURS = "ALBERT_STAGE_HOURS"


@dataclass(frozen=True)
class Limits:
    """Of one stage, in seconds; None is no limit."""

    silent_seconds: float | None = None
    seconds: float | None = None


NO_LIMITS = Limits()
STAGE_MODULES = (
    "clean_corpus",
    "train_vocab",
    "make_examples",
    "removal",
    "make_task",
    "training",
    "finetuning",
    "contamination",
    "scoring",
    "registry",
)
"""Names of the stages' modules, in the order of the flows."""


def limits_of(module: str) -> Limits:
    """Return the limits of the stage in ``module``, as the environment has them.

    Raises:
        ConfigError: it has something else than numbers above 0, or names no stage.
    """
    silent, hours = _number(SILENT_MINUTES, module), _number(STAGE_HOURS, module)
    return Limits(silent and silent * 60, hours and hours * 3600)


def _number(variable: str, module: str) -> float | None:
    stage = module.rpartition(".")[2]
    numbers: dict[str, float] = {}
    for part in filter(None, os.environ.get(variable, "").replace(" ", "").split(",")):
        name, _, text = part.rpartition("=")
        try:
            numbers[name] = float(text)
        except ValueError:
            numbers[name] = 0.0
        if not 0 < numbers[name] < float("inf"):
            raise ConfigError(
                f"{variable}: {part!r} must be a number above 0, or stage=number, for example "
                "training=120"
            )
        if name and name not in STAGE_MODULES:
            raise ConfigError(
                f"{variable}: there is no stage {name!r}; there is {', '.join(STAGE_MODULES)}"
            )
    return numbers.get(stage, numbers.get(""))
