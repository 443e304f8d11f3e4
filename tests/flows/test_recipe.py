"""Recipes: how they are read, and what those of the paper say."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from albert_core.config import (
    FinetuningSettings,
    ModelSettings,
    TaskHyperparameters,
    TrainingSettings,
)
from albert_core.planning.hardware import find_hardware
from albert_core.planning.parameters import PUBLISHED_SIZES, count_parameters
from albert_core.stage.errors import ConfigError
from flows.commands.plan import plan_recipe
from flows.recipe import SHIPPED, Recipe, load_recipe, save_recipe, shipped_recipes
from pipelines.config import ExampleSettings, VocabularySettings


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
        ('finetuning.per_task."rte".num_epochs=2', "finetuning", "num_steps", 300),
    ],
)
def test_an_override_is_a_toml_value_or_text(
    override: str, section: str, field: str, value: object
) -> None:
    assert getattr(getattr(load_recipe("tiny", [override]), section), field) == value


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
        ("training.seed=" + "9" * 5000, r"training.seed: "),
        ("examples.max_seq_length=" + "9" * 400, "a number is too large"),
        ("training.seed=" + "[" * 5000, r"training.seed: "),
        ("registry.model_name=a/b", r"registry.model_name: .*, got 'a/b'"),
        ("registry.model_name=models:/x@y", r"registry.model_name: "),
        (f"registry.model_name={'x' * 300}", r"registry.model_name: "),
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
    for content in ("training = [", "seed = " + "9" * 5000, "training = " + "[" * 5000):
        (tmp_path / "mine.toml").write_text(content)
        with pytest.raises(ConfigError, match=r"mine.toml cannot be read as a recipe"):
            load_recipe(str(tmp_path / "mine.toml"))


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


SIZES: dict[str, dict[str, Any]] = {
    "base": {},
    "large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "xlarge": {
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 8192,
    },
    "xxlarge": {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
}
"""H, L, N and F of the released models, where they differ from base's."""
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
BERT = DROPOUT | {"sharing": "none", "hidden_act": "gelu"}
TABLE_2, VERSION_2 = " of the paper's Table 2", ", the released version 2, as far as it is known"
PUBLISHED: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{
        size: (f"ALBERT {size}{TABLE_2}", 125_000, shape | DROPOUT) for size, shape in SIZES.items()
    },
    **{
        f"{size}-v2": (f"ALBERT {size}{VERSION_2}", 3_000_000, shape)
        for size, shape in SIZES.items()
    },
    "base-v2": (f"ALBERT base{VERSION_2}", 10_000_000, {}),
    "wikipedia-books": (f"ALBERT base{TABLE_2}", 125_000, DROPOUT),
    "bert-base": (f"BERT base{TABLE_2}", 125_000, BERT | {"embedding_size": 768}),
    "bert-large": (
        f"BERT large{TABLE_2}",
        125_000,
        BERT | SIZES["large"] | {"embedding_size": 1024},
    ),
}
"""Recipe -> how its first line begins; updates; the model's settings that are not the defaults.

Source: paper, Table 2; README of google-research/albert.
"""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_is_to_the_step_the_model_that_its_first_line_names(name: str) -> None:
    title, num_steps, model = PUBLISHED[name]
    recipe = load_recipe(name)
    assert (SHIPPED / f"{name}.toml").read_text().startswith(f"# {title}")
    assert recipe.model == ModelSettings(**model)
    micro_batch_size = recipe.training.micro_batch_size
    assert recipe.training == TrainingSettings(
        num_steps=num_steps, micro_batch_size=micro_batch_size, precision="bfloat16"
    )
    assert recipe.training.batch_size % micro_batch_size == 0
    assert recipe.examples == ExampleSettings(objective="nsp" if "bert-" in name else "sop")
    assert recipe.vocabulary == VocabularySettings()


def test_what_no_recipe_of_the_paper_names_is_the_paper_s() -> None:
    # Source: paper section 4.1; google-research/albert, run_pretraining.py.
    training, recipe = TrainingSettings(), Recipe(name="defaults")
    assert (training.optimizer, training.learning_rate) == ("lamb", 0.00176)
    assert (training.batch_size, training.warmup_steps, training.schedule) == (4096, 3125, "linear")
    assert (training.weight_decay, training.max_grad_norm) == (0.01, 1.0)
    assert (recipe.examples.max_seq_length, recipe.vocabulary.largest_size) == (512, 30_000)


@pytest.mark.parametrize("name", PUBLISHED)
def test_fine_tuning_is_as_in_table_14_but_for_race_of_version_2(name: str) -> None:
    race = {"race": TaskHyperparameters(learning_rate=1e-5, encoder_dropout_prob=0.0)}
    per_task = race if name.endswith("-v2") else {}
    expected = FinetuningSettings(per_task=per_task, precision="bfloat16")
    assert load_recipe(name).finetuning == expected


def test_only_the_recipes_that_say_so_have_a_source() -> None:
    sources = {name: load_recipe(name).source.uri for name in shipped_recipes()}
    assert sources.pop("tiny") == "installed-python"
    assert [Path(uri).name for uri in sources.pop("wikipedia-books")] == ["*.bz2", "books"]
    assert set(sources.values()) == {""}


def test_every_model_of_table_2_has_a_recipe_with_its_parameters() -> None:
    rows = {p.row: p for p in PUBLISHED_SIZES if p.table == "2"}
    names = {f"ALBERT {size}": size for size in SIZES}
    names |= {"BERT base": "bert-base", "BERT large": "bert-large"}
    assert rows.keys() == names.keys()
    for row, name in names.items():
        recipe = load_recipe(name)
        counts = count_parameters(recipe.model, recipe.vocabulary.largest_size)
        assert counts == rows[row].counts, row


@pytest.mark.parametrize("name", PUBLISHED)
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
