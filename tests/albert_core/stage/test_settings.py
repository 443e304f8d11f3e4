from typing import Self

import pytest
from pydantic import Field, ValidationError, model_validator

from albert_core.stage.errors import ConfigError
from albert_core.stage.settings import Settings


class Oven(Settings):
    """Settings with one of each: a number in a range, a word, a flag."""

    degrees: float = Field(ge=30, le=300)
    dish: str = "bread"
    fan: bool = False


class Kitchen(Settings):
    """Settings in settings, and a rule between them."""

    oven: Oven
    num_cooks: int = 1

    @model_validator(mode="after")
    def _somebody_cooks(self) -> Self:
        if self.num_cooks < 1:
            raise ValueError(f"num_cooks {self.num_cooks} is nobody")
        return self


def message_of(values: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        Kitchen.read(values, "my.toml")
    return str(caught.value)


def test_what_is_not_given_has_its_default() -> None:
    kitchen = Kitchen.read({"oven": {"degrees": 220.0}}, "my.toml")
    assert kitchen == Kitchen(oven=Oven(degrees=220.0, dish="bread", fan=False), num_cooks=1)


def test_a_whole_number_may_stand_for_a_float() -> None:
    assert Oven.read({"degrees": 220}, "my.toml").degrees == 220.0


def test_a_misspelt_setting_is_refused_by_its_path() -> None:
    message = message_of({"oven": {"degrees": 220.0, "dsh": "cake"}})
    assert message == "my.toml: unknown setting 'oven.dsh'; remove it or correct its spelling"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "setting 'oven' is missing"),
        ({"oven": {"degrees": "220"}}, "oven.degrees: Input should be a valid number, got '220'"),
        ({"oven": {"degrees": 15.0}}, "oven.degrees: Input should be greater than or equal to 30"),
        ({"oven": {"degrees": 99.0, "fan": 1}}, "oven.fan: Input should be a valid boolean, got 1"),
        ({"oven": {"degrees": 99.0}, "num_cooks": 1.5}, "num_cooks: Input should be a valid int"),
        ({"oven": {"degrees": 99.0}, "num_cooks": 0}, "num_cooks 0 is nobody"),
    ],
)
def test_a_mistake_is_described_by_where_it_is_and_what_was_expected(
    values: dict[str, object], expected: str
) -> None:
    message = message_of(values)
    assert message.startswith("my.toml: ")
    assert expected in message


def test_every_mistake_is_named_at_once() -> None:
    message = message_of({"oven": {"degrees": 15.0, "dsh": "cake"}, "num_cooks": "two"})
    assert len(message.splitlines()) == 3
    for path in ("oven.degrees", "oven.dsh", "num_cooks"):
        assert path in message


def test_settings_cannot_be_changed() -> None:
    oven = Oven(degrees=220.0)
    with pytest.raises(ValidationError, match="frozen"):
        oven.degrees = 250.0  # type: ignore[misc]
