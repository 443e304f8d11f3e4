"""Whole numbers that the environment gives."""

import os

from albert_core.contract.errors import ConfigError


def whole_number(variable: str, default: int) -> int:
    """Return the number in an environment variable, at least 1; ``default`` without it.

    Raises:
        ConfigError: it is another text.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{variable}={text!r} must be a whole number, at least 1")
    return int(text)
