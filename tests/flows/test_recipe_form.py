"""The recipe's settings as a form on Prefect's page, and the parameters that it checks."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import Flow
from prefect.utilities.schema_tools import is_valid_schema, validate
from pydantic import ValidationError

from albert_core.stage.credentials import WITHOUT_CREDENTIALS, has_credentials
from flows.evaluate_albert import evaluate_albert
from flows.pretrain_albert import pretrain_albert
from flows.recipe import Recipe, load_recipe
from flows.recipe_form import RecipeChanges, with_form
from flows.refresh_corpus import refresh_corpus
from tests.albert_core.stage.test_credentials import WITH, WITHOUT


def test_the_form_has_every_section_and_field_with_description_and_default() -> None:
    schema = RecipeChanges.model_json_schema()
    assert schema["properties"].keys() == Recipe.model_fields.keys()
    training = schema["$defs"]["TrainingChanges"]["properties"]
    assert training.keys() == type(Recipe(name="x").training).model_fields.keys()
    assert training["num_steps"]["description"].endswith("included; default: 125000")
    assert (training["num_steps"]["type"], training["num_steps"]["minimum"]) == ("integer", 1)


def test_nothing_in_the_form_has_to_be_filled_in() -> None:
    schema = RecipeChanges.model_json_schema()
    records = {"OwnTaskSettings", "TaskHyperparameters"}  # of lists and tables: whole or not at all
    forms = [definition for name, definition in schema["$defs"].items() if name not in records]
    assert not any("required" in form for form in [schema, *forms])
    assert with_form(RecipeChanges(), None) == []
    empty = {"training": {"num_steps": None, "masks": None}, "model": None}
    assert with_form(RecipeChanges.model_validate(empty), None) == []


def test_what_is_filled_in_is_the_override_of_the_same_name() -> None:
    filled: dict[str, Any] = {
        "name": "mine",
        "cleaning": {"language": "de"},
        "training": {"num_steps": 500, "learning_rate": 1e-05},
        "finetuning": {"per_task": {"squad-1.1": {"num_epochs": 2.0}}},
    }
    overrides = with_form(RecipeChanges.model_validate(filled), ["training.num_steps=600"])
    recipe = load_recipe("tiny", overrides)
    assert (recipe.name, recipe.cleaning.language) == ("mine", "de")
    assert (recipe.training.num_steps, recipe.training.learning_rate) == (600, 1e-05)
    assert recipe.finetuning.per_task["squad-1.1"].num_epochs == 2.0


def test_a_task_of_ones_own_passes_through_the_form() -> None:
    task = {
        "name": "mood",
        "train": "/tasks/train.tsv",
        "dev": "/tasks/dev.tsv",
        "text_columns": ['a "quoted" column'],
    }
    form = RecipeChanges.model_validate({"evaluation": {"own_tasks": [task]}})
    [read] = load_recipe("tiny", with_form(form, None)).evaluation.own_tasks
    assert (read.name, read.text_columns) == ("mood", ['a "quoted" column'])


@pytest.mark.parametrize(
    "wrong",
    [
        {"training": {"num_step": 5}},
        {"training": {"num_steps": 0}},
        {"training": {"num_steps": "5"}},
        {"trainings": {}},
    ],
)
def test_the_form_is_as_strict_as_the_recipe(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RecipeChanges.model_validate(wrong)


@pytest.mark.parametrize(
    "flow", [pretrain_albert, refresh_corpus, evaluate_albert], ids=lambda flow: flow.name
)
def test_each_flow_offers_the_form_and_its_parameters_are_checked(flow: Flow[..., str]) -> None:
    schema = flow.parameters.model_dump()
    is_valid_schema(schema)
    assert schema["properties"]["settings"]["default"] == {}
    assert "settings" not in schema["required"]
    assert "TrainingChanges" in schema["definitions"]
    good = {"model": "models:/albert-tiny@champion", "overrides": ["training.seed=3"]}
    given = {name: value for name, value in good.items() if name in schema["properties"]}
    assert validate(given, schema, raise_on_error=False) == []
    for bad in (
        {"work": "s3://AKIAIO:xy99zz77@bucket/work"},
        {"overrides": ["source.uri=https://u:xy99zz77@host/a"]},
    ):
        assert validate(given | bad, schema, raise_on_error=False) != []


@pytest.mark.parametrize("uri", WITH + WITHOUT)
def test_the_form_refuses_what_the_recipe_refuses(uri: str) -> None:
    assert (re.search(WITHOUT_CREDENTIALS, uri) is None) == has_credentials(uri)


@pytest.mark.parametrize(
    "filled_in",
    [
        {"source": {"uri": "s3://AKIAIO:xy99zz77@bucket/work"}},
        {"source": {"uri": ["/texts", "s3://AKIAIO:xy99zz77@bucket/work"]}},
        {"training": {"initial_model": "https://host/a?sig=xy99zz77"}},
        {"evaluation": {"task_folder": "https://u:xy99zz77@host/tasks"}},
    ],
)
def test_the_recipe_s_form_is_checked_likewise(filled_in: dict[str, Any]) -> None:
    schema = pretrain_albert.parameters.model_dump()
    assert validate({"settings": filled_in}, schema, raise_on_error=False) != []
    harmless = json.loads(re.sub(r"[^\"]*xy99zz77[^\"]*", "/texts", json.dumps(filled_in)))
    assert validate({"settings": harmless}, schema, raise_on_error=False) == []


def test_every_text_of_the_recipe_s_form_is_checked() -> None:
    def texts(schema: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if isinstance(schema, dict):
            if schema.get("type") == "string" and "enum" not in schema:
                yield place, schema
            for name, inner in schema.items():
                yield from texts(inner, f"{place}.{name}")
        elif isinstance(schema, list):
            for number, inner in enumerate(schema):
                yield from texts(inner, f"{place}[{number}]")

    schema = pretrain_albert.parameters.model_dump()
    found = dict(texts(schema, "flow"))
    assert len(found) > 10
    assert [place for place, schema in found.items() if "pattern" not in schema] == []
