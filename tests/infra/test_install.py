"""The lock, and what `infra/install.py` takes of it."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from infra import install

PROJECT = Path(__file__).parents[2]
LOCK = install.blocks((PROJECT / "requirements.lock").read_text())
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
NOT_LOCKED = {"tf", "tpu"}


def pins(block: str) -> list[Requirement]:
    """Return the versions of a package that a block of the lock pins."""
    return [Requirement(line) for line in re.findall(r"^(\w.*?) \\$", block, re.MULTILINE)]


def packages(*extras: str) -> set[str]:
    """Return the names of what extras need."""
    roots = {install.name_of(each) for each in install.requirements_of(PYPROJECT, extras)}
    return set(install.needed(LOCK, roots))


@pytest.mark.parametrize(
    "extra", sorted(PYPROJECT["project"]["optional-dependencies"].keys() - NOT_LOCKED)
)
def test_the_lock_has_what_pyproject_asks_for(extra: str) -> None:
    wrong = [
        f"{asked}, not {pin}: run `make lock`"
        for asked in map(Requirement, install.requirements_of(PYPROJECT, [extra]))
        for pin in pins(LOCK[install.name_of(asked.name)])
        if next(iter(pin.specifier)).version not in asked.specifier
    ]
    assert wrong == []


def test_the_lock_has_nothing_that_no_extra_needs_and_a_hash_of_all() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"].keys() - NOT_LOCKED
    assert packages(*extras) == LOCK.keys()
    assert all(re.search("--hash=sha256:[0-9a-f]{64}", block) for block in LOCK.values())


def holds(requirement: Requirement) -> bool:
    """Return whether a requirement is one of this machine's."""
    return not requirement.marker or requirement.marker.evaluate({"extra": ""})


def test_this_environment_is_the_locked_one_and_closed() -> None:
    here = {install.name_of(each.name): each for each in importlib.metadata.distributions()}
    locked = here.keys() & LOCK.keys()
    others = [
        f"{pin}, not {here[name].version}: run `make install-dev`"
        for name in locked
        for pin in filter(holds, pins(LOCK[name]))
        if here[name].version not in pin.specifier
    ]
    missing = [
        f"{needed}, which {name} needs: run `make lock`"
        for name in locked
        for needed in filter(holds, map(Requirement, here[name].requires or []))
        if install.name_of(needed.name) not in LOCK
    ]
    assert (others, missing) == ([], [])


def test_text_needs_no_torch_and_torch_no_beam() -> None:
    assert "apache-beam" in packages("pipelines")
    assert packages("pipelines").isdisjoint({"torch", "prefect", "mlflow", "pytest"})
    assert {"torch", "triton", "nvidia-nccl-cu13", "sympy"} <= packages("train")
    assert packages("train").isdisjoint({"apache-beam", "prefect"})


def test_what_needs_a_package_in_two_steps_brings_it() -> None:
    lock = install.blocks(
        "a==1 \\\n    --hash=sha256:0\n    # via albert-pretraining (pyproject.toml)\n"
        "b==1 ; python_version < '3.12' \\\n    # via a, x\nb==2 ; python_version >= '3.12' \\\n"
        "    # via a, x\nc-d==3 \\\n    # via b\nx==4 \\\n"
    )
    assert install.needed(lock, {"a"}) == ["a", "b", "c-d"]
    assert lock["b"].count("==1") == lock["b"].count("==2") == 1


def test_an_extra_that_is_not_there_or_not_locked_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"no extra 'trian': pyproject.toml has .*train"):
        packages("trian")
    with pytest.raises(SystemExit, match=r"requirements.lock has no tensorflow"):
        packages("tf")


def test_the_build_for_the_cpu_is_of_the_locked_version() -> None:
    [pin] = pins(install.TORCH_CPU.read_text())
    assert str(pin) == f"{pins(LOCK['torch'])[0]}+cpu"


def asked_of_pip(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[list[str]]:
    """Return the options, files and names of packages of each call of pip by the command."""
    calls = []

    def pip(*options: str, requirements: str = "", **_: bool) -> int:
        names = re.findall(r"^[a-z][^ =]+", requirements, re.MULTILINE)
        calls.append([*options, *names])
        return 0

    monkeypatch.setattr(install, "_pip", pip)
    monkeypatch.setattr("sys.argv", ["install.py", *arguments])
    assert install.main() == 0
    return calls


@pytest.mark.parametrize(
    ("driver", "arguments", "has_cuda", "has_torch_cpu"),
    [
        (True, [], True, False),
        (False, [], False, True),
        (False, ["--torch", "cuda"], True, False),
        (True, ["--torch", "cpu"], False, True),
        (True, ["--torch", "none"], False, False),
    ],
)
def test_cuda_comes_where_a_gpu_is_or_if_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    driver: bool,
    arguments: list[str],
    has_cuda: bool,
    has_torch_cpu: bool,
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if driver else None)
    first, *others = asked_of_pip(monkeypatch, "train", "--no-project", *arguments)
    assert {"--require-hashes", "sympy"} <= set(first)
    for name in ("torch", "triton", "nvidia-nccl-cu13", "cuda-toolkit"):
        assert (name in first) == has_cuda
    assert bool(others) == has_torch_cpu
    assert all({"--require-hashes", str(install.TORCH_CPU)} <= set(call) for call in others)


def test_what_needs_no_torch_gets_none_and_the_project_itself_comes_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, last = asked_of_pip(monkeypatch, "pipelines", "--torch", "cpu", "--no-compile")
    assert "setuptools" in first
    assert "torch" not in first
    assert first[0] == last[0] == "--no-compile"
    assert last[-2:] == ["--editable", str(PROJECT)]


def test_where_the_build_for_the_cpu_is_nowhere_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "_pip", lambda *asked, **_: int(str(install.TORCH_CPU) in asked))
    monkeypatch.setattr("sys.argv", ["install.py", "train", "--torch", "cpu"])
    assert install.main() == 1
    assert "PIP_EXTRA_INDEX_URL, or give make TORCH=cuda" in capsys.readouterr().err
