"""Small task files in their original layouts, written by the tests that read them."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[4] / "shared/data/tasks"
"""The real data, where it lies beside the checkout."""


def write(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def write_squad(
    path: Path, questions: list[dict[str, Any]] | None = None, context: str = "A cat sat."
) -> str:
    """Write one article of one paragraph."""
    if questions is None:
        questions = [squad_question("q1", ("cat", 2))]
    paragraph = {"context": context, "qas": questions}
    article = {"title": "Cats", "paragraphs": [paragraph]}
    return write(path, json.dumps({"version": "v2.0", "data": [article]}))


def squad_question(name: str = "q1", *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "Who sat?", "answers": found} | more


def passage(number: int = 0, **more: Any) -> dict[str, Any]:
    """A passage of RACE with two questions."""
    return {
        "article": f"Passage {number}. A cat sat.",
        "questions": ["Who sat?", "The cat _ ."],
        "options": [["a", "b", "c", "d"], ["sat", "ran", "slept", "ate"]],
        "answers": ["D", "A"],
        **more,
    }


def write_race(folder: Path, *, splits: tuple[str, ...] = ("train", "dev", "test")) -> str:
    """Write RACE as its archive has it: passages 10, 9 and 2, of each group of each split."""
    for split in splits:
        for group in ("middle", "high"):
            for number in (10, 9, 2):
                write(folder / split / group / f"{number}.txt", json.dumps(passage(number)))
    return str(folder)


GLUE_ROWS = {
    "CoLA/train.tsv": "gj04\t1\t\tIt sat.\ngj04\t0\t*\tIt sit.\n",
    "CoLA/dev.tsv": "gj04\t1\t\tIt sat.\n",
    "CoLA/test.tsv": "index\tsentence\n0\tIt sat.\n",
    "SST-2/train.tsv": "sentence\tlabel\ngood \t1\nbad \t0\n",
    "SST-2/dev.tsv": "sentence\tlabel\ngood \t1\n",
    "SST-2/test.tsv": "index\tsentence\n0\tgood\n",
    "STS-B/train.tsv": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\ty\t1\tnone\tnone\tOne.\tTwo.\t3.800\n"
    ),
    "STS-B/dev.tsv": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "7\tg\tf\ty\t1\tnone\tnone\tOne.\tTwo.\t5.000\n"
    ),
    "QQP/train.tsv": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "0\t1\t2\tWhat?\tWhich?\t1\n1\t3\t4\tWhat\n?\tWho?\t0\n2\t5\t6\tHow?\t\t0\n"
    ),
    "QQP/dev.tsv": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tWhat?\tWhich?\t0\n"
    ),
    "QQP/test.tsv": "id\tquestion1\tquestion2\n0\tWhat?\tWhich?\n",
    "QNLI/train.tsv": "index\tquestion\tsentence\tlabel\n5\tWhat?\tThat.\tnot_entailment\n",
    "QNLI/dev.tsv": "index\tquestion\tsentence\tlabel\n5\tWhat?\tThat.\tentailment\n",
    "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n",
    "RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tnot_entailment\n",
    "WNLI/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t1\n",
    "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t0\n",
    "MRPC/train.tsv": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t11\t12\tHe "said" .\tShe .\r\n'
    ),
    "MRPC/dev.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n0\t21\t22\tX .\tY .\r\n",
    "MRPC/test.tsv": "\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n0\t31\t32\tX .\tY .\r\n",
    "diagnostic/diagnostic.tsv": "index\tsentence1\tsentence2\n0\tA.\tB.\n",
}
"""Rows of GLUE's files, by their names."""
_MNLI = "index\tpromptID\tpairID\tgenre\tp1\tp2\tp3\tp4\tsentence1\tsentence2"
_MNLI_FILES = {
    "train": ("label1\tgold_label", "neutral\tneutral"),
    "dev_matched": (
        "label1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
        "neutral\tneutral\tneutral\tneutral\tentailment\tcontradiction",
    ),
    "dev_mismatched": (
        "label1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
        "neutral\tneutral\tneutral\tneutral\tneutral\tentailment",
    ),
}
GLUE_ROWS |= {
    f"MNLI/{name}.tsv": f"{_MNLI}\t{columns}\n3\tn/a\tn/a\tg\tp\tp\tp\tp\tOne.\tTwo.\t{labels}\n"
    for name, (columns, labels) in _MNLI_FILES.items()
}
GLUE_ROWS |= {
    f"MNLI/test_{genres}.tsv": f"{_MNLI}\n{number}\tn/a\tn/a\tg\tp\tp\tp\tp\tOne.\tTwo.\n"
    for number, genres in enumerate(("matched", "mismatched"))
}


def write_glue(folder: Path) -> str:
    for name, content in GLUE_ROWS.items():
        write(folder / name, content)
    return str(folder)
