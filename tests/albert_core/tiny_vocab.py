"""A vocabulary of a few hundred pieces, trained in a second, for tests that need a real one."""

import io
import random
from functools import cache

import sentencepiece

from albert_core.text.tokenizer import Tokenizer

SYLLABLES = [consonant + vowel for consonant in "bdklmnprstvz" for vowel in "aeiou"]

MARKED = "bádo bêlu が か हिन्दी किं ไม่ คำ ع عَ"
"""Words of which other words are left without their marks."""


def tiny_sentences(num_sentences: int, seed: int = 0) -> list[str]:
    """Return sentences of made-up words, with some punctuation and digits."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(2000)]
    numbers = [str(draw.randint(0, 2000)) for _ in range(30)]
    endings = [".", " (x).", " - so.", ' "no".']
    return [
        " ".join([*draw.choices(words, k=9), draw.choice(numbers)]) + draw.choice(endings)
        for _ in range(num_sentences)
    ]


@cache
def tiny_vocab(
    vocab_size: int = 200,
    lower_case: bool = True,
    model_type: str = "unigram",
    keep_accents: bool = False,
) -> Tokenizer:
    """Return a tokenizer with ALBERT's special pieces. It has the options of the published one."""
    sentences = tiny_sentences(2000)
    if not lower_case:
        sentences += [sentence.title() for sentence in sentences]
    if keep_accents:
        sentences += [MARKED] * 200
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=vocab_size,
        model_type=model_type,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", '"', "-", ".", "\N{EN DASH}", "£", "€"],
        num_threads=1,
        minloglevel=2,
    )
    return Tokenizer(model.getvalue(), lower_case, keep_accents=keep_accents)
