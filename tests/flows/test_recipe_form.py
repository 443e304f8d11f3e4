"""The recipe's settings as a form on Prefect's page, and the parameters that it checks."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import Flow
from prefect.utilities.schema_tools import ValidationError as ParametersError
from prefect.utilities.schema_tools import is_valid_schema, validate

from albert_core.config import TrainingSettings
from albert_core.stage.credentials import WITHOUT_CREDENTIALS, has_credentials
from flows.evaluate_albert import evaluate_albert
from flows.pretrain_albert import pretrain_albert
from flows.recipe import RecipeChanges, load_recipe, shipped_recipes, with_form
from flows.refresh_corpus import refresh_corpus
from tests.albert_core.stage.test_credentials import WITH, WITHOUT


def test_the_form_has_a_dozen_settings_with_the_descriptions_and_bounds_of_the_recipe() -> None:
    schema = RecipeChanges.model_json_schema()
    fields = [
        (name, shape)
        for section in schema["$defs"].values()
        for name, shape in section["properties"].items()
    ]
    assert len(fields) == 12
    assert all("description" in shape for _, shape in fields)
    steps = schema["$defs"]["TrainingChanges"]["properties"]["num_steps"]
    assert steps["description"] == TrainingSettings.model_fields["num_steps"].description
    assert (steps["type"], steps["minimum"]) == ("integer", 1)


def test_nothing_is_drawn_as_false_or_as_a_default_that_is_not_the_recipe_s() -> None:
    schema = RecipeChanges.model_json_schema()
    for form in [schema, *schema["$defs"].values()]:
        assert "required" not in form
        for shape in form["properties"].values():
            assert "default" not in shape
            assert shape.get("type") != "boolean"
    assert with_form(RecipeChanges(), None) == []
    empty = {"training": {"num_steps": None, "batch_size": None}, "cleaning": None}
    assert with_form(RecipeChanges.model_validate(empty), None) == []


def test_what_is_filled_in_is_the_override_of_the_same_name() -> None:
    filled: dict[str, Any] = {
        "cleaning": {"language": "de", "keep_languages": ["de", "en"]},
        "vocabulary": {"vocab_size": "auto"},
        "training": {"num_steps": 500, "learning_rate": 1e-05},
        "registry": {"model_name": "a name-1.0"},
    }
    overrides = with_form(RecipeChanges.model_validate(filled), ["training.num_steps=600"])
    recipe = load_recipe("tiny", overrides)
    assert (recipe.cleaning.language, recipe.cleaning.keep_languages) == ("de", ["de", "en"])
    assert recipe.vocabulary.vocab_size == "auto"
    assert (recipe.training.num_steps, recipe.training.learning_rate) == (600, 1e-05)
    assert recipe.registry.model_name == "a name-1.0"


FLOWS = [pretrain_albert, refresh_corpus, evaluate_albert]
each_flow = pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)


def refusal(parameters: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return what Prefect's server says of parameters; empty if it takes them."""
    try:
        validate(parameters, schema, raise_on_error=True)
    except ParametersError as error:
        return str(error)
    return ""


@each_flow
def test_the_parameters_of_each_flow_are_checked_before_its_run(flow: Flow[..., str]) -> None:
    schema = flow.parameters.model_dump()
    is_valid_schema(schema)
    good = {"model": "models:/albert-tiny@champion", "overrides": ["training.seed=3"]}
    given = {name: value for name, value in good.items() if name in schema["properties"]}
    assert refusal(given, schema) == ""
    for bad in (
        {"work": "s3://AKIAIO:xy99zz77@bucket/work"},
        {"recipe": "s3://AKIAIO:xy99zz77@bucket/recipe.toml"},
        {"overrides": ["source.uri=https://u:xy99zz77@host/a"]},
    ):
        assert refusal(given | bad, schema)


@each_flow
def test_a_recipe_is_one_of_the_project_s_or_a_file(flow: Flow[..., str]) -> None:
    schema = flow.parameters.model_dump()
    given = {"model": "models:/a@b"} if "model" in schema["properties"] else {}
    for recipe in (*shipped_recipes(), "mine.toml", "/data/mine", "s3://bucket/mine"):
        assert refusal(given | {"recipe": recipe}, schema) == ""
    assert refusal(given | {"recipe": "bogus"}, schema) == (
        "Validation failed for field 'recipe'. Failure reason: 'bogus' is not one of "
        f"{shipped_recipes()}"
    )


@pytest.mark.parametrize("flow", [pretrain_albert, refresh_corpus], ids=lambda flow: flow.name)
def test_a_form_may_be_left_out(flow: Flow[..., str]) -> None:
    schema = flow.parameters.model_dump()
    assert schema["properties"]["settings"]["default"] == {}
    assert "settings" not in schema["required"]
    few = {"source": "/texts", "settings": {"training": {"num_steps": 3200}}}
    assert refusal(few, schema) == ""


@pytest.mark.parametrize("uri", WITH + WITHOUT)
def test_the_form_refuses_what_the_recipe_refuses(uri: str) -> None:
    assert (re.search(WITHOUT_CREDENTIALS, uri) is None) == has_credentials(uri)


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
    assert len(found) > 8
    assert [place for place, schema in found.items() if "pattern" not in schema] == []
