import pytest

from flows.deployment_names import complete_name, is_prefect


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("deployment run a", "deployment run a/a"),
        ("--profile b deployment run a --watch", "--profile b deployment run a/a --watch"),
        ("deployment run a/b", "deployment run a/b"),
        ("deployment run --id 0f06bcd8", "deployment run --id 0f06bcd8"),
        ("deployment run", "deployment run"),
        ("deployment inspect a", "deployment inspect a"),
        ("flow-run ls", "flow-run ls"),
    ],
)
def test_a_short_name_is_completed_and_all_else_is_left_as_it_was(
    given: str, completed: str
) -> None:
    assert complete_name(given.split()) == completed.split()


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (["/v/bin/python", "/v/bin/prefect", "deployment", "run", "a"], True),
        (["python", "-m", "prefect", "deployment", "run", "a"], True),
        (["python", "-m", "pytest", "deployment", "run", "a"], False),
        (["python", "mine.py", "deployment", "run", "prefect"], False),
        (["python", "-c", "prefect"], False),
        ([], False),
    ],
)
def test_only_the_command_prefect_is_touched(original: list[str], expected: bool) -> None:
    assert is_prefect(original) == expected
