import json
import subprocess
import sys
from pathlib import Path

import pytest

from albert_core.stage.errors import ConfigError
from flows.recipe import Recipe, load_recipe, save_recipe, shipped_recipes


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads(name: str) -> None:
    assert load_recipe(name).name == name


def test_the_published_sizes_are_shipped() -> None:
    sizes = {name: load_recipe(name).model for name in ("base", "large", "xlarge", "xxlarge")}
    assert {name: (m.hidden_size, m.num_hidden_layers) for name, m in sizes.items()} == {
        "base": (768, 12),
        "large": (1024, 24),
        "xlarge": (2048, 24),
        "xxlarge": (4096, 12),
    }
    assert {name: m.num_attention_heads for name, m in sizes.items()} == {
        "base": 12,
        "large": 16,
        "xlarge": 16,
        "xxlarge": 64,
    }
    assert all(m.intermediate_size == 4 * m.hidden_size for m in sizes.values())
    assert all(m.hidden_dropout_prob == m.attention_probs_dropout_prob == 0 for m in sizes.values())


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
    changed = load_recipe("tiny", ["training.num_steps=300"])
    assert changed.examples == load_recipe("tiny").examples
    assert changed.training.batch_size == load_recipe("tiny").training.batch_size


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "examples.max_seq_len=64",
            r"unknown setting 'examples.max_seq_len'; did you mean 'examples.max_seq_length'\?",
        ),
        ("exampels.seed=1", r"unknown setting 'exampels'; did you mean 'examples'\?"),
        ("task.qqqq=1", r"unknown setting 'task.qqqq'; there is task.max_sentences"),
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


def test_an_unknown_recipe_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="no recipe 'tinny'; did you mean 'tiny'"):
        load_recipe("tinny")


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
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
