import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from albert_core.stage import provenance
from albert_core.stage.provenance import code_digest, library_versions

PACKAGE = "digested"
STAGE = '''"""A stage."""

from digested import helper
from digested.deep import leaf


def run(x: int) -> int:
    """Return something."""
    return helper.double(x) + leaf.ONE  # a comment
'''
FILES = {
    "__init__.py": "",
    "stage.py": STAGE,
    "helper.py": "def double(x):\n    return 2 * x\n",
    "deep/__init__.py": "",
    "deep/leaf.py": "import json\n\nONE = 1\n",
    "unused.py": "TWO = 2\n",
}

Digest = Callable[[], str]
Write = Callable[[str, str], None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of this project's, with a stage that reaches two other modules."""
    folder = tmp_path / PACKAGE
    for name, source in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(provenance, "FIRST_PARTY", (PACKAGE,))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]
    code_digest.cache_clear()


def digest() -> str:
    importlib.invalidate_caches()
    code_digest.cache_clear()
    return code_digest(f"{PACKAGE}.stage")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  # a comment", "  # another comment"),
        ("  # a comment", ""),
        ("Return something.", "Return something else."),
        ('"""A stage."""', '"""A stage that is explained."""'),
        ('    """Return something."""\n', ""),
        ("\n\n\ndef", "\n\n\n\n\n\ndef"),
        ("helper.double(x) + leaf.ONE", "(\n        helper.double(x)\n        + leaf.ONE\n    )"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(
    package: Path, before: str, after: str
) -> None:
    first = digest()
    assert before in STAGE
    (package / "stage.py").write_text(STAGE.replace(before, after))
    assert digest() == first


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("stage.py", "+ leaf.ONE", "- leaf.ONE"),
        ("stage.py", "x: int", "x: float"),
        ("stage.py", "def run", "def ran"),
        ("helper.py", "2 * x", "3 * x"),
        ("deep/leaf.py", "ONE = 1", "ONE = 2"),
        ("deep/__init__.py", "", "import os\n"),
    ],
)
def test_code_that_the_stage_reaches_counts(
    package: Path, name: str, before: str, after: str
) -> None:
    first = digest()
    (package / name).write_text(FILES[name].replace(before, after, 1))
    assert digest() != first


WORDY = """
import logging
import warnings

from pydantic import Field

from albert_core.stage.settings import Settings

log = logging.getLogger(__name__)


class ToySettings(Settings):
    size: int = Field(default=1, description="a size")


def run(settings: ToySettings) -> int:
    log.info("%s begins", settings)
    if settings.size < 0:
        warnings.warn("a small size")
        raise ValueError(f"size {settings.size} is below 0")
    return settings.size * 2
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("begins", "starts"),
        ("    log.info", "    log.debug"),
        ("a small size", "a very small size"),
        ('f"size {settings.size} is below 0"', '"below 0"'),
        ("default=1", "default=2"),
        ("a size", "the size"),
    ],
)
def test_what_is_said_and_the_fields_of_settings_do_not_count(
    package: Path, before: str, after: str
) -> None:
    (package / "stage.py").write_text(WORDY)
    first = digest()
    assert before in WORDY
    (package / "stage.py").write_text(WORDY.replace(before, after))
    assert digest() == first


@pytest.mark.parametrize(
    ("before", "after"),
    [("size * 2", "size * 3"), ("size < 0", "size < 1"), ("ValueError", "TypeError")],
)
def test_what_is_done_counts_beside_what_is_said(package: Path, before: str, after: str) -> None:
    (package / "stage.py").write_text(WORDY)
    first = digest()
    (package / "stage.py").write_text(WORDY.replace(before, after))
    assert digest() != first


def test_code_that_the_stage_does_not_reach_does_not_count(package: Path) -> None:
    first = digest()
    (package / "unused.py").write_text("TWO = 3\n")
    assert digest() == first


def test_a_string_that_is_used_is_no_docstring(package: Path) -> None:
    (package / "helper.py").write_text('NAME = "one"\n')
    first = digest()
    (package / "helper.py").write_text('NAME = "two"\n')
    assert digest() != first


def test_modules_that_import_each_other_have_a_digest(package: Path) -> None:
    (package / "helper.py").write_text("from digested import stage\n")
    assert len(digest()) == 16


def test_the_digest_does_not_depend_on_where_the_package_is(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digest()
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]
    (tmp_path / "moved").mkdir()
    package.rename(tmp_path / "moved" / PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path / "moved"))
    assert digest() == first


def test_a_stage_run_by_hand_has_the_digest_of_the_stage_imported(tmp_path: Path) -> None:
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "stage.py").write_text(
        "from albert_core.stage import code_version\n"
        f"code_version.FIRST_PARTY = ({PACKAGE!r},)\n"
        "print(provenance.code_digest(__name__))\n"
    )
    root = Path(__file__).parents[3]

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": f"{tmp_path}:{root}"},
        ).stdout

    assert run("-m", "digested.stage") == run("-c", "import digested.stage")


def test_libraries_are_named_with_their_versions_or_as_absent() -> None:
    versions = library_versions("pydantic", "no-such-library")
    assert versions["pydantic"][0].isdigit()
    assert versions["no-such-library"] == "absent"
