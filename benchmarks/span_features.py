"""SQuAD to windows, and scores to answers, against the reference's alignment search.

    python benchmarks/span_features.py [--squad FILE] [--vocab FILE] [--results FILE]

CPU seconds. Features: texts to input sequences with targets, max-context and character offsets,
`span_inputs` on the whole file; the peer, the algorithm of the reference written here anew
(a longest common subsequence in a band, a dictionary and a NumPy array, in Python), on some
questions spread over the file. Both are run in turn; a time is the best round's, which others on
the machine disturbed least, the ratio the median of the rounds' ratios.

Answers: the 10,570 questions of the official dev set in number, made by repeating the file's; a
window's 20 best starts and ends lie within 25 pieces, as those of a trained model do, so that most
of the 400 pairs are valid.
"""

import argparse
import os
import statistics
import time
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
from _stage_runs import hardware, report

from albert_core.config import SpanSettings
from albert_core.tasks.examples import SpanExamples, Task
from albert_core.tasks.span_inputs import Windows
from albert_core.tasks.spans import SpanProblem
from albert_core.tasks.squad import read_squad
from albert_core.text.records import NUM_SPECIAL_IN_PAIR
from albert_core.text.tokenizer import WORD_MARK, Tokenizer, normalise_for_pieces

RESULTS = Path(__file__).parent / "results" / "span_features.json"
_DATA = Path(os.environ.get("ALBERT_BENCH_DATA", "/work/shared/data"))
SQUAD = _DATA / "tasks/squad/squad-v1.1-articles-0-35.json"
VOCAB = _DATA / "models/30k-clean.model"
MAX_SEQ_LENGTH = 384
ROUNDS = 3
PEER_QUESTIONS = 60
DEV_QUESTIONS = 10_570
GOALS = {"features_times_peer": 20.0, "answers_cpu_s": 20.0}


def main() -> None:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--squad", type=Path, default=SQUAD, help="SQuAD 1.1, JSON")
    parser.add_argument("--vocab", type=Path, default=VOCAB, help="SentencePiece model")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file to write")
    options = parser.parse_args()
    missing = [str(path) for path in (options.squad, options.vocab) if not path.is_file()]
    if missing:
        print(f"not run: {', '.join(missing)} is absent; give --squad and --vocab")
        return
    tokenizer = Tokenizer(options.vocab.read_bytes())
    examples = read_squad(str(options.squad), has_answerless=False)
    result = _features(examples, tokenizer) | _answers(examples, tokenizer)
    result |= {
        "max_seq_length": MAX_SEQ_LENGTH,
        "file": options.squad.name,
        "missed_goals": [
            name
            for name, goal in GOALS.items()
            if (result[name] < goal if name.endswith("peer") else result[name] > goal)
        ],
        "hardware": hardware(),
    }
    report(result, _table(result), options.results)


def _features(examples: SpanExamples, tokenizer: Tokenizer) -> dict[str, Any]:
    problem = SpanProblem(_TASK, SpanSettings())
    rows = np.linspace(0, len(examples) - 1, PEER_QUESTIONS).astype(int).tolist()
    ours, theirs = [], []
    num_windows = 0
    for _ in range(ROUNDS):
        begin = time.process_time()
        inputs = problem.inputs(examples, tokenizer, MAX_SEQ_LENGTH)
        ours.append((time.process_time() - begin) / len(examples))
        num_windows = inputs.num_units
        begin = time.process_time()
        for row in rows:
            peer_features(examples, row, tokenizer)
        theirs.append((time.process_time() - begin) / len(rows))
    ratios = [peer / own for own, peer in zip(ours, theirs, strict=True)]
    return {
        "questions": len(examples),
        "windows": num_windows,
        "features_ms_per_question": round(min(ours) * 1e3, 4),
        "peer_ms_per_question": round(min(theirs) * 1e3, 2),
        "features_cpu_s": round(min(ours) * len(examples), 2),
        "peer_cpu_s_of_all": round(min(theirs) * len(examples), 1),
        "features_times_peer": round(statistics.median(ratios), 1),
    }


_TASK = Task(name="squad-1.1", title="SQuAD 1.1", kind="spans", metrics=("f1", "exact_match"))


def _answers(examples: SpanExamples, tokenizer: Tokenizer) -> dict[str, Any]:
    rows = np.arange(DEV_QUESTIONS) % len(examples)
    many = SpanExamples(
        ids=[str(number) for number in range(DEV_QUESTIONS)],
        paragraphs=examples.paragraphs,
        paragraph_of=examples.paragraph_of[rows],
        questions=[examples.questions[row] for row in rows],
        answers=[examples.answers[row] for row in rows],
    )
    problem = SpanProblem(_TASK, SpanSettings())
    inputs = problem.inputs(many, tokenizer, MAX_SEQ_LENGTH)
    outputs = made_outputs(inputs.details, problem.settings.n_best)
    seconds = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        scored = problem.score(outputs, inputs, many)
        seconds.append(time.process_time() - begin)
    return {
        "answered_questions": DEV_QUESTIONS,
        "answers_cpu_s": round(min(seconds), 2),
        "answers_kept": len(scored.predictions["n_best"].combine_chunks().flatten()),
    }


