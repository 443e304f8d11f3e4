import re

import pytest
from prefect import Flow
from prefect.utilities.schema_tools import is_valid_schema, validate

from albert_core.contract.credentials import has_credentials
from flows.addresses import WITHOUT_CREDENTIALS
from flows.evaluate_albert import evaluate_albert
from flows.pretrain_albert import pretrain_albert
from flows.refresh_corpus import refresh_corpus
from tests.albert_core.contract.test_credentials import WITH, WITHOUT


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
