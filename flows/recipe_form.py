"""The parameters of the flows as Prefect's page and its server know them: JSON schemas.

`RecipeChanges` is a form with the settings that are changed most. What is filled in becomes
overrides as on the command line, so that a run that was started from the page can be repeated by
hand. All other settings are overrides in any case.

Prefect keeps parameters in its database, and checks them by their JSON schema before it does. So
texts that may be URIs are refused here if they contain credentials.
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    create_model,
    model_serializer,
)
from pydantic.fields import FieldInfo

from albert_core.stage.credentials import WITHOUT_CREDENTIALS
from albert_core.stage.settings import Settings
from flows.recipe import Recipe, shipped_recipes

_USUAL = {
    "cleaning": ("language", "keep_languages"),
    "vocabulary": ("vocab_size",),
    "examples": ("max_seq_length", "dupe_factor"),
    "training": ("num_steps", "batch_size", "micro_batch_size", "learning_rate"),
    "evaluation": ("task_folder", "num_seeds"),
    "registry": ("model_name",),
}
"""Section -> settings in the form. None is true or false: an empty one would be drawn as false."""


class _Form(Settings):
    """A model whose fields may all be absent.

    In its schema they have no default and are not nullable: Prefect's page then shows an empty
    entry for each, without asking for its type first.
    """

    @model_serializer(mode="wrap")
    def _only_filled(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


def _section(name: str, usual: Sequence[str]) -> type[_Form]:
    settings = Recipe.model_fields[name].annotation
    assert isinstance(settings, type)
    assert issubclass(settings, Settings)
    fields: dict[str, Any] = {
        key: _optional(key, settings.model_fields[key], position)
        for position, key in enumerate(usual)
    }
    doc = (settings.__doc__ or "").partition(".")[0]
    form = settings.__name__.replace("Settings", "Changes")
    return create_model(form, __base__=_Form, __doc__=doc, **fields)


def _optional(name: str, field: FieldInfo, position: int) -> tuple[Any, Any]:
    annotation: Any = field.annotation
    entry = FieldInfo.from_annotation(annotation)
    entry.metadata = field.metadata
    extra = partial(_as_entry, name, position)
    shape = Field(default=None, description=field.description, json_schema_extra=extra)
    return entry.rebuild_annotation() | None, shape


def _as_entry(name: str, position: int, schema: dict[str, Any]) -> None:
    """Remove the default and the choice of null from a field's schema, and set its place."""
    schema.pop("default", None)
    schema |= {"title": name, "position": position}
    kinds = [kind for kind in schema.pop("anyOf", []) if kind != {"type": "null"}]
    schema.update(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})


_SECTIONS: dict[str, Any] = {
    name: _optional(name, FieldInfo(annotation=_section(name, usual)), position)
    for position, (name, usual) in enumerate(_USUAL.items())
}


class RecipeChanges(create_model("_Changes", __base__=_Form, **_SECTIONS)):  # type: ignore[misc]
    """The settings that are changed most; what is left empty is as in the recipe."""


NO_CHANGES = RecipeChanges()


def with_form(settings: RecipeChanges, overrides: Sequence[str] | None) -> list[str]:
    """Return the form as overrides, followed by ``overrides``, which take precedence."""
    filled: dict[str, dict[str, Any]] = settings.model_dump(mode="json", exclude_none=True)
    # JSON's numbers, texts and lists of them are TOML's too.
    changes = [
        f"{section}.{name}={json.dumps(value)}"
        for section, values in filled.items()
        for name, value in values.items()
    ]
    return [*changes, *(overrides or [])]


_ADDRESS = {"type": "string", "pattern": WITHOUT_CREDENTIALS}
RecipeName = Annotated[
    str,
    WithJsonSchema(
        {
            # What no file has is inside of `allOf`, so that a refusal names the first's choices.
            "anyOf": [
                {"title": "shipped", "type": "string", "enum": shipped_recipes()},
                {"title": "a file", **_ADDRESS, "allOf": [{"pattern": "[/.]"}]},
            ]
        }
    ),
]
"""The name of a recipe that comes with the project, or the path or URI of a TOML file."""
Address = Annotated[str, Field(json_schema_extra=_ADDRESS)]
"""A path, a URI or a name."""
