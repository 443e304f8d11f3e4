"""Say how well the annotated answers of SQuAD files can be pointed at in pieces.

    python -m albert_core.tasks.span_report FILE... --vocab FOLDER

The text that the target pieces stand for is compared with the first annotated answer by what the
official evaluation compares: without case, articles, ASCII punctuation and needless blanks. Each
question where they differ is listed with the cause; it is trained on all the same.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from albert_core.stage import storage
from albert_core.stage.command import FAILURE, FAILURE_STATUS
from albert_core.stage.errors import AlbertError
from albert_core.tasks.examples import SpanExamples
from albert_core.tasks.span_inputs import NO_PIECE, ParagraphPieces, span_targets
from albert_core.tasks.squad import normalise_answer, read_squad
from albert_core.text.piece_offsets import encode_with_spans
from albert_core.text.tokenizer import Tokenizer

log = logging.getLogger("span_report")


@dataclass(frozen=True)
class Recovered:
    """What the target of a question with an answer stands for."""

    id: str
    annotated: str
    text: str
    """A slice of the paragraph; "" if no piece has any of the answer."""
    moved: bool
    """Whether the target is another place of the same text than the annotated one."""

    @property
    def is_equal(self) -> bool:
        """Whether the official evaluation takes one for the other."""
        return normalise_answer(self.text) == normalise_answer(self.annotated)

    @property
    def cause(self) -> str:
        """Why the two differ; "" if they do not."""
        if self.is_equal:
            return ""
        if not self.text:
            return "no piece has any of its characters"
        return "part of a piece, here and wherever else it stands in the paragraph"


def recovered_answers(examples: SpanExamples, tokenizer: Tokenizer) -> list[Recovered]:
    """Return what the target of each question with an answer stands for."""
    spans = encode_with_spans(tokenizer, examples.paragraphs)
    pieces = ParagraphPieces(examples.paragraphs, spans)
    targets = span_targets(examples, pieces)
    has_pieces = targets.first != NO_PIECE
    begins, ends = np.zeros(len(examples), np.int64), np.zeros(len(examples), np.int64)
    begins[has_pieces], ends[has_pieces] = pieces.characters(
        examples.paragraph_of[has_pieces], targets.first[has_pieces], targets.last[has_pieces]
    )
    return [
        Recovered(
            id=examples.ids[row],
            annotated=answers[0].text,
            text=examples.paragraphs[examples.paragraph_of[row]][begins[row] : ends[row]],
            moved=bool(targets.moved[row]),
        )
        for row, answers in enumerate(examples.answers)
        if answers
    ]


def report(uri: str, examples: SpanExamples, recovered: list[Recovered]) -> str:
    """Return the counts in a line, and a line for each question whose texts differ."""
    others = [each for each in recovered if not each.is_equal]
    num_exact = sum(each.text == each.annotated for each in recovered)
    share = 1 - len(others) / max(len(recovered), 1)
    num_moved = sum(each.moved for each in recovered)
    counts = (
        f"{uri}: {len(examples):,} questions, {len(recovered):,} with an answer; "
        f"{len(recovered) - len(others):,} recovered ({share:.2%}), {num_exact:,} of them to the "
        f"character; {num_moved:,} from another place than the annotated one, inside a piece"
    )
    return "\n".join(
        [counts, *(f"  {e.id}  {e.annotated!r} became {e.text!r}: {e.cause}" for e in others)]
    )


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the status of the process."""
    parser = argparse.ArgumentParser(prog="python -m albert_core.tasks.span_report")
    parser.add_argument("files", nargs="+", metavar="FILE", help="SQuAD 1.1 or 2.0, URI")
    parser.add_argument("--vocab", required=True, help="vocabulary: URI of a folder or a .model")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if arguments.vocab.endswith(".model"):
            tokenizer = Tokenizer(storage.read_bytes(arguments.vocab))
        else:
            tokenizer = Tokenizer.load(arguments.vocab)
        for uri in arguments.files:
            examples = read_squad(uri, has_answerless=True)
            log.info("%s", report(uri, examples, recovered_answers(examples, tokenizer)))
    except AlbertError as error:
        log.error("%s%s", FAILURE, error)  # noqa: TRY400  the message says it all
        return FAILURE_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
