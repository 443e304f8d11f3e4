"""The live counts of a stage."""

import json
import re
from pathlib import Path

import pytest

from pipelines.engine import work_notes
from pipelines.engine.work_notes import Progress, report_done
from tests import toy_stage


@pytest.fixture
def minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line is asked for a minute after the beginning."""
    monkeypatch.setattr(Progress, "_seconds", lambda self: 60.0)


@pytest.mark.usefixtures("minute")
def test_a_line_has_the_share_the_counts_the_rate_and_the_time_left(tmp_path: Path) -> None:
    counts = Progress("corpus: cleaning", str(tmp_path), 1_000_000_000)
    report_done(str(tmp_path), "0", num_bytes=240_000_000, num_documents=1200, num_files=1)
    report_done(str(tmp_path), "1", num_bytes=10_000_000, num_documents=34)
    assert counts.line() == (
        "corpus: cleaning: 25%, 1 file, 1,234 documents, 4.2 MB/s, about 3 min left"
    )


@pytest.mark.usefixtures("minute")
def test_the_last_line_has_the_sums_and_the_time_taken(tmp_path: Path) -> None:
    counts = Progress("corpus", str(tmp_path), 600)
    report_done(str(tmp_path), "0", num_bytes=600, num_documents=1, num_files=2)
    assert counts.last_line() == "corpus: 2 files, 1 document in 60 s, 0.0 kB/s"


def test_work_that_is_done_twice_counts_once(tmp_path: Path) -> None:
    counts = Progress("corpus", str(tmp_path), 100)
    for _ in range(2):
        report_done(str(tmp_path), "0", num_bytes=50)
        assert " 50%, " in f" {counts.line().partition(': ')[2]}"


def test_a_broken_note_does_not_end_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_notes, "_FIRST_LINE_SECONDS", 0.01)
    (tmp_path / "0.json").write_text("{broken")
    counts = Progress("corpus", str(tmp_path), 100)
    counts._thread.start()
    counts._thread.join(timeout=0.2)
    assert counts._thread.is_alive()
    counts._over.set()
    counts._thread.join()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (3599, "1 h 0 min"), (12_000, "3 h 20 min")],
)
def test_times_are_as_read_aloud(seconds: float, text: str) -> None:
    assert work_notes._time(seconds) == text


def test_a_stage_counts_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "2")
    monkeypatch.setattr(work_notes, "_FIRST_LINE_SECONDS", 0.1)
    caplog.set_level("INFO")
    toy_stage.run(toy_stage.ToySettings(num_elements=8, seconds=0.2), str(tmp_path))
    lines = [line for line in caplog.messages if line.startswith("toy: numbers: ")]
    shares = [int(found.group(1)) for line in lines if (found := re.search(r"(\d+)%", line))]
    assert shares == sorted(shares)
    assert any(0 < share < 100 for share in shares)
    assert re.fullmatch(r"toy: numbers: 8 files, 8 documents in \d+ s, 0.0 kB/s", lines[-1])
    assert len(list((tmp_path / "notes").iterdir())) == 8
    assert json.loads((tmp_path / "notes" / "3.json").read_text())["files"] == 1
