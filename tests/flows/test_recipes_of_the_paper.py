import tomllib
from typing import Any

import pytest

from albert_core.planning.hardware import find_hardware
from albert_core.planning.parameters import PUBLISHED_SIZES, count_parameters
from flows.commands.plan import plan_recipe
from flows.recipe import SHIPPED, Recipe, load_recipe, shipped_recipes

ALBERT_SIZES = ("base", "large", "xlarge", "xxlarge")
DROPPED_IN_VERSION_1 = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
OF_THE_PAPER = sorted(set(shipped_recipes()) - {"tiny"})


@pytest.mark.parametrize("size", ["base", "large", "xlarge"])
def test_version_1_is_version_2_with_dropout_and_a_name_of_its_own(size: str) -> None:
    second, first = (load_recipe(name).model_dump() for name in (size, f"{size}-v1"))
    second["name"] += "-v1"
    second["registry"]["model_name"] += "-v1"
    second["model"] |= DROPPED_IN_VERSION_1
    assert second["finetuning"]["per_task"].keys() == {"race"}  # the paper's are of version 1
    second["finetuning"]["per_task"] = {}
    assert first == second


def test_xxlarge_had_no_dropout_in_version_1_and_so_has_one_recipe() -> None:
    assert load_recipe("xxlarge").model.hidden_dropout_prob == 0
    assert "xxlarge-v1" not in shipped_recipes()


@pytest.mark.parametrize(("bert", "albert"), [("bert-base", "base-v1"), ("bert-large", "large-v1")])
def test_bert_differs_from_albert_in_its_encoder_and_its_second_objective(
    bert: str, albert: str
) -> None:
    changed = load_recipe(albert).model_dump()
    changed["name"] = changed["registry"]["model_name"] = bert
    changed["model"] |= {
        "embedding_size": changed["model"]["hidden_size"],
        "sharing": "none",
        "hidden_act": "gelu",
    }
    changed["examples"]["objective"] = "nsp"
    found = load_recipe(bert).model_dump()
    changed["training"]["micro_batch_size"] = found["training"]["micro_batch_size"]
    assert found == changed


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_a_recipe_of_the_paper_trains_as_the_paper_did(name: str) -> None:
    # Source: paper section 4.1.
    recipe = load_recipe(name)
    training = recipe.training
    assert (training.optimizer, training.learning_rate) == ("lamb", 0.00176)
    assert (training.batch_size, training.num_steps, training.warmup_steps) == (4096, 125_000, 3125)
    assert (training.weight_decay, training.max_grad_norm) == (0.01, 1.0)
    assert (recipe.examples.max_seq_length, recipe.vocabulary.largest_size) == (512, 30_000)
    assert training.batch_size % training.micro_batch_size == 0


def test_every_model_of_table_2_has_a_recipe_with_its_parameters() -> None:
    rows = {p.row: p for p in PUBLISHED_SIZES if p.table == "2"}
    names = {f"ALBERT {size}": size for size in ALBERT_SIZES}
    names |= {"BERT base": "bert-base", "BERT large": "bert-large"}
    assert rows.keys() == names.keys()
    for row, name in names.items():
        recipe = load_recipe(name)
        counts = count_parameters(recipe.model, recipe.vocabulary.largest_size)
        assert counts == rows[row].counts, row


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_a_recipe_of_the_paper_fits_on_a_gpu_of_24_gb(name: str) -> None:
    assert plan_recipe(load_recipe(name), find_hardware("rtx-4090")).fits


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_names_only_what_differs_from_the_defaults(name: str) -> None:
    values = tomllib.loads((SHIPPED / f"{name}.toml").read_text())
    defaults: dict[str, Any] = Recipe(name="defaults").model_dump()
    same = [
        f"{section}.{field}"
        for section, fields in values.items()
        for field, value in fields.items()
        if defaults[section][field] == value
    ]
    assert same == []
