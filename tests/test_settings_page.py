"""The page of all settings, which is made from their descriptions.

``python -m tests.test_settings_page`` writes it anew.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from flows.recipe import Recipe

PAGE = Path(__file__).parents[1] / "docs/settings.md"
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true, false",
    "array": "list",
    "object": "table",
    "null": "none",
}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}

Schema = Mapping[str, Any]


def written(page: str) -> str:
    """Return the page with the sections of today behind what it begins with."""
    head, schema = page.partition("## [")[0], Recipe.model_json_schema()
    return head + "\n".join(_sections(schema, schema["$defs"]))


def _sections(schema: Schema, records: Schema, prefix: str = "") -> Iterator[str]:
    """Yield the lines of every section in ``schema``, and behind each those of its own sections."""
    for name, field in schema["properties"].items():
        if (record := _record_of(field)) is None:
            continue
        heading, section = prefix + name, records[record]
        if field.get("type") == "array":
            heading = f"[{heading}]"
        elif field.get("type") == "object":
            heading += ".NAME"
        yield f"## [{heading}]\n\n{fill(_sentence(section['description']), 120)}\n"
        yield "| setting | values | default | meaning |\n| --- | --- | --- | --- |"
        needed = section.get("required", ())
        for setting, each in section["properties"].items():
            if _record_of(each) is None:
                meaning = _sentence(each.get("description", ""))
                default = _default(each, setting in needed)
                yield f"| `{setting}` | {_values(each)} | {default} | {meaning} |"
        yield ""
        yield from _sections(section, records, f"{prefix}{name}.")


def _record_of(field: Schema) -> str | None:
    """Return the name of the record that a field, or each of its values, is."""
    for part in (field, field.get("items"), field.get("additionalProperties")):
        if isinstance(part, dict) and "$ref" in part:
            return str(part["$ref"]).rpartition("/")[2]
    return None


def _values(field: Schema) -> str:
    if "anyOf" in field:
        return " or ".join(_values(each) for each in field["anyOf"] if each != {"type": "null"})
    if choices := field.get("enum", [field["const"]] if "const" in field else []):
        return ", ".join(f"`{choice}`" for choice in choices)
    bounds = [f"{sign} {field[bound]:,}" for bound, sign in _BOUNDS.items() if bound in field]
    inner = field.get("items", {})
    of = f" of: {_values(inner)}" if "enum" in inner else ""
    return " ".join((_TYPES[field["type"]] + of, ", ".join(bounds))).strip()


def _default(field: Schema, is_needed: bool) -> str:
    if is_needed:
        return "must be given"
    default = field.get("default", "auto")  # decided on the machine that reads the recipe
    return "none" if default in (None, "", []) else f"`{json.dumps(default)}`".replace('"', "")


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def test_the_page_has_every_setting_with_its_values_default_and_meaning() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "run: python -m tests.test_settings_page"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
