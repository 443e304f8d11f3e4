"""Which code a result depends on, and what is recorded of how it was made."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from albert_core.stage import command, provenance
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.provenance import code_commit, code_digest, library_versions
from albert_core.stage.settings import Settings
from tests.albert_core.stage.test_command import own_logging
from tests.threads import NUM_THREADS, at_once

PACKAGE = "digested"
STAGE = '''"""A stage."""

import logging
import warnings

from pydantic import Field

from albert_core.stage.settings import Settings
from digested import helper
from digested.deep import leaf

log = logging.getLogger(__name__)


class ToySettings(Settings):
    size: int = Field(default=1, description="a size")


def run(settings: ToySettings) -> int:
    """Return something."""
    log.info("%s begins", settings)
    if settings.size < 0:
        warnings.warn("a small size")
        raise ValueError(f"size {settings.size} is below 0")
    return helper.double(settings.size) + leaf.ONE  # a comment
'''
FILES = {
    "__init__.py": "",
    "stage.py": STAGE,
    "helper.py": "NAME = 'one'\n\ndef double(x):\n    return 2 * x\n",
    "deep/__init__.py": "",
    "deep/leaf.py": "from digested import stage\n\nONE = 1\n",  # a cycle
    "unused.py": "TWO = 2\n",
}

Digest = Callable[[], str]


def forget_modules() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


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
    forget_modules()
    code_digest.cache_clear()


def digest() -> str:
    importlib.invalidate_caches()
    code_digest.cache_clear()
    return code_digest(f"{PACKAGE}.stage")


def is_other_digest(folder: Path, name: str, before: str, after: str) -> bool:
    """Return whether the digest changes with the text of a file."""
    first, source = digest(), FILES[name]
    assert before in source
    (folder / name).write_text(source.replace(before, after, 1))
    return digest() != first


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("stage.py", "  # a comment", "  # another comment"),
        ("stage.py", '    """Return something."""\n', ""),
        ("stage.py", "return helper.double(", "return helper.double(\n        "),
        ("stage.py", "begins", "starts"),
        ("stage.py", "    log.info", "    log.debug"),
        ("stage.py", "a small size", "a very small size"),
        ("stage.py", 'f"size {settings.size} is below 0"', '"below 0"'),
        ("stage.py", "default=1", "default=2"),
        ("unused.py", "TWO = 2", "TWO = 3"),
    ],
)
def test_words_layout_the_fields_of_settings_and_code_out_of_reach_do_not_count(
    package: Path, name: str, before: str, after: str
) -> None:
    assert not is_other_digest(package, name, before, after)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("stage.py", "+ leaf.ONE", "- leaf.ONE"),
        ("stage.py", ") -> int", ") -> float"),
        ("stage.py", "ValueError", "TypeError"),
        ("helper.py", "2 * x", "3 * x"),
        ("deep/leaf.py", "ONE = 1", "ONE = 2"),
        ("deep/__init__.py", "", "import os\n"),
    ],
)
def test_code_that_the_stage_reaches_counts(
    package: Path, name: str, before: str, after: str
) -> None:
    assert is_other_digest(package, name, before, after)


def test_a_stage_run_by_hand_has_the_digest_of_the_stage_imported(tmp_path: Path) -> None:
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "stage.py").write_text(
        "from albert_core.stage import provenance\n"
        f"provenance.FIRST_PARTY = ({PACKAGE!r},)\n"
        "print(provenance.code_digest(__name__))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"},
        ).stdout
        for arguments in (("-m", "digested.stage"), ("-c", "import digested.stage"))
    }
    assert len(found) == 1


def test_threads_that_ask_at_once_get_the_digest_that_one_gets() -> None:
    provenance._parse.cache_clear()
    asked = at_once(lambda: code_digest.__wrapped__("albert_core.stage.provenance"))
    provenance._parse.cache_clear()
    assert asked == [code_digest("albert_core.stage.provenance")] * NUM_THREADS


def test_libraries_are_named_with_their_versions_or_as_absent() -> None:
    versions = library_versions("pydantic", "no-such-library")
    assert versions["pydantic"][0].isdigit()
    assert versions["no-such-library"] == "absent"
    assert versions["python"] == ".".join(map(str, sys.version_info[:2]))


class ShapeSettings(Settings):
    """Settings of the stage."""

    size: int = 3
    name: str = "round"


def run(shape: ShapeSettings, old_corpus: str, work: str, mode: str = "all") -> str:
    """Write a manifest, and nothing else."""
    return StagePlan("corpus", shape.model_dump(), {}, "code", {}).write(work, [], [], Settings())


@pytest.fixture(autouse=True)
def ask_git_again() -> Iterator[None]:
    code_commit.cache_clear()
    yield
    code_commit.cache_clear()


def test_the_call_of_a_stage_by_its_command_line_is_recorded(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"shape": {"size": 7}, "other": {"x": 1}}))
    argv = [f"--recipe={recipe}", "--old-corpus=s3://x/y", f"--work={tmp_path}"]
    with own_logging():
        assert command.run_command_line(run, argv) == 0
    [uri] = tmp_path.rglob("manifest.json")
    made_by = read_manifest(str(uri)).provenance
    assert made_by.call is not None
    assert made_by.call.module == __name__
    assert made_by.call.recipe == {"shape": {"size": 7, "name": "round"}}
    assert made_by.call.options == {"old_corpus": "s3://x/y", "mode": "all"}
    assert made_by.call.rest == {"other": {"x": 1}}


def test_the_commit_is_gits_or_where_there_is_no_checkout_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> tuple[str, bool]:
        code_commit.cache_clear()
        return code_commit()

    if (Path(provenance.__file__).parents[2] / ".git").exists():
        assert len(found()[0]) == 40
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    monkeypatch.setenv("ALBERT_COMMIT", "abc123")
    assert found() == ("abc123", False)
    monkeypatch.delenv("ALBERT_COMMIT")
    assert found() == ("", False)
    for arguments in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m x"):
        assert os.system(f"git -C {tmp_path} {arguments}") == 0
    commit, has_local_changes = found()
    assert len(commit) == 40
    assert not has_local_changes
    (tmp_path / "changed").touch()
    assert found() == (commit, True)
    # A checkout around an installation is not its own.
    (tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(provenance, "_ROOT", tmp_path / "site-packages")
    assert found() == ("", False)


def test_to_ask_for_the_commit_never_stands_in_the_way_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, index = tmp_path / "file", tmp_path / ".git" / "index"
    file.touch()
    made = "-c user.name=a -c user.email=a@b commit -q -m x"
    for arguments in ("init -q", "add file", made):
        assert os.system(f"git -C {tmp_path} {arguments}") == 0
    os.utime(file, (1, 1))  # as an editor leaves it; git would note that in its index, with a lock
    before = index.read_bytes()
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    assert len(code_commit()[0]) == 40
    assert index.read_bytes() == before


def test_provenance_is_no_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_manifest(run(ShapeSettings(), "", str(tmp_path / "a")))
    monkeypatch.setattr(provenance, "this_machine", lambda: {"cpu": "another"})
    second = read_manifest(run(ShapeSettings(), "", str(tmp_path / "b")))
    assert first.provenance is not None
    assert first.provenance.call is None  # called as a function
    assert first.provenance != second.provenance
    assert first.key == second.key
    assert first.content == second.content
