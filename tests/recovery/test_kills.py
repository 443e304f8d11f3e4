"""Parts of the system killed at random moments; ALBERT_TEST_KILLS says how many, 7 without it."""

import os
from pathlib import Path

import pytest

from tests.recovery.kill_runs import RUN_SECONDS, VICTIMS, kill_runs, table

NUM_KILLS = int(os.environ.get("ALBERT_TEST_KILLS", str(len(VICTIMS))))


@pytest.mark.long
@pytest.mark.timeout(2 * (NUM_KILLS + 1) * RUN_SECONDS)
def test_whatever_is_killed_the_result_is_the_same_and_nothing_stays_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    rows = list(kill_runs(tmp_path, NUM_KILLS))
    print(table(rows))
    assert [row for row in rows if not row.is_good] == []
