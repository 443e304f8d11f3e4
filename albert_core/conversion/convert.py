"""Make a model folder of a trained model from elsewhere, so that every stage can read it."""

import torch

from albert_core.conversion.initial_weights import load_pretrained
from albert_core.conversion.model_folder import save_model_folder
from albert_core.text.seeds import derive_seed


def convert_model(source: str, folder: str) -> None:
    """Write a model and its vocabulary to a model folder.

    A head that the source lacks is drawn, always the same.

    Args:
        source: URI of any that `albert_core.conversion.initial_weights` knows and that has its
            vocabulary beside it: a release of google-research/albert, a published folder of
            Hugging Face, a pretraining run.
        folder: URI of the model folder.

    Raises:
        AlbertError: see `load_pretrained` and `save_model_folder`.
    """
    torch.manual_seed(derive_seed(0, "convert-model"))
    model, tokenizer = load_pretrained(source)
    save_model_folder(model, tokenizer, folder)
