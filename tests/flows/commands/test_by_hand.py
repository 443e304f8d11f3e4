"""The bars of flows that are run by hand; `test_stopping` tells how such a run ends."""

import pytest
from rich.progress import Progress

from flows.commands.by_hand import _bar


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (
            ["finetuning: rte, dev accuracy 0.874", "finetuning: dev rows: 9 in = 9 kept"],
            "rte, dev accuracy 0.874",
        ),
        (
            ["corpus: documents: 9 in = 8 kept", "corpus: source files: 2 in = 2 kept"],
            "documents: 9 in = 8 kept",
        ),
        (
            ["pretraining: step 5/9  masked LM 4.1", "pretraining: done, wrote a/manifest.json"],
            "masked LM 4.1",
        ),
    ],
)
def test_the_bar_of_a_finished_stage_has_its_scores_or_its_documents(
    lines: list[str], shown: str
) -> None:
    bars = Progress()
    with _bar(bars, "a_stage") as show:
        for line in lines:
            show(line)
    [task] = bars.tasks
    assert (task.fields["line"], task.fields["mark"], task.finished) == (shown, "✓", True)
