"""A recipe's settings as a form: every section and field of it, all optional, for Prefect's page.

What is filled in becomes overrides, as they are given on the command line, so that a run that was
started from the page can be repeated by hand.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from albert_core.contract.settings import Settings
from flows.recipe import Recipe

_BARE_KEY = re.compile("[A-Za-z0-9_-]+")


def _form_of(model: type[BaseModel], name: str) -> type[Settings]:
    """Return ``model`` with all its fields optional; those that are sections likewise."""
    fields: dict[str, Any] = {key: _optional(field) for key, field in model.model_fields.items()}
    doc = (model.__doc__ or "").partition("\n")[0]
    return create_model(name, __base__=Settings, __doc__=doc, **fields)


def _optional(field: FieldInfo) -> tuple[Any, Any]:
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        section = _form_of(annotation, annotation.__name__.replace("Settings", "Changes"))
        return section | None, Field(default=None, description=section.__doc__)
    default = field.get_default(call_default_factory=True, validated_data={})
    shown = "" if default is PydanticUndefined else f"default: {json.dumps(default)}"
    description = "; ".join(filter(None, [field.description, shown]))
    bounded = FieldInfo.from_annotation(annotation)  # type: ignore[arg-type]
    bounded.metadata = field.metadata
    return bounded.rebuild_annotation() | None, Field(default=None, description=description)


class RecipeChanges(_form_of(Recipe, "RecipeChanges")):  # type: ignore[misc]
    """Settings that differ from the recipe's; what is left empty stays as it is there."""


def with_form(settings: RecipeChanges | None, overrides: Sequence[str] | None) -> list[str]:
    """Return what the form says as overrides, and then ``overrides``, which win."""
    changes = {} if settings is None else settings.model_dump(exclude_none=True, mode="json")
    return [*_flat(changes, ""), *(overrides or [])]


def _flat(changes: dict[str, Any], prefix: str) -> list[str]:
    lines = []
    for name, value in changes.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{prefix}{_key(name)}.")
        else:
            lines.append(f"{prefix}{_key(name)}={_toml(value)}")
    return lines


def _toml(value: Any) -> str:
    """Return ``value`` as TOML has it within a line; JSON's way but for tables."""
    if isinstance(value, dict):
        pairs = (f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)
