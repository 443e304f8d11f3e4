"""Weights to start from: a trained model of any source, in the shape of a new one.

The source is recognised by what is at its URI:

* a pretraining run: its folder or its ``manifest.json``; the model it ended with is taken;
* a checkpoint of a run: ``checkpoints/step-00125000``;
* a model folder in Hugging Face's layout, ALBERT or BERT, ours or theirs;
* a release of google-research/albert: its folder, or the prefix of a checkpoint in it.

A source with fewer layers can initialise a deeper model: layer i takes the weights of layer
``i * L_source // L``, so that each layer of the source is followed by its own copies. Where all
layers share, these are the same weights. The paper started each deeper network of Table 11 from a
shallower one, and a 12-layer ALBERT-xxlarge from 6 layers (footnote 5); it gives no mapping for
layers that do not share, and this one keeps their order.

A source may lack the pooler or a head, as published checkpoints lack the sentence order head. A
new one is drawn then, and logged.

Source: Lan et al. 2020, Table 11 and footnote 5.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from albert_core.checkpoint import RECORD, load_checkpoint
from albert_core.config import ModelSettings
from albert_core.conversion.huggingface import OPTIONAL_PARTS, from_hf_state
from albert_core.conversion.model_files import CONFIG, WEIGHTS
from albert_core.conversion.model_folder import (
    check_vocabulary,
    read_model_folder,
    read_tokenizer,
    save_model_folder,
)
from albert_core.conversion.tf_release import (
    from_tf_variables,
    is_tf_release,
    read_tf_config,
    read_tf_tokenizer,
    read_tf_variables,
)
from albert_core.model.albert import AlbertForPretraining, block_route
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, IntegrityError, SourceError
from albert_core.stage.lineage import model_folder_of
from albert_core.stage.manifest import MANIFEST
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer

_MUST_BE_EQUAL = (
    "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size", "inner_group_num",
    "hidden_act", "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
_BLOCKS = ("encoder.attentions.", "encoder.feed_forwards.")
_WORDS = "encoder.embeddings.word.weight"

log = logging.getLogger(__name__)


def load_initial_weights(
    uri: str, settings: ModelSettings, vocabulary: Tokenizer
) -> AlbertForPretraining:
    """Return a model of the shape ``settings`` with the weights at ``uri``, on the CPU in float32.

    A missing head is drawn from torch's default generator, as in any new model: seed it before.

    Args:
        uri: the source; see the module.
        settings: the model's shape. It may have more layers than the source, share less and have
            other dropouts.
        vocabulary: what the model will read. If the source has its own, both must have the same
            pieces.

    Raises:
        ConfigError: the source does not fit; the message names each difference.
        AlbertError: see `read_source`.
    """
    source = read_source(uri)
    _check_fit(source, settings, vocabulary.vocab_size)
    _check_vocabulary(source, vocabulary)
    return source.start(settings)


def convert_model(source: str, folder: str) -> None:
    """Write a model and its vocabulary to a model folder, which every stage can read.

    A head that the source lacks is drawn, always the same.

    Args:
        source: URI of any of the kinds above that has its vocabulary beside it.
        folder: URI of the model folder.

    Raises:
        AlbertError: see `read_source` and `save_model_folder`; or there is no vocabulary.
    """
    torch.manual_seed(derive_seed(0, "convert-model"))
    found = read_source(source)
    tokenizer = found.tokenizer()
    if tokenizer is None:
        raise IntegrityError(
            f"{found.where} has no SentencePiece vocabulary, so no text can be read. Give the "
            "model folder of a finished run, or put the model's spiece.model there."
        )
    check_vocabulary(found.vocab_size, tokenizer, f"the model in {found.where}")
    save_model_folder(found.start(found.settings), tokenizer, folder)


@dataclass(frozen=True)
class Source:
    """A trained model in its own shape, which may lack some of `OPTIONAL_PARTS`."""

    where: str
    settings: ModelSettings
    tensors: Mapping[str, Tensor]
    """float32 on the CPU, by the names of our parameters."""

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self.tensors[_WORDS])

    def tokenizer(self) -> Tokenizer | None:
        """Return the vocabulary beside the weights, or None."""
        if is_tf_release(self.where):
            return read_tf_tokenizer(self.where)
        if storage.exists(storage.join(self.where, SPIECE_MODEL)):
            return read_tokenizer(self.where)
        return None

    def start(self, settings: ModelSettings) -> AlbertForPretraining:
        """Return a new model of the shape ``settings`` that begins with these weights.

        A missing part is drawn from torch's default generator, and logged.

        Raises:
            ConfigError: a block would start from several.
        """
        model = AlbertForPretraining(settings, self.vocab_size)
        missing = model.load_state_dict(_deepened(self, settings), strict=False).missing_keys
        log.info(
            "%d layers start from the %d of %s",
            settings.num_hidden_layers,
            self.settings.num_hidden_layers,
            self.where,
        )
        for part, title in OPTIONAL_PARTS.items():
            if any(name.startswith(f"{part}.") for name in missing):
                log.warning("%s has no %s: a new one is drawn", self.where, title)
        return model


def read_source(uri: str) -> Source:
    """Return the trained model at ``uri``; see the module.

    Raises:
        ConfigError: TensorFlow is needed and not installed, or this project has no such model.
        IntegrityError: a file is missing or damaged, or tensors do not have the shape that the
            source itself describes.
        SourceError: there is nothing of the kinds above at ``uri``.
    """
    uri = uri.rstrip("/")
    manifest = uri if uri.endswith(f"/{MANIFEST}") else storage.join(uri, MANIFEST)
    if uri == manifest or storage.exists(manifest):
        return _read_model_folder(model_folder_of(manifest))
    if storage.exists(storage.join(uri, RECORD)):
        return _read_checkpoint(uri)
    if storage.exists(storage.join(uri, CONFIG)):
        return _read_model_folder(uri)
    if is_tf_release(uri):
        settings = read_tf_config(uri)
        return Source(uri, settings, from_tf_variables(read_tf_variables(uri), settings, uri))
    raise SourceError(
        f"{uri} is nothing to start from: it has no {MANIFEST} (a finished run), no {RECORD} (a "
        f"checkpoint), no {CONFIG} (a model folder) and no .index file (a TF release). Give the "
        "URI of one of these."
    )


def _read_model_folder(folder: str) -> Source:
    state, settings, architecture = read_model_folder(folder)
    where = storage.join(folder, WEIGHTS)
    return Source(folder, settings, from_hf_state(state, settings, where, architecture))


def _read_checkpoint(uri: str) -> Source:
    state, record = load_checkpoint(uri)
    try:
        settings = ModelSettings.read(record["settings"]["model"], f"{uri}, settings of the run")
        tensors = state["model"]
        with torch.device("meta"):
            model = AlbertForPretraining(settings, len(tensors[_WORDS]))
        model.load_state_dict(tensors, assign=True)
    except (KeyError, RuntimeError) as error:
        raise IntegrityError(
            f"{uri} does not hold the model that it describes: {error}. Give another checkpoint."
        ) from error
    return Source(uri, settings, tensors)


def _check_fit(source: Source, settings: ModelSettings, vocab_size: int) -> None:
    pairs = {
        name: (getattr(source.settings, name), getattr(settings, name)) for name in _MUST_BE_EQUAL
    }
    pairs["vocab_size"] = (source.vocab_size, vocab_size)
    differences = [
        f"{name} is {there!r} there and {here!r} here"
        for name, (there, here) in pairs.items()
        if there != here
    ]
    there, here = source.settings.num_hidden_layers, settings.num_hidden_layers
    if there > here:
        differences.append(f"num_hidden_layers is {there} there and only {here} here")
    if differences:
        raise ConfigError(
            f"{source.where} does not fit the model: {'; '.join(differences)}. Change the model's "
            "settings, or start from other weights."
        )


def _check_vocabulary(source: Source, vocabulary: Tokenizer) -> None:
    own = source.tokenizer()
    if own is None:
        log.warning("%s has no vocabulary: its pieces are assumed to be ours", source.where)
        return
    pairs = enumerate(zip_longest(own.pieces, vocabulary.pieces))
    differences = [
        f"piece {number} is {there!r} there and {here!r} here"
        for number, (there, here) in pairs
        if there != here
    ]
    if own.lower_case != vocabulary.lower_case:
        differences.append(f"lower_case is {own.lower_case} there and {vocabulary.lower_case} here")
    if differences:
        raise ConfigError(
            f"{source.where} was trained with another vocabulary: {differences[0]}. Make the "
            "examples with its vocabulary, or start from other weights."
        )


def _deepened(source: Source, settings: ModelSettings) -> dict[str, Tensor]:
    """Return the state of a model of the shape ``settings``, from that of ``source``."""
    state = {name: t for name, t in source.tensors.items() if not name.startswith(_BLOCKS)}
    for kind, origins in zip(_BLOCKS, _origins(source, settings), strict=True):
        for own, other in origins.items():
            prefix = f"{kind}{other}."
            for name, tensor in source.tensors.items():
                if name.startswith(prefix):
                    state[f"{kind}{own}.{name.removeprefix(prefix)}"] = tensor
    return state


def _origins(source: Source, settings: ModelSettings) -> tuple[dict[int, int], dict[int, int]]:
    """Return which block of the source each attention and each feed-forward block starts from.

    Raises:
        ConfigError: a block would start from several.
    """
    shared = source.settings
    ours, theirs = block_route(settings), block_route(shared)
    num_blocks = settings.inner_group_num
    origins: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for place, own in enumerate(ours):
        layer, inner = divmod(place, num_blocks)
        source_layer = layer * shared.num_hidden_layers // settings.num_hidden_layers
        other = theirs[source_layer * num_blocks + inner]
        for origin, block, from_block in zip(origins, own, other, strict=True):
            if origin.setdefault(block, from_block) != from_block:
                raise ConfigError(
                    f"{source.where} does not fit the model: sharing is {shared.sharing!r} in "
                    f"{shared.num_hidden_groups} groups there and {settings.sharing!r} in "
                    f"{settings.num_hidden_groups} here, so that one block would start from "
                    "several. Share as the source does, or less."
                )
    return origins
