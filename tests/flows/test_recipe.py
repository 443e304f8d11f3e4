"""Recipes: how they are read, and what those of the paper say."""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import Flow
from prefect.utilities.schema_tools import ValidationError as ParametersError
from prefect.utilities.schema_tools import is_valid_schema, validate

from albert_core import config
from albert_core.stage.credentials import WITHOUT_CREDENTIALS, has_credentials
from albert_core.stage.errors import ConfigError
from flows.evaluate_albert import evaluate_albert
from flows.pretrain_albert import pretrain_albert
from flows.recipe import (
    SHIPPED,
    Recipe,
    RecipeChanges,
    load_recipe,
    save_recipe,
    shipped_recipes,
    with_form,
)
from flows.refresh_corpus import refresh_corpus
from pipelines.config import ExampleSettings, VocabularySettings
from tests.albert_core.stage.test_credentials import WITH, WITHOUT

OWN_TASK = '{name="t", text_columns=["x"], train="t.tsv", dev="d.tsv"}'


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("training.num_steps=300", 300),
        ("training.learning_rate=3e-4", 3e-4),
        ("examples.tfrecord=true", True),
        ("registry.model_name=my model", "my model"),
        ('registry.model_name="2018"', "2018"),
        ("source.uri=memory://a=b.txt", "memory://a=b.txt"),
        ("training.seed = 7", 7),
        ('finetuning.per_task."rte".num_epochs=2', None),
    ],
)
def test_an_override_is_a_toml_value_or_text(override: str, value: object) -> None:
    section, _, field = override.partition("=")[0].strip().partition(".")
    found = getattr(load_recipe("tiny", [override]), section)
    if value is None:
        assert (found.per_task["rte"].num_epochs, found.num_steps) == (2, 120)
    else:
        assert getattr(found, field) == value


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
        ("training.max_grad_norm=inf", r"training.max_grad_norm: .*finite number, got inf"),
        ("examples.masked_lm_prob=15", r"examples.masked_lm_prob: .*, got 15"),
        ("training.num_steps", r"'training.num_steps' is not of the form section.field=value"),
        ("training..num_steps=1", r"'training..num_steps=1' is not of the form"),
        ("source.id_field=\udcff", "a setting is not UTF-8"),
        ("[training]\n[model]\nx=1", "is not of the form section.field=value"),
        ("training.num_steps.x=1", "'num_steps' is a setting, not a section"),
        ("name.b=1", r"'name' is a setting, not a section"),
        ("name=a/b", r"name: .*, got 'a/b'"),
        (
            "examples.max_seq_length=1024",
            r"examples.max_seq_length is 1024, but model.max_position_embeddings is only 512",
        ),
        ("model.num_attention_heads=7", r"hidden_size 128 is not a multiple"),
        ("finetuning.max_seq_length=513", r"finetuning.max_seq_length is 513"),
        (
            "finetuning.per_task.rte.max_seq_length=513",
            r"per_task\.rte\.max_seq_length is 513, but",
        ),
        ("model.sharing=none", r"training\.shallow_share is 0\.7, but layers that come later"),
        (
            "model.num_hidden_groups=2",
            r"training\.shallow_share is 0\.7, but layers that come later",
        ),
        ("examples.fidelity=google", r"masks cannot be drawn afresh where examples\.fidelity"),
        (
            'evaluation.tasks=["sst2"]',
            r"evaluation\.tasks names 'sst2', .*; did you mean 'sst-2'\?",
        ),
        ('evaluation.from_mnli=["sts"]', r"from_mnli names 'sts', .*; did you mean 'sts-b'\?"),
        ('evaluation.from_mnli=["ax"]', r"from_mnli names 'ax', but there is no such task to fine"),
        (
            "finetuning.per_task.passage_source.num_epochs=2",
            r"per_task names 'passage_source', .*; did you mean 'passage-source'\?",
        ),
        ("task.min_words=21", "task: min_words is 21, but max_words only 20"),
        (f"evaluation.own_tasks=[{OWN_TASK}, {OWN_TASK}]", "own_tasks has two called 't'"),
        (
            "evaluation.own_tasks=[" + OWN_TASK.replace('"t"', '"rte"') + "]",
            r"own_tasks has 'rte', which is a public task: give yours another name",
        ),
        (
            "evaluation.own_tasks=[" + OWN_TASK.replace("{", '{cluster_column="label", ') + "]",
            r"own_tasks\.0: cluster_column is the label's, 'label'",
        ),
        (
            "finetuning.per_task={squad-1.1.num_epochs=2}",
            r'per_task: .* needs quotes: finetuning\.per_task\."squad-1\.1"$',
        ),
        ("finetuning.per_task.squad-1.1.epochs=2", r'finetuning\.per_task\."squad-1\.1"'),
        ("cleaning.language=english", r"cleaning\.language: .*, got 'english'"),
        ('cleaning.keep_languages=["EN"]', r"cleaning\.keep_languages\.0: .*, got 'EN'"),
        ("training.seed=" + "9" * 5000, r"training.seed: "),
        ("examples.max_seq_length=" + "9" * 400, r"max_seq_length: .*equal to 65536"),
        ("training.seed=" + "[" * 5000, r"training.seed: "),
        ("registry.model_name=a/b", r"registry.model_name: .*, got 'a/b'"),
        ("registry.model_name=models:/x@y", r"registry.model_name: "),
        (f"registry.model_name={'x' * 300}", r"registry.model_name: "),
    ],
)
def test_a_mistake_is_refused_and_named_by_its_path_and_the_override_not_the_file(
    override: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe("tiny", [override])
    assert str(caught.value).startswith("--set ")
    assert "tiny.toml" not in str(caught.value)


def test_an_own_task_and_the_generated_one_may_be_named_like_a_public_one() -> None:
    for name in ("t", "passage-source", "rte"):
        settings = [
            f"evaluation.own_tasks=[{OWN_TASK}]",
            f'evaluation.tasks=["{name}"]',
            f"finetuning.per_task.{name}.num_epochs=2",
        ]
        assert load_recipe("tiny", settings).finetuning.per_task.keys() == {name}
        if name == "t":
            with pytest.raises(ConfigError, match=r"evaluation\.tasks names 't'"):
                load_recipe("tiny", settings[1:])


@pytest.mark.parametrize("name", ["squad-1.1", '"squad-1.1"', "squad-2.0"])
def test_a_task_with_a_dot_in_its_name_needs_no_quotes_in_an_override(name: str) -> None:
    found = load_recipe("tiny", [f"finetuning.per_task.{name}.num_epochs=2"]).finetuning.per_task
    assert {task: each.num_epochs for task, each in found.items()} == {name.strip('"'): 2}


def test_of_several_overrides_the_wrong_one_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^--set training.num_steps=many: train"):
        load_recipe("tiny", ["training.seed=1", "training.num_steps=many"])
    with pytest.raises(ConfigError, match=r"^--set training.masks=shards: training: mask_share 0"):
        load_recipe("tiny", ["training.seed=1", "training.masks=shards"])


def test_a_mistake_of_the_file_names_it_whatever_the_overrides(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nnum_steps = 0\n")
    with pytest.raises(ConfigError, match=r"mine\.toml: training.num_steps"):
        load_recipe(str(tmp_path / "mine.toml"), ["examples.seed=3"])
    for place in (tmp_path / "mine.toml", (tmp_path / "mine.toml").as_uri()):
        assert load_recipe(str(place), ["training.num_steps=9000"])


def test_an_unknown_recipe_and_a_file_that_is_not_toml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no recipe 'tinny'; did you mean 'tiny'"):
        load_recipe("tinny")
    looked_at = Path.cwd() / "mine.toml"  # a worker's folder, for a run of a deployment
    with pytest.raises(ConfigError, match=re.escape(f"TOML file: {looked_at} is none.")):
        load_recipe("mine.toml")
    for content in ("training = [", "seed = " + "9" * 5000, "training = " + "[" * 5000):
        (tmp_path / "mine.toml").write_text(content)
        with pytest.raises(ConfigError, match=r"mine.toml cannot be read as a recipe"):
            load_recipe(str(tmp_path / "mine.toml"))


def test_the_readers_text_is_read_whole_and_means_the_same_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe("tiny").source.file_share < 1
    assert load_recipe("tiny", source="/data/mine").source.file_share == 1
    assert load_recipe("tiny", ["source.file_share=0.5"], "/data/mine").source.file_share == 0.5
    assert load_recipe("tiny", ["source.uri=/data/mine"]).source.file_share == 1
    half = ["source.file_share=0.5", "source.uri=/data/mine"]
    assert load_recipe("tiny", half).source.file_share == 0.5
    assert load_recipe("tiny").source.uri == "installed-python"
    for source in ("texts/**", "2018"):
        assert load_recipe("tiny", source=source).source.uri == f"{tmp_path}/{source}"
    assert load_recipe("tiny", source="memory://a/b*").source.uri == "memory://a/b*"
    settings = ['cleaning.known_corpora=["a", "s3://b/c"]', "training.initial_model=m"]
    task = '{name="t", kind="classification", text_columns=["x"], train="t.tsv", dev="/d.tsv"}'
    recipe = load_recipe("tiny", [*settings, f"evaluation.own_tasks=[{task}]"])
    assert recipe.cleaning.known_corpora == [f"{tmp_path}/a", "s3://b/c"]
    assert recipe.training.initial_model == f"{tmp_path}/m"
    [own] = recipe.evaluation.own_tasks
    assert (own.train, own.dev, own.test) == (f"{tmp_path}/t.tsv", "/d.tsv", "")


def test_the_resolved_recipe_is_saved_by_its_content(tmp_path: Path) -> None:
    recipe = load_recipe("tiny")
    uri = save_recipe(recipe, str(tmp_path))
    os.utime(uri, (0, 0))
    assert save_recipe(recipe, str(tmp_path)) == uri
    assert Path(uri).stat().st_mtime > 0  # retention keeps what is young
    assert save_recipe(load_recipe("tiny", ["training.seed=1"]), str(tmp_path)) != uri
    assert Path(uri).name.startswith("tiny-")
    assert Recipe.read(json.loads(Path(uri).read_text()), uri) == recipe


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
    assert recipe.model == config.ModelSettings(**model)
    micro_batch_size = recipe.training.micro_batch_size
    assert recipe.training == config.TrainingSettings(
        num_steps=num_steps, micro_batch_size=micro_batch_size, precision="bfloat16"
    )
    assert recipe.training.batch_size % micro_batch_size == 0
    assert recipe.examples == ExampleSettings(objective="nsp" if "bert-" in name else "sop")
    assert recipe.vocabulary == VocabularySettings()
    race = {"race": config.TaskHyperparameters(learning_rate=1e-5, encoder_dropout_prob=0.0)}
    assert recipe.finetuning == config.FinetuningSettings(
        per_task=race if name.endswith("-v2") else {}, precision="bfloat16"
    )


def test_what_no_recipe_of_the_paper_names_is_the_paper_s() -> None:
    # Source: paper section 4.1; google-research/albert, run_pretraining.py.
    training, recipe = config.TrainingSettings(), Recipe(name="defaults")
    assert (training.optimizer, training.learning_rate) == ("lamb", 0.00176)
    assert (training.batch_size, training.warmup_steps, training.schedule) == (4096, 3125, "linear")
    assert (training.weight_decay, training.max_grad_norm) == (0.01, 1.0)
    assert (recipe.examples.max_seq_length, recipe.vocabulary.largest_size) == (512, 30_000)


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_names_only_what_differs_from_the_defaults(name: str) -> None:
    assert load_recipe(name).name == name
    values = tomllib.loads((SHIPPED / f"{name}.toml").read_text())
    defaults: dict[str, Any] = Recipe(name="defaults").model_dump()
    same = [
        f"{section}.{field}"
        for section, fields in values.items()
        for field, value in fields.items()
        if defaults[section][field] == value
    ]
    assert same == []


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
    assert steps["description"] == config.TrainingSettings.model_fields["num_steps"].description
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


def refusal(parameters: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return what Prefect's server says of parameters; empty if it takes them."""
    try:
        validate(parameters, schema, raise_on_error=True)
    except ParametersError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
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
    if "seeds" in schema["properties"]:
        assert refusal(given | {"seeds": 1}, schema) == ""
        assert refusal(given | {"seeds": 0}, schema)
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
