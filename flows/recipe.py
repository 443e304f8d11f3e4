"""Recipe: the settings of every stage of one run, read strictly from one TOML file.

`RecipeChanges` is a form on Prefect's page with the settings that are changed most. Its entries
become overrides as on the command line, so that a run started from the page can be repeated by
hand. Prefect keeps parameters in its database, and checks them by their JSON schema before it does:
`Address` is a text that may be a URI, without credentials.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    create_model,
    model_serializer,
    model_validator,
)

import albert_core.config as core
import pipelines.config as data
from albert_core.stage import credentials, errors, lock, manifest, storage
from albert_core.stage.results import PASSAGE_SOURCE
from albert_core.stage.settings import Settings, near, refuse_credentials

SHIPPED = Path(__file__).parent / "recipes"
RECIPES = "recipes"
"""Folder in the work folder for the resolved recipes of its runs."""
_DIGEST_DIGITS = 12


class Recipe(Settings):
    """The settings of every stage, one section each, with defaults for what a file leaves out."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="of files and messages")
    source: data.SourceSettings = data.SourceSettings()
    cleaning: data.CleaningSettings = data.CleaningSettings()
    vocabulary: data.VocabularySettings = data.VocabularySettings()
    examples: data.ExampleSettings = data.ExampleSettings()
    task: data.TaskSettings = data.TaskSettings()
    model: core.ModelSettings = core.ModelSettings()
    training: core.TrainingSettings = core.TrainingSettings()
    finetuning: core.FinetuningSettings = core.FinetuningSettings()
    evaluation: core.EvaluationSettings = core.EvaluationSettings()
    contamination: data.ContaminationSettings = data.ContaminationSettings()
    scoring: core.ScoringSettings = core.ScoringSettings()
    registry: core.RegistrySettings = core.RegistrySettings()

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Self:
        core.check_shallow_share(self.model, self.training)
        if self.training.masks == "fresh":
            core.check_fresh_masks(self.examples.fidelity)
        positions, per_task = self.model.max_position_embeddings, self.finetuning.per_task
        lengths = {
            "examples": self.examples.max_seq_length,
            "finetuning": self.finetuning.max_seq_length,
            **{f"finetuning.per_task.{task}": per_task[task].max_seq_length for task in per_task},
        }
        for section, length in lengths.items():
            if length is not None and length > positions:
                raise errors.ConfigError(
                    f"{section}.max_seq_length is {length}, but model.max_position_embeddings is "
                    f"only {positions}: shorten the one or raise the other"
                )
        return self

    @model_validator(mode="after")
    def _tasks_exist(self) -> Self:
        named = {
            "evaluation.tasks": self.evaluation.tasks,
            "evaluation.from_mnli": self.evaluation.from_mnli,
            "finetuning.per_task": list(self.finetuning.per_task),
        }
        own = [each.name for each in self.evaluation.own_tasks]
        if not any((own, *named.values())):
            return self
        from albert_core.tasks.catalogue import SCORED_WITH, TASKS  # imports Arrow: takes longer

        if taken := [name for name in own if name in TASKS]:
            raise errors.ConfigError(
                f"evaluation.own_tasks has {taken[0]!r}, which is a public task: give yours "
                "another name"
            )
        known = [*(name for name in TASKS if name not in SCORED_WITH), *own, PASSAGE_SOURCE]
        for setting, names in named.items():
            if unknown := [name for name in names if name not in known]:
                raise errors.ConfigError(
                    f"{setting} names {unknown[0]!r}, but there is no such task to fine-tune on"
                    f"{near(unknown[0], known)}"
                )
        return self


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with the project."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load_recipe(
    recipe: str | Mapping[str, Any], overrides: Sequence[str] = (), source: str | None = None
) -> Recipe:
    """Return the recipe with its overrides applied.

    Args:
        recipe: the name of a shipped recipe, the path or URI of a TOML file, or what a model's
            manifests note of its own recipe.
        overrides: ``section.field=value`` each, with a TOML value; text needs no quotes. One of
            ``source.uri`` names the user's own text, of which all is read too.
        source: the user's own text, a path, glob or URI: all of it is read, whatever share or
            format the recipe sets for its own source.

    Raises:
        ConfigError: the recipe does not exist, or a setting is unknown or impossible.
    """
    refuse_credentials([recipe, source or "", *overrides], "the flow's parameters")
    if isinstance(recipe, str):
        content, uri = _find_recipe(recipe)
        values = {"name": Path(uri).stem, **content}
    else:
        uri = "the model's own recipe (--recipe gives another)"
        values = {"name": "defaults", **recipe}
    if source is not None:
        values["source"] = {"uri": source}
    changed = deepcopy(values)
    section = changed.get("source")
    if isinstance(section, dict) and ["source", "uri"] in map(_keys_of, overrides):
        section.pop("file_share", None)
    for override in overrides:
        _apply(changed, override)
    try:
        resolved = Recipe.read(changed, uri)
    except errors.ConfigError as error:
        Recipe.read(values, uri)  # if the file is right, the overrides are to blame
        message = str(error).removeprefix(f"{uri}: ")
        words = set(re.split(r"[^\w.-]|\.(?!\d)", message))  # a task's name may be squad-1.1
        named = [each for each in overrides if words.issuperset(_keys_of(each))]
        blamed = " ".join(f"--set {each}" for each in named or overrides)
        raise errors.ConfigError(f"{blamed}: {message}") from None
    return _anchored(resolved)


