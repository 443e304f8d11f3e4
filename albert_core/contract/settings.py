"""The base of every settings model: frozen and strict, so that a misspelt key is refused."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from albert_core.contract.errors import ConfigError


class Settings(BaseModel):
    """A frozen, strict record. Unknown keys and wrong types are errors that name their path."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    @classmethod
    def read(cls, values: dict[str, Any], where: str) -> Self:
        """Return the settings in ``values``.

        Args:
            values: parsed TOML or JSON.
            where: the file they came from, for the message.

        Raises:
            ConfigError: naming every setting that is unknown, missing or impossible.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{where}: {describe(error)}") from None


def describe(error: ValidationError) -> str:
    """Return one line a mistake: the setting's path, what was found, what was expected."""
    lines = []
    for mistake in error.errors():
        path = ".".join(str(part) for part in mistake["loc"]) or "the settings"
        if mistake["type"] == "extra_forbidden":
            lines.append(f"unknown setting {path!r}; remove it or correct its spelling")
        elif mistake["type"] == "missing":
            lines.append(f"setting {path!r} is missing")
        else:
            lines.append(f"{path}: {mistake['msg']}, got {mistake['input']!r}")
    return "\n  ".join(lines)
