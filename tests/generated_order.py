"""A corpus whose sentence order can be learned: four times of day, always in the same order."""

import json
from pathlib import Path
from random import Random

_TIMES = [
    ("At dawn", "rises"),
    ("By noon", "works"),
    ("In the evening", "rests"),
    ("At midnight", "sleeps"),
]
_WHO = ["fox", "miller", "captain", "sailor", "robin", "painter", "doctor", "widow", "hunter"]
_WHO += ["farmer", "student", "beggar", "prince", "cousin", "lawyer", "tailor"]
_WHERE = ["hill", "mill", "harbour", "meadow", "bridge", "forest", "castle", "market"]
_WHERE += ["garden", "river", "chapel", "tavern", "valley", "island", "tower", "orchard"]


def day(seed: int, number: int) -> str:
    """Return document ``number``: one sentence for each time of day."""
    random = Random(f"{seed}-{number}")
    return " ".join(
        f"{time} the {random.choice(_WHO)} {verb} near the {random.choice(_WHERE)} "
        f"with number {random.randrange(100)}."
        for time, verb in _TIMES
    )


def write_days(path: Path, seed: int, num_documents: int) -> Path:
    """Write the corpus of ``seed`` to ``path``, one JSON object a line."""
    lines = (json.dumps({"id": f"day-{n}", "text": day(seed, n)}) for n in range(num_documents))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