def save_recipe(recipe: Recipe, work: str) -> str:
    """Write the resolved recipe below ``work``, named by its content; return its URI.

    An old one is written again, and on a local disk locked until this process ends: retention keeps
    what is young, and what was made since the recipe of a run that is under way was written.
    """
    digest = manifest.digest_of(recipe.model_dump(mode="json"))[:_DIGEST_DIGITS]
    uri = storage.join(work, place := f"{RECIPES}/{recipe.name}-{digest}.json")
    is_other_runs = storage.local_path(work) and not lock.take_at_once(work, place)
    if is_other_runs and storage.exists(uri):
        return uri  # as old as that run
    storage.write_bytes(uri, (recipe.model_dump_json(indent=1) + "\n").encode())
    return uri


@dataclass(frozen=True)
class RecipeRun:
    """One run of a recipe: its settings, where they were saved, and the folder for results."""

    recipe: Recipe
    recipe_uri: str
    work: str
    given: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of a flow that repeat the run: recipe, source, overrides and work."""

    def find_done(self, module: str, **inputs: str) -> str | None:
        """Return the manifest of a stage's result for these settings and inputs; None without one.

        This needs neither a server nor Prefect, torch or Beam: the stage's module has a function
        `stage_plan` that says what the result depends on, or a `find_done` of its own.

        Args:
            module: module of the stage.
            inputs: the stage's inputs, by the names of its parameters.

        Raises:
            AlbertError: a setting or an input is wrong, as the stage itself would find.
        """
        stage = import_module(module)
        find = getattr(stage, "find_done", None) or stage.stage_plan
        given = {**dict(self.recipe), **inputs, "work": self.work}
        found = find(**{name: given[name] for name in signature(find).parameters})
        return found.done(self.work) if isinstance(found, manifest.StagePlan) else found


class NotDoneError(Exception):
    """A stage has work to do, but there is no flow run to do it in."""


def _find_recipe(recipe: str) -> tuple[dict[str, Any], str]:
    """Return the content of a recipe, and where it is."""
    uri = recipe
    if recipe in shipped_recipes():
        uri = str(SHIPPED / f"{recipe}.toml")
    elif (path := storage.local_path(recipe)) is not None and not path.is_file():
        raise errors.ConfigError(
            f"there is no recipe {recipe!r}{near(recipe, shipped_recipes())}. "
            f"Give one of these names, or the path of a TOML file: {path} is none."
        )
    try:
        return tomllib.loads(storage.read_bytes(uri).decode()), uri
    except (OSError, ValueError, RecursionError) as error:
        raise errors.ConfigError(f"{uri} cannot be read as a recipe: {error}") from error


def _apply(values: dict[str, Any], override: str) -> None:
    keys = _keys_of(override)
    if not keys:
        raise errors.ConfigError(f"--set {override!r} is not of the form section.field=value")
    for name in keys[:-1]:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise errors.ConfigError(
                f"--set {override}: {name!r} is a setting, not a section with settings"
            )
    values[keys[-1]] = _toml_value(override.partition("=")[2].strip())


_OF_TASK = re.compile(
    rf"(finetuning\.per_task\.)([\w.-]+)(\.(?:{'|'.join(core.TaskHyperparameters.model_fields)}))"
)
"""A setting of one task, whose name may have a dot."""


def _keys_of(override: str) -> list[str]:
    """Return the path of the setting, as TOML reads it; empty if there is none.

    A task's name, as in ``finetuning.per_task.squad-1.1.num_epochs=2``, needs no quotes.
    """
    path, equals, _ = override.partition("=")
    path = _OF_TASK.sub(r'\1"\2"\3', path)
    keys, inner = [], _toml(f"{path} = 0") if equals else {}
    while isinstance(inner, dict) and inner:
        (key, inner), *others = inner.items()
        keys.append(key)
        if others:  # text with line ends may be several settings
            return []
    return keys


def _toml_value(text: str) -> Any:
    parsed = _toml(f"value = {text}")
    return parsed["value"] if len(parsed) == 1 else text


def _toml(text: str) -> Any:
    """Return what TOML reads; empty if it is not TOML."""
    with suppress(ValueError, RecursionError):  # also a number of thousands of digits
        return tomllib.loads(text)
    return {}


_ADDRESSES = {
    "source": ("uri",),
    "cleaning": ("known_corpora", "test_texts", "excluded_ids"),
    "vocabulary": ("model",),
    "training": ("continue_from", "initial_model"),
    "evaluation": ("task_folder",),
}
"""Settings that are paths or URIs, by section."""


def _anchored(recipe: Recipe) -> Recipe:
    """Return the recipe with paths that mean the same from any working directory."""
    sections = {name: _absolute(getattr(recipe, name), *each) for name, each in _ADDRESSES.items()}
    own_tasks = [_absolute(task, "train", "dev", "test") for task in recipe.evaluation.own_tasks]
    sections["evaluation"] = sections["evaluation"].model_copy(update={"own_tasks": own_tasks})
    return recipe.model_copy(update=sections)


def _absolute(section: Settings, *fields: str) -> Settings:
    def anchored(address: str | list[str]) -> str | list[str]:
        if isinstance(address, list):
            return list(map(storage.absolute, address))
        return address if address in ("", data.INSTALLED_PYTHON) else storage.absolute(address)

    return section.model_copy(update={name: anchored(getattr(section, name)) for name in fields})


_USUAL = {
    "cleaning": ("language", "keep_languages"),
    "vocabulary": ("vocab_size",),
    "examples": ("max_seq_length", "dupe_factor"),
    "training": ("num_steps", "batch_size", "micro_batch_size", "learning_rate"),
    "evaluation": ("task_folder", "num_seeds"),
    "registry": ("model_name",),
}
"""Section -> settings in the form. None is a boolean: an empty one would be shown as false."""


class _Form(Settings):
    """A model whose fields may all be absent.

    In its schema they have no default and are not nullable: Prefect's page then shows an empty
    entry for each, without asking for its type first.
    """

    @model_serializer(mode="wrap")
    def _only_filled(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


def _optional(
    name: str, position: int, kind: Any, description: str | None = None
) -> tuple[Any, Any]:
    """Return a field of a form: its type, and how Prefect's page shows it."""

    def shape(schema: dict[str, Any]) -> None:
        schema.pop("default", None)
        kinds = [each for each in schema.pop("anyOf", []) if each != {"type": "null"}]
        schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        schema |= {"title": name, "position": position}

    return kind | None, Field(default=None, description=description, json_schema_extra=shape)


