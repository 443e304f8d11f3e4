"""The base of every settings model: frozen and strict, so that a misspelt key is refused."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from albert_core.stage.credentials import WITHOUT_CREDENTIALS, has_credentials, redacted
from albert_core.stage.errors import ConfigError


def _check_texts(schema: dict[str, Any]) -> None:
    """Make a JSON schema refuse credentials in every string that it allows, at any depth."""
    if schema.get("type") == "string" and "enum" not in schema:
        schema.setdefault("pattern", WITHOUT_CREDENTIALS)
    tables = (schema.get(name) for name in ("items", "additionalProperties"))
    for inner in (*schema.get("properties", {}).values(), *schema.get("anyOf", []), *tables):
        if isinstance(inner, dict):
            _check_texts(inner)


class Settings(BaseModel):
    """A frozen, strict record. Unknown keys and wrong types are errors that name their path.

    Its JSON schema, with which Prefect checks a form before it saves it, refuses credentials too.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        json_schema_extra=_check_texts,
    )

    @classmethod
    def read(cls, values: dict[str, Any], where: str) -> Self:
        """Return the settings in ``values``.

        Args:
            values: parsed TOML or JSON.
            where: the file they are from, for the message.

        Raises:
            ConfigError: naming every setting that is unknown, missing or impossible, or has
                credentials in it.
        """
        refuse_credentials(values, where)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{where}: {describe(error)}") from None
        except OverflowError as error:
            raise ConfigError(f"{where}: a number is too large ({error})") from None


def refuse_credentials(values: Any, where: str) -> None:
    """Refuse URIs with passwords, tokens or signatures, because settings are saved and shown.

    Args:
        values: strings, at any depth of tables and lists.
        where: what they are, for the message.

    Raises:
        ConfigError: naming the setting, without its value.
    """
    if isinstance(values, Mapping):
        for name, value in values.items():
            refuse_credentials(value, f"{where}, {name}")
    elif isinstance(values, list | tuple):
        for value in values:
            refuse_credentials(value, where)
    elif isinstance(values, str) and has_credentials(values):
        raise ConfigError(
            f"{where}: {redacted(values)} has credentials in it, but settings are saved with every "
            "result. Leave them out here and give them in the environment: AWS_... "
            "for s3, FSSPEC_HTTP_CLIENT_KWARGS or a netrc file for http, MLFLOW_TRACKING_USERNAME "
            "and ..._PASSWORD for MLflow."
        )


def describe(error: ValidationError) -> str:
    """Return a line for each mistake: the setting's path, what was expected, what was found."""
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
