"""Questions about made-up paragraphs: which number stands in it?"""

import random

import numpy as np

from albert_core.tasks.examples import Answer, SpanExamples
from tests.albert_core.tiny_vocab import SYLLABLES


def made_questions(
    num_paragraphs: int,
    seed: int = 0,
    num_words: tuple[int, int] = (5, 15),
    answerless_share: float = 0.0,
    questions_each: int = 1,
    largest: int = 2000,
) -> SpanExamples:
    """Return questions about paragraphs of made-up words; a number, if there is one, answers them.

    Args:
        num_paragraphs: how many.
        seed: of the words.
        num_words: fewest and most words of a paragraph, beside the number.
        answerless_share: share of paragraphs without a number.
        questions_each: questions about each paragraph.
        largest: number.
    """
    draw = random.Random(seed)
    paragraphs, paragraph_of, questions, answers = [], [], [], []
    for paragraph in range(num_paragraphs):
        words = ["".join(draw.choices(SYLLABLES, k=2)) for _ in range(draw.randint(*num_words))]
        place = draw.randrange(len(words))
        start = sum(len(word) + 1 for word in words[:place])
        found: tuple[Answer, ...] = ()
        if draw.random() >= answerless_share:
            words.insert(place, str(draw.randint(0, largest)))
            found = (Answer(words[place], start),)
        paragraphs.append(" ".join(words))
        for _ in range(questions_each):
            paragraph_of.append(paragraph)
            questions.append(" ".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))))
            answers.append(found)
    return SpanExamples(
        ids=[f"q{number}" for number in range(len(questions))],
        paragraphs=paragraphs,
        paragraph_of=np.array(paragraph_of, np.int64),
        clusters=np.array(paragraph_of, np.int64),
        questions=questions,
        answers=answers,
    )


def one_question(paragraph: str, *answers: Answer, question: str = "bade") -> SpanExamples:
    """Return one question about one paragraph."""
    return SpanExamples(
        ids=["q"],
        paragraphs=[paragraph],
        paragraph_of=np.zeros(1, np.int64),
        clusters=np.zeros(1, np.int64),
        questions=[question],
        answers=[answers],
    )
