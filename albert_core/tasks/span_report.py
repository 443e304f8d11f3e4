"""Report how many annotated answers of SQuAD files are exactly a sequence of pieces.

    python -m albert_core.tasks.span_report FILE... --vocab FOLDER

The text of the target pieces is compared with the first annotated answer as in the official
evaluation: without case, articles, ASCII punctuation and needless blanks. Each question where they
differ is listed with the cause; it is used in training all the same.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

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
    """The text of the target pieces of a question with an answer."""

    id: str
    annotated: str
    text: str
    """A slice of the paragraph; "" if no piece contains any of the answer."""
    moved: bool
    """Whether the target is another place of the same text than the annotated one."""

    @property
    def is_equal(self) -> bool:
        """Whether the official evaluation treats the two texts as equal."""
        return normalise_answer(self.text) == normalise_answer(self.annotated)


def recovered_answers(examples: SpanExamples, tokenizer: Tokenizer) -> list[Recovered]:
    """Return the text of the target of each question with an answer."""
    spans = encode_with_spans(tokenizer, examples.paragraphs)
    pieces = ParagraphPieces(examples.paragraphs, spans)
    targets = span_targets(examples, pieces)
    found = []
    for row, answers in enumerate(examples.answers):
        if answers:
            paragraph, text = examples.paragraph_of[row], ""
            if targets.first[row] != NO_PIECE:
                begin, end = pieces.characters(paragraph, targets.first[row], targets.last[row])
                text = examples.paragraphs[paragraph][begin:end]
            moved = bool(targets.moved[row])
            found.append(Recovered(examples.ids[row], answers[0].text, text, moved))
    return found


def report(uri: str, examples: SpanExamples, recovered: list[Recovered]) -> str:
    """Return the counts in a line, and a line for each question whose texts differ."""
    others = [each for each in recovered if not each.is_equal]
    share = 1 - len(others) / max(len(recovered), 1)
    counts = (
        f"{uri}: {len(examples):,} questions, {len(recovered):,} with an answer; "
        f"{len(recovered) - len(others):,} recovered ({share:.2%}), "
        f"{sum(each.text == each.annotated for each in recovered):,} of them to the character; "
        f"{sum(each.moved for each in recovered):,} from another place than the annotated one, "
        "inside a piece"
    )
    lines = [counts]
    for each in others:
        cause = (
            "it is part of a piece, here and wherever else it occurs in the paragraph"
            if each.text
            else "no piece contains any of its characters"
        )
        lines.append(f"  {each.id}  {each.annotated!r} became {each.text!r}: {cause}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the status of the process."""
    parser = argparse.ArgumentParser(prog="python -m albert_core.tasks.span_report")
    parser.add_argument("files", nargs="+", metavar="FILE", help="SQuAD 1.1 or 2.0, URI")
    parser.add_argument("--vocab", required=True, help="vocabulary: URI of a folder or a .model")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if options.vocab.endswith(".model"):
            tokenizer = Tokenizer(storage.read_bytes(options.vocab))
        else:
            tokenizer = Tokenizer.load(options.vocab)
        for uri in options.files:
            examples = read_squad(uri, has_answerless=True)
            log.info("%s", report(uri, examples, recovered_answers(examples, tokenizer)))
    except AlbertError as error:
        log.error("%s%s", FAILURE, error)  # noqa: TRY400  the message is enough
        return FAILURE_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
