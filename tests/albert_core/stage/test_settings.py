"""Settings that are wrong are named, with what was expected."""

from typing import Annotated, Literal, Self

import pytest
from pydantic import Field, ValidationError, model_validator

from albert_core.stage import errors, settings


class Oven(settings.Settings):
    """Settings with one of each: a number in a range, a word, a flag."""

    degrees: float = Field(ge=30, le=300)
    dish: str = "bread"
    fan: bool = False


class Kitchen(settings.Settings):
    """Settings in settings, and a rule between them."""

    oven: Oven
    num_cooks: int = 1
    num_guests: Annotated[int, Field(le=9)] | Literal["many"] = "many"

    @model_validator(mode="after")
    def _somebody_cooks(self) -> Self:
        if self.num_cooks < 1:
            raise ValueError(f"num_cooks {self.num_cooks} is nobody")
        return self


def test_a_default_stands_in_and_a_whole_number_may_be_given_for_a_float() -> None:
    kitchen = Kitchen.read({"oven": {"degrees": 220}}, "my.toml")
    assert kitchen == Kitchen(oven=Oven(degrees=220.0, dish="bread", fan=False), num_cooks=1)


def test_a_misspelt_setting_is_refused_by_its_path() -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Kitchen.read({"oven": {"degrees": 220.0, "dsh": "cake"}}, "my.toml")
    assert str(caught.value) == ("my.toml: unknown setting 'oven.dsh'; did you mean 'oven.dish'?")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ["setting 'oven' is missing"]),
        ({"oven": {"degrees": "220"}}, ["oven.degrees: Input should be a valid number, got '220'"]),
        (
            {"oven": {"degrees": 99.0, "fan": 1}},
            ["oven.fan: Input should be a valid boolean, got 1"],
        ),
        ({"oven": {"degrees": 99.0}, "num_cooks": 1.5}, ["num_cooks: Input should be a valid int"]),
        ({"oven": {"degrees": 99.0}, "num_cooks": 0}, ["the settings: num_cooks 0 is nobody"]),
        (
            {"oven": {"degrees": 99.0}, "num_guests": 12},
            ["num_guests: Input should be less than or equal to 9, or 'many', got 12"],
        ),
        (
            {"oven": {"degrees": 15.0, "dsh": "cake"}, "num_cooks": "two"},
            [
                "oven.degrees: Input should be greater than or equal to 30",
                "oven.dsh",
                "num_cooks: Input should",
            ],
        ),
    ],
)
def test_each_mistake_is_a_line_that_says_where_it_is_and_what_was_expected(
    values: dict[str, object], expected: list[str]
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Kitchen.read(values, "my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml: ")
    for line, part in zip(message.splitlines(), expected, strict=True):
        assert part in line


def test_settings_cannot_be_changed() -> None:
    oven = Oven(degrees=220.0)
    with pytest.raises(ValidationError, match="frozen"):
        oven.degrees = 250.0  # type: ignore[misc]
