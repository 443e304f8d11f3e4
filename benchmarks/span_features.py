"""SQuAD to windows, and scores to answers, against the reference's alignment search.

    python -m benchmarks.span_features [--squad FILE] [--vocab FILE] [--rounds N] [--results FILE]

CPU seconds. Features: texts to input sequences with targets, max-context and character offsets,
`span_inputs` on the whole file; the peer only the offsets, by the algorithm of the reference
written here anew (a longest common subsequence in a band, a dictionary and a NumPy array, in
Python), on some questions spread over the file.

Answers: the 10,570 questions of the official dev set in number, made by repeating the file's; a
window's 20 best starts and ends lie within 25 pieces, as those of a trained model do, so that most
of the 400 pairs are valid.
"""

import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from albert_core.config import SpanSettings
from albert_core.tasks.examples import SpanExamples, Task
from albert_core.tasks.spans import SpanProblem, Windows
from albert_core.tasks.squad import read_squad
from albert_core.text.tokenizer import WORD_MARK, Tokenizer, normalise_for_pieces
from benchmarks.harness import DATA, PUBLISHED_MODEL, Work, arguments, in_turns, report, table

SQUAD = DATA / "tasks/squad/squad-v1.1-articles-0-35.json"
MAX_SEQ_LENGTH = 384
ROUNDS = 3
PEER_QUESTIONS = 60
DEV_QUESTIONS = 10_570
_TASK = Task(name="squad-1.1", title="SQuAD 1.1", kind="spans", metrics=("f1", "exact_match"))


@cache
def _given(squad: str, vocab: str) -> tuple[SpanExamples, Tokenizer, SpanProblem]:
    examples = read_squad(squad, has_answerless=False)
    return examples, Tokenizer(Path(vocab).read_bytes()), SpanProblem(_TASK, SpanSettings())


def features(squad: str, vocab: str) -> Work:
    """Contestant: the inputs of all questions."""
    examples, tokenizer, problem = _given(squad, vocab)

    def work() -> int:
        problem.inputs(examples, tokenizer, MAX_SEQ_LENGTH)
        return len(examples)

    return work


def peer(squad: str, vocab: str) -> Work:
    """Contestant: the reference's character offsets of some questions."""
    examples, tokenizer, _ = _given(squad, vocab)
    rows = np.linspace(0, len(examples) - 1, PEER_QUESTIONS).astype(int).tolist()

    def work() -> int:
        for row in rows:
            peer_spans(examples, row, tokenizer)
        return len(rows)

    return work


@cache
def answers(squad: str, vocab: str) -> Work:
    """Contestant: the answers and scores of as many questions as the dev set has."""
    examples, tokenizer, problem = _given(squad, vocab)
    rows = np.arange(DEV_QUESTIONS) % len(examples)
    many = SpanExamples(
        ids=[str(number) for number in range(DEV_QUESTIONS)],
        paragraphs=examples.paragraphs,
        paragraph_of=examples.paragraph_of[rows],
        clusters=examples.clusters[rows],
        questions=[examples.questions[row] for row in rows],
        answers=[examples.answers[row] for row in rows],
    )
    inputs = problem.inputs(many, tokenizer, MAX_SEQ_LENGTH)
    outputs = made_outputs(inputs.details, problem.settings.n_best)

    def work() -> int:
        problem.score(outputs, inputs, many)
        return DEV_QUESTIONS

    return work


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


def peer_spans(examples: SpanExamples, row: int, tokenizer: Tokenizer) -> list[Any]:
    """Return the first and last character of each piece of a question's paragraph."""
    paragraph = examples.paragraphs[examples.paragraph_of[row]]
    normal = normalise_for_pieces(paragraph, lower_case=True)
    pieces = tokenizer.processor.encode(normal, out_type=str)
    aligned = peer_alignment(paragraph, "".join(pieces).replace(WORD_MARK, " "))
    spans, place = [], 0
    for piece in pieces:
        span = [at for at in aligned[place : place + len(piece)] if at is not None]
        spans.append((span[0], span[-1]) if span else None)
        place += len(piece)
    return spans


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


def main() -> None:
    """Measure, print and write the results."""
    parser = arguments(__doc__, "span_features")
    parser.add_argument("--squad", type=Path, default=SQUAD, help="SQuAD 1.1, JSON")
    parser.add_argument("--vocab", type=Path, default=PUBLISHED_MODEL, help="SentencePiece model")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    missing = [str(path) for path in (options.squad, options.vocab) if not path.is_file()]
    if missing:
        print(f"not run: {', '.join(missing)} is absent; give --squad and --vocab")
        return
    files = (str(options.squad), str(options.vocab))
    makers = {"features": features, "peer": peer, "answers": answers}
    found = in_turns({name: (make, *files) for name, make in makers.items()}, options.rounds)
    rows = [
        [name, found.rate(name), f"{DEV_QUESTIONS / found.rate(name).median:,.1f}", times, goal]
        for name, times, goal in (
            ("features", found.times("features", "peer"), "20 times the peer"),
            ("answers", "", "20 CPU s"),
            ("peer", "", ""),
        )
    ]
    head = ["work", "questions per CPU s", f"CPU s of {DEV_QUESTIONS:,}", "times the peer", "goal"]
    result = found.result() | {"max_seq_length": MAX_SEQ_LENGTH, "file": options.squad.name}
    result["features"]["times_peer"] = vars(found.times("features", "peer"))
    report(result, table(head, rows), options.results)


if __name__ == "__main__":
    main()
