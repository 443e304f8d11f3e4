import pytest

from flows.deployment_names import complete_name, is_prefect


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("deployment run pretrain-albert", "deployment run pretrain-albert/pretrain-albert"),
        ("deployment run --watch a", "deployment run --watch a/a"),
        ("deployment run -p recipe=tiny a --watch", "deployment run -p recipe=tiny a/a --watch"),
        ("deployment run --param=recipe=tiny a", "deployment run --param=recipe=tiny a/a"),
        ("deployment run a --start-in 5m", "deployment run a/a --start-in 5m"),
        ("--profile b deployment run a", "--profile b deployment run a/a"),
        ("--no-prompt deployment run a", "--no-prompt deployment run a/a"),
    ],
)
def test_a_short_name_is_completed(given: str, completed: str) -> None:
    assert complete_name(given.split()) == completed.split()


@pytest.mark.parametrize(
    "given",
    [
        "",
        "deployment",
        "deployment run",
        "deployment run a/b",
        "deployment run --help",
        "deployment run a --help",
        "deployment run --id 0f06bcd8-a448-49d4-8086-9d36798ca411",
        "deployment run --id=0f06bcd8-a448-49d4-8086-9d36798ca411",
        "deployment run --new-option a b",
        "deployment run a b",
        "deployment run --watch",
        "deployment run -p",
        "deployment inspect a",
        "deployment ls a",
        "flow-run ls",
        "server start",
        "--version",
    ],
)
def test_everything_else_is_left_as_it_was(given: str) -> None:
    assert complete_name(given.split()) == given.split()


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (["/v/bin/python", "/v/bin/prefect", "deployment", "run", "a"], True),
        (["python", "-m", "prefect", "deployment", "run", "a"], True),
        (["python", "-X", "dev", "-m", "prefect", "deployment", "run", "a"], False),
        (["python", "-m", "pytest", "deployment", "run", "a"], False),
        (["python", "mine.py", "deployment", "run", "prefect"], False),
        (["python", "-c", "prefect"], False),
        (["python"], False),
        ([], False),
    ],
)
def test_only_the_command_prefect_is_touched(original: list[str], expected: bool) -> None:
    assert is_prefect(original) == expected