def _form_of(section: str) -> type[_Form]:
    settings: Any = Recipe.model_fields[section].annotation
    fields: dict[str, Any] = {}
    for position, name in enumerate(_USUAL[section]):
        field = settings.model_fields[name]
        fields[name] = _optional(name, position, field.rebuild_annotation(), field.description)
    title = settings.__name__.replace("Settings", "Changes")
    doc = (settings.__doc__ or "").partition(".")[0]  # python -OO has no docstrings
    return create_model(title, __base__=_Form, __doc__=doc, **fields)


_SECTIONS: dict[str, Any] = {
    name: _optional(name, position, _form_of(name)) for position, name in enumerate(_USUAL)
}


class RecipeChanges(create_model("_Changes", __base__=_Form, **_SECTIONS)):  # type: ignore[misc]
    """The settings that are changed most; an empty one is as in the recipe."""


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


_ADDRESS = {"type": "string", "pattern": credentials.WITHOUT_CREDENTIALS}
# What no file has is inside of `allOf`, so that a refusal names the shipped recipes.
_CHOICES = [
    {"title": "shipped", "type": "string", "enum": shipped_recipes()},
    {"title": "a file", **_ADDRESS, "allOf": [{"pattern": "[/.]"}]},
]
RecipeName = Annotated[str, WithJsonSchema({"anyOf": _CHOICES})]
"""The name of a recipe that comes with the project, or the path or URI of a TOML file."""
Address = Annotated[str, Field(json_schema_extra=_ADDRESS)]
"""A path, a URI or a name."""
