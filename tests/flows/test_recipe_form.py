from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from pydantic import ValidationError

from flows import evaluate_albert, pretrain_albert, refresh_corpus
from flows.recipe import Recipe, load_recipe
from flows.recipe_form import RecipeChanges, with_form

FLOWS = [
    pretrain_albert.pretrain_albert,
    refresh_corpus.refresh_corpus,
    evaluate_albert.evaluate_albert,
]


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


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_each_flow_offers_the_form(flow: Any) -> None:
    schema = parameter_schema(flow.fn)
    assert "settings" in schema.properties
    assert "settings" not in schema.required
    assert schema.properties["settings"]["default"] == {}
    assert "TrainingChanges" in schema.definitions
