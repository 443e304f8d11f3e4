"""Minimal pairs scored by ours against a loop over Hugging Face's `AlbertForMaskedLM`.

    python -m benchmarks.minimal_pairs [--rounds 3] [--results FILE]

Random weights of the demo's shape, a vocabulary of 8,000 pieces from real English text, and some
pairs of each paradigm of BLiMP; where BLiMP is not at hand, made from the text. One thread each,
in turn. The peer scores a sentence at a time, as people do: the copies of a sentence are a batch,
the logits of all its pieces are computed. Pieces are those of all copies, [CLS] and [SEP] included.
"""

import random
import tempfile
from functools import cache
from pathlib import Path

import torch

from albert_core.config import ModelSettings
from albert_core.conversion.huggingface import to_hf_state
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.manifest import read_manifest
from albert_core.tasks.likelihoods import log_likelihoods
from albert_core.tasks.minimal_pairs import find_pairs, read_pairs
from albert_core.text.records import CLS, MASK, SEP
from albert_core.text.tokenizer import WORD_MARK, Tokenizer
from benchmarks import harness
from benchmarks.english_text import documents_of, make_examples
from benchmarks.training_step import in_transformers

SETTINGS = ModelSettings(
    embedding_size=64,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
)
VOCAB_SIZE = 8_000
TEXT_BYTES = 2_000_000
PAIRS_OF_A_PARADIGM = 5
MADE_PAIRS = 600
WHOLE_BLIMP = 67_000
"""Pairs of BLiMP, which has 1,000 of each paradigm."""
GOAL_RATE, GOAL_TIMES = 150_000, 4.7


def pairs_to_score(corpus: str) -> tuple[list[str], str]:
    """Return sentences and where they are from."""
    files = find_pairs(str(harness.DATA / "tasks")).get("blimp", ())
    if not files:
        draw = random.Random(0)
        texts = [" ".join(text.split()[:10]) for _, text in documents_of(corpus)]
        return draw.choices(texts, k=2 * MADE_PAIRS), "beginnings of documents"
    each = [read_pairs("blimp", [file]) for file in files]
    chosen = [pair for pairs in each for pair in pairs[:PAIRS_OF_A_PARADIGM]]
    return [text for pair in chosen for text in (pair.good, pair.bad)], "BLiMP"


def num_pieces(tokenizer: Tokenizer, sentences: list[str]) -> int:
    """Return the pieces of all copies of the sentences."""
    return sum(len(ids) * (len(ids) + 2) for ids in tokenizer.encode(sentences))


def random_model(vocab_size: int) -> AlbertForPretraining:
    """Return the demo's model, not trained, for a process with one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return AlbertForPretraining(SETTINGS, vocab_size).eval()


@cache
def ours(vocab: str, sentences: tuple[str, ...]) -> harness.Work:
    """Contestant: `log_likelihoods`."""
    tokenizer = Tokenizer.load(vocab)
    model = random_model(tokenizer.vocab_size)

    def work() -> int:
        log_likelihoods(model, tokenizer, sentences, torch.device("cpu"))
        return num_pieces(tokenizer, list(sentences))

    return work


@cache
def theirs(vocab: str, sentences: tuple[str, ...]) -> harness.Work:
    """Contestant: a sentence at a time by Hugging Face's class."""
    tokenizer = Tokenizer.load(vocab)
    state = to_hf_state(random_model(tokenizer.vocab_size))
    model = in_transformers("MaskedLM", SETTINGS, tokenizer.vocab_size, state).eval()

    @torch.no_grad()
    def score(ids: list[int]) -> float:
        starts = [tokenizer.pieces[piece].startswith(WORD_MARK) for piece in ids]
        copies = torch.tensor([CLS, *ids, SEP]).repeat(len(ids), 1)
        for place, copy in enumerate(copies):
            end = next((n for n in range(place + 1, len(ids)) if starts[n]), len(ids))
            copy[place + 1 : end + 1] = MASK
        logits = model(input_ids=copies, attention_mask=torch.ones_like(copies)).logits
        places = torch.arange(len(ids))
        log_p = torch.log_softmax(logits[places, places + 1], dim=1)
        return float(log_p[places, torch.tensor(ids)].sum())

    def work() -> int:
        for ids in tokenizer.encode(sentences):
            score(ids)
        return num_pieces(tokenizer, list(sentences))

    return work


def main() -> None:
    """Measure both; print and write the results."""
    options = harness.arguments(__doc__, "minimal_pairs", rounds=3).parse_args()
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
        sizes = {"vocabulary.vocab_size": VOCAB_SIZE, "vocabulary.model": ""}
        _, examples = make_examples(Path(folder), TEXT_BYTES, [128], **sizes)
        inputs = read_manifest(examples[128]).input_manifests
        vocab = inputs["vocab"].rpartition("/")[0]
        sentences, origin = pairs_to_score(inputs["corpus"])
        both = {"ours": (ours, vocab, tuple(sentences)), "peer": (theirs, vocab, tuple(sentences))}
        found = harness.in_turns(both, options.rounds)
        pieces = num_pieces(Tokenizer.load(vocab), sentences)
    whole = pieces / len(sentences) * 2 * WHOLE_BLIMP
    minutes = {name: whole / found.rate(name).median / 60 for name in both}
    result = {
        "sentences": {"from": origin, "number": len(sentences), "pieces": pieces},
        **found.result("peer"),
        "cpu_minutes_for_67000_pairs": minutes,
        "hardware": {"threads": 1},
    }
    rows: list[list[object]] = [
        ["pieces per CPU second", found.rate("ours"), found.rate("peer"), f"{GOAL_RATE:,}"],
        ["times the peer", found.times("ours", "peer"), "", GOAL_TIMES],
        ["CPU minutes for 67,000 such pairs", *(f"{each:.2f}" for each in minutes.values()), ""],
    ]
    shown = harness.table(["measure", "ours", "Hugging Face", "goal"], rows)
    harness.report(result, shown, options.results)


if __name__ == "__main__":
    main()
