import inspect

import pytest

from albert_core.stage import errors

ERRORS = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if error is not errors.AlbertError
]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_can_be_caught_as_an_albert_error(error: type[Exception]) -> None:
    assert issubclass(error, errors.AlbertError)


@pytest.mark.parametrize("error", ERRORS)
def test_the_tree_in_the_docstring_names_every_error(error: type[Exception]) -> None:
    assert f"─ {error.__name__} " in str(errors.__doc__)


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_no_value_error_so_that_pydantic_lets_it_through(
    error: type[Exception],
) -> None:
    assert not issubclass(error, ValueError | AssertionError)
