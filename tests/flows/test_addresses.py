import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import Flow
from prefect.utilities.schema_tools import is_valid_schema, validate

from albert_core.stage.credentials import WITHOUT_CREDENTIALS, has_credentials
from flows.evaluate_albert import evaluate_albert
from flows.pretrain_albert import pretrain_albert
from flows.refresh_corpus import refresh_corpus
from tests.albert_core.stage.test_credentials import WITH, WITHOUT


@pytest.mark.parametrize("uri", WITH + WITHOUT)
def test_the_form_refuses_what_the_recipe_refuses(uri: str) -> None:
    assert (re.search(WITHOUT_CREDENTIALS, uri) is None) == has_credentials(uri)


@pytest.mark.parametrize("flow", [pretrain_albert, refresh_corpus, evaluate_albert])
def test_prefect_checks_parameters_before_it_keeps_them(flow: Flow[..., str]) -> None:
    schema = flow.parameters.model_dump()
    is_valid_schema(schema)
    good = {"model": "models:/albert-tiny@champion", "overrides": ["training.seed=3"]}
    given = {name: value for name, value in good.items() if name in schema["properties"]}
    assert validate(given, schema, raise_on_error=False) == []
    bad = given | {"work": "s3://AKIAIO:xy99zz77@bucket/work"}
    assert validate(bad, schema, raise_on_error=False) != []
    bad = given | {"overrides": ["source.uri=https://u:xy99zz77@host/a"]}
    assert validate(bad, schema, raise_on_error=False) != []


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
