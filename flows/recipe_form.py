"""A recipe's settings as a form: every section and field, all optional, for Prefect's page.

What is filled in becomes overrides as on the command line, so that a run that was started from the
page can be repeated by hand.

Prefect keeps parameters in its database, and checks them by their JSON schema before it does. So
texts that may be URIs are refused here if they contain credentials.
"""

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, create_model, model_serializer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from albert_core.stage.credentials import WITHOUT_CREDENTIALS
from albert_core.stage.settings import Settings
from flows.recipe import Recipe

_BARE_KEY = re.compile("[A-Za-z0-9_-]+")


class _Form(Settings):
    """A model whose fields may all be absent.

    In its schema they have no default and are not nullable: Prefect's page then shows an empty
    entry for each, without asking for its type first.
    """

    @model_serializer(mode="wrap")
    def _only_filled(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


def _form_of(model: type[BaseModel], name: str) -> type[_Form]:
    """Return ``model`` with all its fields optional; those that are sections likewise."""
    fields: dict[str, Any] = {
        key: _optional(key, field, position)
        for position, (key, field) in enumerate(model.model_fields.items())
    }
    doc = (model.__doc__ or "").partition("\n")[0]
    return create_model(name, __base__=_Form, __doc__=doc, **fields)


def _optional(name: str, field: FieldInfo, position: int) -> tuple[Any, Any]:
    annotation: Any = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        annotation = _form_of(annotation, annotation.__name__.replace("Settings", "Changes"))
        description = annotation.__doc__
    else:
        default = field.get_default(call_default_factory=True, validated_data={})
        shown = "" if default is PydanticUndefined else f"default: {json.dumps(default)}"
        description = "; ".join(filter(None, [field.description, shown]))
    entry = FieldInfo.from_annotation(annotation)
    entry.metadata = field.metadata
    extra = partial(_as_entry, name, position)
    shape = Field(default=None, description=description, json_schema_extra=extra)
    return entry.rebuild_annotation() | None, shape


def _as_entry(name: str, position: int, schema: dict[str, Any]) -> None:
    """Remove the default and the choice of null from a field's schema, and set its place."""
    schema.pop("default", None)
    schema |= {"title": name, "position": position}
    kinds = [kind for kind in schema.pop("anyOf", []) if kind != {"type": "null"}]
    schema.update(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})


class RecipeChanges(_form_of(Recipe, "RecipeChanges")):  # type: ignore[misc]
    """Settings that differ from the recipe's; those left empty stay as they are there."""


NO_CHANGES = RecipeChanges()


def with_form(settings: RecipeChanges, overrides: Sequence[str] | None) -> list[str]:
    """Return the form as overrides, followed by ``overrides``, which take precedence."""
    return [*_flat(settings.model_dump(mode="json", exclude_none=True), ""), *(overrides or [])]


def _flat(changes: dict[str, Any], prefix: str) -> list[str]:
    lines = []
    for name, value in changes.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{prefix}{_key(name)}.")
        else:
            lines.append(f"{prefix}{_key(name)}={_toml(value)}")
    return lines


def _toml(value: Any) -> str:
    """Return ``value`` as TOML writes it in one line, which is JSON's way except for tables."""
    if isinstance(value, dict):
        pairs = (f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)


Address = Annotated[str, Field(json_schema_extra={"pattern": WITHOUT_CREDENTIALS})]
"""A path, a URI or a name."""