def made_outputs(windows: Windows, number: int) -> dict[str, np.ndarray]:
    """Return outputs of a head of SQuAD 1.1 that is sure of a region of each window."""
    random = np.random.default_rng(0)
    size = len(windows.first)
    spread = 25
    region = (random.random(size) * np.maximum(windows.lengths - spread, 1)).astype(int)

    def some() -> np.ndarray:
        places = random.random((size, spread)).argsort(axis=1)[:, :number]
        return windows.offsets[:, None] + region[:, None] + places

    def scores() -> np.ndarray:
        return np.sort(random.normal(size=(size, number)))[:, ::-1].astype(np.float32)

    return {
        "starts": some(),
        "start_scores": scores(),
        "ends": some(),
        "end_scores": scores(),
        "null_scores": np.zeros(size, np.float32),
    }


def peer_features(examples: SpanExamples, row: int, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the windows of a question as the reference makes them, question by question."""
    paragraph = examples.paragraphs[examples.paragraph_of[row]]
    processor = tokenizer.processor
    query = processor.encode(normalise_for_pieces(examples.questions[row], lower_case=True))[:64]
    pieces = processor.encode(normalise_for_pieces(paragraph, lower_case=True), out_type=str)
    aligned = peer_alignment(paragraph, "".join(pieces).replace(WORD_MARK, " "))
    spans, place = [], 0
    for piece in pieces:
        span = [aligned[at] for at in range(place, place + len(piece)) if aligned[at] is not None]
        spans.append((span[0], span[-1]) if span else None)
        place += len(piece)
    ids = [processor.piece_to_id(piece) for piece in pieces]
    room = MAX_SEQ_LENGTH - len(query) - NUM_SPECIAL_IN_PAIR
    windows, begin = [], 0
    while begin < len(ids):
        windows.append((begin, min(room, len(ids) - begin)))
        if begin + windows[-1][1] == len(ids):
            break
        begin += min(windows[-1][1], 128)
    features = []
    for number, (first, length) in enumerate(windows):
        most = {
            len(query) + 2 + at: _peer_has_most_context(windows, number, first + at)
            for at in range(length)
        }
        sequence = [2, *query, 3, *ids[first : first + length], 3]
        features.append(
            {
                "input_ids": sequence + [0] * (MAX_SEQ_LENGTH - len(sequence)),
                "spans": spans[first : first + length],
                "max_context": most,
            }
        )
    return features


def peer_alignment(text: str, seen: str) -> list[int | None]:
    """Return, for each character of ``seen``, that of ``text`` which it is matched with.

    Source: `_lcs_match` of the reference's squad_utils.py, in words: the longest common
    subsequence in a band around the diagonal, once more with twice the band if it is short.
    """
    best = np.zeros((max(1024, len(text)), max(1024, len(seen))), np.float32)
    came_from: dict[tuple[int, int], int] = {}
    band = abs(len(text) - len(seen)) + 5
    for _ in range(2):
        _peer_fill(text, seen, band, best, came_from)
        if best[len(text) - 1, len(seen) - 1] > 0.8 * len(text):
            break
        band *= 2
    found: list[int | None] = [None] * len(seen)
    i, j = len(text) - 1, len(seen) - 1
    while i >= 0 and j >= 0 and (i, j) in came_from:
        if came_from[i, j] == 2:
            found[j] = i
            i, j = i - 1, j - 1
        elif came_from[i, j] == 1:
            j -= 1
        else:
            i -= 1
    return found


def _peer_fill(
    text: str, seen: str, band: int, best: np.ndarray, came_from: dict[tuple[int, int], int]
) -> None:
    best.fill(0)
    came_from.clear()
    for i in range(len(text)):
        for j in range(i - band, i + band):
            if j < 0 or j >= len(seen):
                continue
            if i > 0:
                came_from[i, j] = 0
                best[i, j] = best[i - 1, j]
            if j > 0 and best[i, j - 1] > best[i, j]:
                came_from[i, j] = 1
                best[i, j] = best[i, j - 1]
            before = best[i - 1, j - 1] if i > 0 and j > 0 else 0
            if _peer_normalise(text[i]) == seen[j] and before + 1 > best[i, j]:
                came_from[i, j] = 2
                best[i, j] = before + 1


def _peer_normalise(character: str) -> str:
    decomposed = unicodedata.normalize("NFKD", character)
    return "".join(c for c in decomposed if not unicodedata.combining(c)).lower()


def _peer_has_most_context(windows: list[tuple[int, int]], number: int, place: int) -> bool:
    best_score, best_number = None, None
    for other, (first, length) in enumerate(windows):
        last = first + length - 1
        if not first <= place <= last:
            continue
        score = min(place - first, last - place) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_number = score, other
    return number == best_number


def _table(result: dict[str, Any]) -> str:
    """Return the figures in Markdown."""
    missed = result["missed_goals"]
    mark = {name: " MISSED" if name in missed else "" for name in GOALS}
    times = f"{result['features_times_peer']:,.0f}{mark['features_times_peer']}"
    seconds = f"{result['answers_cpu_s']:.2f}{mark['answers_cpu_s']}"
    rows = [
        ("CPU seconds", "ours", "reference's alignment search", "times"),
        ("---", "---", "---", "---"),
        (
            f"features of {result['questions']:,} questions",
            f"{result['features_cpu_s']:.2f}",
            f"{result['peer_cpu_s_of_all']:,.0f}",
            times,
        ),
        (f"answers and scores of {result['answered_questions']:,} questions", seconds, "", ""),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
