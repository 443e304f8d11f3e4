"""Make a model folder of a trained model from elsewhere, so that every stage can read it.

    python -m albert_core.conversion.convert SOURCE FOLDER

SOURCE is any that `albert_core.conversion.initial_weights` knows and that has its vocabulary
beside it: a release of google-research/albert, a published folder of Hugging Face, a
pretraining run.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

import torch

from albert_core.conversion.initial_weights import load_pretrained
from albert_core.conversion.model_folder import save_model_folder
from albert_core.stage.command import FAILURE, FAILURE_STATUS
from albert_core.stage.errors import AlbertError
from albert_core.text.seeds import derive_seed

log = logging.getLogger("convert_model")


def convert_model(source: str, folder: str) -> None:
    """Write the model and the vocabulary at ``source`` to the model folder ``folder`` (URIs).

    A head that the source lacks is drawn, always the same.

    Raises:
        AlbertError: see `load_pretrained` and `save_model_folder`.
    """
    torch.manual_seed(derive_seed(0, "convert-model"))
    model, tokenizer = load_pretrained(source)
    save_model_folder(model, tokenizer, folder)
    log.info("wrote %s", folder)


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the status of the process."""
    parser = argparse.ArgumentParser(prog="python -m albert_core.conversion.convert")
    parser.add_argument("source", help="URI of the model; for a TF release its folder or prefix")
    parser.add_argument("folder", help="URI of the model folder to write")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        convert_model(arguments.source, arguments.folder)
    except AlbertError as error:
        log.error("%s%s", FAILURE, error)  # noqa: TRY400  the message says it all
        return FAILURE_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
