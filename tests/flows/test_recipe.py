"""Recipes: how they are read, and what those of the paper say."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from albert_core.planning.hardware import find_hardware
from albert_core.planning.parameters import PUBLISHED_SIZES, count_parameters
from albert_core.stage.errors import ConfigError
from flows.commands.plan import plan_recipe
from flows.recipe import SHIPPED, Recipe, load_recipe, save_recipe, shipped_recipes


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads(name: str) -> None:
    assert load_recipe(name).name == name


@pytest.mark.parametrize(
    ("override", "section", "field", "value"),
    [
        ("training.num_steps=300", "training", "num_steps", 300),
        ("training.learning_rate=3e-4", "training", "learning_rate", 3e-4),
        ("examples.tfrecord=false", "examples", "tfrecord", False),
        ("registry.model_name=my model", "registry", "model_name", "my model"),
        ('registry.model_name="2018"', "registry", "model_name", "2018"),
        ("source.uri=memory://a=b.txt", "source", "uri", "memory://a=b.txt"),
        ("training.seed = 7", "training", "seed", 7),
    ],
)
def test_an_override_is_a_toml_value_or_text(
    override: str, section: str, field: str, value: object
) -> None:
    assert getattr(getattr(load_recipe("tiny", [override]), section), field) == value


def test_what_an_override_does_not_name_stays() -> None:
    changed = load_recipe("tiny", ["training.num_steps=300"]).model_dump()
    before = load_recipe("tiny").model_dump()
    before["training"]["num_steps"] = 300
    assert changed == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "examples.max_seq_len=64",
            r"unknown setting 'examples.max_seq_len'; did you mean 'examples.max_seq_length'\?",
        ),
        ("exampels.seed=1", r"unknown setting 'exampels'; did you mean 'examples'\?"),
        ("task.qqqq=1", r"unknown setting 'task.qqqq'; there is task.max_pairs"),
        ("training.num_steps=many", r"training.num_steps: .*, got 'many'"),
        ("examples.masked_lm_prob=15", r"examples.masked_lm_prob: .*, got 15"),
        ("training.num_steps", r"'training.num_steps' is not of the form section.field=value"),
        ("training..num_steps=1", r"'training..num_steps=1' is not of the form"),
        ("training.num_steps.x=1", "'num_steps' is a setting, not a section"),
        ("name.b=1", r"'name' is a setting, not a section"),
        ("name=a/b", r"name: .*, got 'a/b'"),
        (
            "examples.max_seq_length=1024",
            r"examples.max_seq_length is 1024, but model.max_position_embeddings is only 512",
        ),
        ("finetuning.max_seq_length=513", r"finetuning.max_seq_length is 513"),
    ],
)
def test_a_mistake_is_refused_and_named_by_its_path(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("tiny", [override])


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["training.seed=1", "training.num_steps=many"], "--set training.num_steps=many: train"),
        (["training.num_steps"], "--set 'training.num_steps' is not of the form"),
        (["name.b=1"], "--set name.b=1: 'name' is a setting"),
        (["examples.max_seq_length=1024"], "--set examples.max_seq_length=1024: examples.max_"),
        (["model.num_attention_heads=7"], "--set model.num_attention_heads=7: "),
    ],
)
def test_a_mistake_in_an_override_names_it_and_not_the_file(
    overrides: list[str], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("tiny", overrides)
    assert str(caught.value).startswith(told)
    assert "tiny.toml" not in str(caught.value)


def test_a_mistake_of_the_file_names_it_whatever_the_overrides(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nnum_steps = 0\n")
    with pytest.raises(ConfigError, match=r"mine\.toml: training.num_steps"):
        load_recipe(str(tmp_path / "mine.toml"), ["examples.seed=3"])
    assert load_recipe(str(tmp_path / "mine.toml"), ["training.num_steps=9000"])


def test_an_unknown_recipe_and_a_file_that_is_not_toml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no recipe 'tinny'; did you mean 'tiny'"):
        load_recipe("tinny")
    (tmp_path / "mine.toml").write_text("training = [")
    with pytest.raises(ConfigError, match=r"mine.toml cannot be read as a recipe"):
        load_recipe(str(tmp_path / "mine.toml"))


def test_a_recipe_of_ones_own_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nnum_steps = 5000\n")
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert (recipe.name, recipe.training.num_steps) == ("mine", 5000)


def test_of_the_readers_text_all_is_read() -> None:
    assert load_recipe("tiny").source.file_share < 1
    assert load_recipe("tiny", source="/data/mine").source.file_share == 1
    assert load_recipe("tiny", ["source.file_share=0.5"], "/data/mine").source.file_share == 0.5


def test_the_readers_text_means_the_same_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe("tiny", source="texts/**").source.uri == f"{tmp_path}/texts/**"
    assert load_recipe("tiny", source="2018").source.uri == f"{tmp_path}/2018"
    assert load_recipe("tiny").source.uri == "installed-python"
    assert load_recipe("tiny", source="memory://a/b*").source.uri == "memory://a/b*"


def test_the_resolved_recipe_is_saved_by_its_content(tmp_path: Path) -> None:
    recipe = load_recipe("tiny")
    uri = save_recipe(recipe, str(tmp_path))
    assert save_recipe(recipe, str(tmp_path)) == uri
    assert save_recipe(load_recipe("tiny", ["training.seed=1"]), str(tmp_path)) != uri
    assert Path(uri).name.startswith("tiny-")
    assert Recipe.read(json.loads(Path(uri).read_text()), uri) == recipe


def test_a_recipe_is_read_without_the_heavy_libraries() -> None:
    code = (
        "import sys, flows.recipe, flows.report; flows.recipe.load_recipe('tiny');"
        "print(sorted({'torch', 'apache_beam', 'mlflow', 'prefect'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_setting_of_one_task_can_be_overridden() -> None:
    recipe = load_recipe("tiny", ['finetuning.per_task."squad-1.1".num_epochs=2'])
    assert recipe.finetuning.per_task["squad-1.1"].num_epochs == 2
    assert recipe.finetuning.num_steps == 300


ALBERT_SIZES = ("base", "large", "xlarge", "xxlarge")
DROPPED_IN_VERSION_1 = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
OF_THE_PAPER = sorted(set(shipped_recipes()) - {"tiny", "small", "fast-base"})


@pytest.mark.parametrize(
    ("size", "hidden", "layers", "heads"),
    [
        ("base", 768, 12, 12),
        ("large", 1024, 24, 16),
        ("xlarge", 2048, 24, 16),
        ("xxlarge", 4096, 12, 64),
    ],
)
def test_the_published_sizes_are_shipped(size: str, hidden: int, layers: int, heads: int) -> None:
    model = load_recipe(size).model
    assert (model.hidden_size, model.num_hidden_layers) == (hidden, layers)
    assert (model.num_attention_heads, model.intermediate_size) == (heads, 4 * hidden)
    assert model.hidden_dropout_prob == model.attention_probs_dropout_prob == 0


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
