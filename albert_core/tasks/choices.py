"""Questions about an article, each with options of which one is right.

Source: REFERENCE.md D.4 (`race_utils.py` of the reference).
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.config import ModelSettings
from albert_core.contract.manifest import Account
from albert_core.contract.tokenizer import Tokenizer
from albert_core.tasks.constant_answers import constant_label_scores
from albert_core.tasks.examples import ChoiceExamples, Task
from albert_core.tasks.problem import Head, Inputs, Ints, Outputs, Problem, Scored, Scorer
from albert_core.tasks.sequences import Sequences
from albert_core.tasks.text_heads import LOGITS, TARGET, ChoiceHead
from albert_core.tasks.texts import label_columns

MAX_QUESTION_PIECES = 128
"""Of a question with an option. Source: REFERENCE.md D.4 (`max_qa_length`)."""
ACCURACY = "accuracy"
_NUM_SPECIAL = 3
_BLANK = "_"


class ChoiceProblem(Problem[ChoiceExamples]):
    """Which option answers a question about an article."""

    def inputs(
        self,
        examples: ChoiceExamples,
        tokenizer: Tokenizer,
        max_seq_length: int,
    ) -> Inputs:
        """Return [CLS] article [SEP] question and option [SEP] for each option.

        A question with an option keeps its last `MAX_QUESTION_PIECES` pieces; the article loses
        its tail.
        """
        articles = tokenizer.encode(examples.articles)
        asked = tokenizer.encode(
            [
                with_option(question, option)
                for question, options in zip(examples.questions, examples.options, strict=True)
                for option in options
            ]
        )
        num_options = len(examples.options[0])
        article_of = np.repeat(examples.article_of, num_options).tolist()
        room = max_seq_length - _NUM_SPECIAL
        longest = min(MAX_QUESTION_PIECES, room)
        sequences = Sequences.of(
            [
                (articles[article][: room - min(len(ids), longest)], ids[-longest:])
                for article, ids in zip(article_of, asked, strict=True)
            ]
        )
        total = sum(len(articles[article]) for article in article_of) + sum(map(len, asked))
        kept = len(sequences.input_ids) - _NUM_SPECIAL * len(sequences)
        return Inputs(
            sequences=sequences,
            targets={} if examples.targets is None else {TARGET: examples.targets},
            accounts=[
                Account(what="pieces", total=total, kept=kept, dropped={"too_long": total - kept})
            ],
            sequences_per_unit=num_options,
        )

    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return a head with one score for each option."""
        return ChoiceHead(settings, len(self.task.labels), dropout_prob)

    def score(self, outputs: Outputs, inputs: Inputs, examples: ChoiceExamples) -> Scored:
        """Return the most probable option of each question, and its letter."""
        logits, targets = outputs[LOGITS], examples.targets
        predictions = logits.argmax(axis=1)
        columns = {
            "id": pa.array(examples.ids, pa.string()),
            "group": pa.array(examples.groups, pa.string()),
            **label_columns(self.task.labels, predictions, targets, logits),
        }
        scorers = _scorers(self.task, examples, predictions)
        return Scored(pa.table(columns), scorers, examples.article_of)

    def constant_scores(self, examples: ChoiceExamples) -> dict[str, float]:
        """Return what the most frequent option gets, over all questions."""
        assert examples.targets is not None
        return constant_label_scores([ACCURACY], examples.targets, len(self.task.labels))


def _scorers(task: Task, examples: ChoiceExamples, predictions: Ints) -> dict[str, Scorer]:
    """Return the accuracy over all questions, and over those of each group by itself."""
    if examples.targets is None:
        return {}
    is_right, groups = predictions == examples.targets, np.array(examples.groups)

    def accuracy_in(chosen: NDArray[np.bool_]) -> Scorer:
        def accuracy(rows: Ints) -> float:
            right = is_right[rows][chosen[rows]]
            return float(right.mean()) if len(right) else 0.0

        return accuracy

    names = {ACCURACY: np.ones(len(groups), bool)} | {
        f"{ACCURACY}_{group}": groups == group for group in np.unique(groups).tolist()
    }
    return {name: accuracy_in(names[name]) for name in task.metrics if name in names}


def with_option(question: str, option: str) -> str:
    """Return the question answered: its blanks filled, or the option behind it.

    >>> with_option("Tom is _ .", "tired")
    'Tom is tired .'
    >>> with_option("How is Tom?", "Tired.")
    'How is Tom? Tired.'
    """
    if _BLANK in question:
        return question.replace(_BLANK, option)
    return f"{question} {option}"
