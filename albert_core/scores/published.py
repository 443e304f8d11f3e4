"""What the paper and its release report on dev, to lay beside one's own.

Source: REFERENCE.md F: the paper's Table 2 (125,000 steps on Wikipedia and books), Tables 9 and 10
(xxlarge, 1.5 million steps, the single model), and the release's README (version 2, base).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedScores:
    """One row of a table."""

    name: str
    source: str
    scores: Mapping[str, tuple[float, ...]]
    """Per cent, by task: F1 and exact match of SQuAD, else the task's first metric alone."""


def _table_2(
    name: str,
    squad_1: tuple[float, float],
    squad_2: tuple[float, float],
    mnli: float,
    sst_2: float,
    race: float,
) -> PublishedScores:
    of_task: dict[str, tuple[float, ...]] = {
        "squad-1.1": squad_1,
        "squad-2.0": squad_2,
        "mnli": (mnli,),
        "sst-2": (sst_2,),
        "race": (race,),
    }
    return PublishedScores(name, "paper, Table 2", of_task)


PUBLISHED = {
    "base": _table_2("ALBERT base", (89.3, 82.3), (80.0, 77.1), 81.6, 90.3, 64.0),
    "large": _table_2("ALBERT large", (90.6, 83.9), (82.3, 79.4), 83.5, 91.7, 68.5),
    "xlarge": _table_2("ALBERT xlarge", (92.5, 86.1), (86.1, 83.1), 86.4, 92.4, 74.8),
    "xxlarge": _table_2("ALBERT xxlarge", (94.1, 88.3), (88.1, 85.1), 88.0, 95.2, 82.3),
    "bert-base": _table_2("BERT base", (90.4, 83.2), (80.4, 77.6), 84.5, 92.8, 68.2),
    "bert-large": _table_2("BERT large", (92.2, 85.5), (85.0, 82.2), 86.6, 93.0, 73.9),
    "base-v2": PublishedScores(
        "ALBERT base v2",
        "README of the release",
        {
            "squad-1.1": (90.2, 83.2),
            "squad-2.0": (82.1, 79.3),
            "mnli": (84.6,),
            "sst-2": (92.9,),
            "race": (66.8,),
        },
    ),
    "xxlarge-1.5m": PublishedScores(
        "ALBERT xxlarge, 1.5 million steps",
        "paper, Tables 9 and 10",
        {
            "squad-1.1": (94.8, 89.3),
            "squad-2.0": (90.2, 87.4),
            "mnli": (90.8,),
            "sst-2": (96.9,),
            "race": (86.5,),
            "cola": (71.4,),
            "mrpc": (90.9,),
            "qnli": (95.3,),
            "qqp": (92.2,),
            "rte": (89.2,),
            "sts-b": (93.0,),
        },
    ),
}
"""By the name that settings have for the row."""
