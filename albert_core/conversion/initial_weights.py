"""Weights to start from: a trained model, wherever it is from, in the shape of a new one.

The source is recognised by what is at its URI:

* a pretraining run: its folder or its ``manifest.json``; the model it ended with is taken;
* a checkpoint of a run: ``checkpoints/step-00125000``;
* a model folder in Hugging Face's layout, ALBERT or BERT, ours or theirs;
* a release of google-research/albert: its folder, or the prefix of a checkpoint in it.

A source with fewer layers gives a deeper model its start: layer i takes the weights of layer
``i * L_source // L``, so that each layer of the source is followed by its own copies. Where all
layers share, these are the same weights. The paper started each deeper network of Table 11 from a
shallower one, and a 12-layer ALBERT-xxlarge from 6 layers (footnote 5); it tells no mapping for
layers that do not share, and this one keeps their order.

A source may lack the pooler or a head, as published checkpoints lack the sentence order head: a
new one is drawn, and the log says which.

Source: Lan et al. 2020, Table 11 and footnote 5.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from albert_core.checkpoint import RECORD, load_checkpoint
from albert_core.config import ModelSettings
from albert_core.conversion.huggingface import (
    Architecture,
    OwnState,
    empty_model,
    hf_names,
    own_state,
)
from albert_core.conversion.model_files import CONFIG, WEIGHTS
from albert_core.conversion.model_folder import (
    read_model_folder,
    read_tokenizer,
    save_model_folder,
)
from albert_core.conversion.tf_release import (
    is_tf_release,
    read_tf_config,
    read_tf_tokenizer,
    read_tf_variables,
    tf_names,
    tf_to_hf,
)
from albert_core.model.albert import AlbertForPretraining, block_route
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, IntegrityError, SourceError
from albert_core.stage.manifest import MANIFEST, read_manifest
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer

_PARTS = {
    "encoder.pooler": "pooler",
    "masked_lm": "masked LM head",
    "sentence_order": "sentence order head",
}
"""What a source may lack: the module, and its name in a message."""
_MUST_BE_EQUAL = (
    "embedding_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "inner_group_num",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
)
_BLOCKS = ("encoder.attentions.", "encoder.feed_forwards.")
_WORDS = "encoder.embeddings.word.weight"

log = logging.getLogger(__name__)


def load_initial_weights(
    uri: str, settings: ModelSettings, vocab_size: int, vocabulary: Tokenizer | None = None
) -> AlbertForPretraining:
    """Return a model of the shape ``settings`` with the weights at ``uri``, on the CPU in float32.

    A missing head is drawn from torch's default generator, as in any new model: seed it before.

    Args:
        uri: the source; see the module.
        settings: the model's shape. It may have more layers than the source, share less and have
            other dropouts.
        vocab_size: V.
        vocabulary: what the model will read. Where it is given and the source has its own, they
            must have the same pieces.

    Raises:
        ConfigError: the source does not fit; the message names each difference. Or TensorFlow is
            needed and not installed.
        IntegrityError: a file is missing or damaged, or tensors are not those of the shape that
            the source itself describes.
        SourceError: there is nothing of the kinds above at ``uri``.
    """
    source = _read_source(uri)
    _check_fit(source, settings, vocab_size)
    if vocabulary is not None:
        _check_vocabulary(source, vocabulary)
    return _start(source, settings)


def load_pretrained(uri: str) -> tuple[AlbertForPretraining, Tokenizer]:
    """Return the model at ``uri`` in its own shape, and its tokenizer: the start of fine-tuning.

    It is to `load_model_folder` what this module is to `conversion`: it takes every kind of source,
    and a part that is missing is drawn from torch's default generator.

    Raises:
        ConfigError: TensorFlow is needed and not installed.
        IntegrityError: see `load_initial_weights`; or the source has no vocabulary.
        SourceError: there is nothing of the kinds above at ``uri``.
    """
    source = _read_source(uri)
    tokenizer = source.tokenizer()
    if tokenizer is None:
        raise IntegrityError(
            f"{source.where} has no SentencePiece vocabulary, so no text can be read. Give the "
            "model folder of a finished run, or put the model's spiece.model there."
        )
    if tokenizer.vocab_size != source.vocab_size:
        raise IntegrityError(
            f"{source.where} has a model of {source.vocab_size} pieces and a vocabulary of "
            f"{tokenizer.vocab_size}. Put the vocabulary there that it was trained with."
        )
    return _start(source, source.settings), tokenizer


def convert_model(source: str, folder: str) -> None:
    """Write a model and its vocabulary to a model folder, which every stage can read.

    A head that the source lacks is drawn, always the same.

    Args:
        source: URI of any of the kinds above that has its vocabulary beside it.
        folder: URI of the model folder.

    Raises:
        AlbertError: see `load_pretrained` and `save_model_folder`.
    """
    torch.manual_seed(derive_seed(0, "convert-model"))
    model, tokenizer = load_pretrained(source)
    save_model_folder(model, tokenizer, folder)


@dataclass(frozen=True)
class _Source:
    """A trained model in its own shape, which may lack some of `_PARTS`."""

    where: str
    settings: ModelSettings
    tensors: Mapping[str, Tensor]
    """float32 on the CPU, by the names of our parameters."""

    @property
    def vocab_size(self) -> int:
        return len(self.tensors[_WORDS])

    def tokenizer(self) -> Tokenizer | None:
        """Return the vocabulary that lies beside the weights, or None."""
        if is_tf_release(self.where):
            return read_tf_tokenizer(self.where)
        if storage.exists(storage.join(self.where, SPIECE_MODEL)):
            return read_tokenizer(self.where)
        return None


def _read_source(uri: str) -> _Source:
    uri = uri.rstrip("/")
    if uri.rpartition("/")[2] == MANIFEST or storage.exists(storage.join(uri, MANIFEST)):
        return _read_model_folder(_model_folder_of_run(uri))
    if storage.exists(storage.join(uri, RECORD)):
        return _read_checkpoint(uri)
    if storage.exists(storage.join(uri, CONFIG)):
        return _read_model_folder(uri)
    if is_tf_release(uri):
        return _read_tf_release(uri)
    raise SourceError(
        f"{uri} is nothing to start from: it has no {MANIFEST} (a finished run), no {RECORD} (a "
        f"checkpoint), no {CONFIG} (a model folder) and no .index file (a TF release). Give the "
        "URI of one of these."
    )


def _model_folder_of_run(uri: str) -> str:
    manifest_uri = uri if uri.endswith(MANIFEST) else storage.join(uri, MANIFEST)
    manifest = read_manifest(manifest_uri)
    if "model_folder" not in manifest.facts:
        raise ConfigError(
            f"{manifest_uri} is of the stage {manifest.stage!r}, which makes no model. Give the "
            "manifest of a pretraining run."
        )
    return storage.join(manifest_uri.removesuffix(MANIFEST), manifest.facts["model_folder"])


def _read_checkpoint(uri: str) -> _Source:
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
    return _Source(uri, settings, tensors)


def _read_model_folder(folder: str) -> _Source:
    state, settings, architecture = read_model_folder(folder)
    where = storage.join(folder, WEIGHTS)
    model = empty_model(state, settings, architecture)
    names = hf_names(model, architecture)
    found = own_state(state, model, names, where, architecture)
    return _Source(folder, settings, _usable(found, names, where, architecture))


def _read_tf_release(uri: str) -> _Source:
    settings = read_tf_config(uri)
    state = tf_to_hf(read_tf_variables(uri))
    model = empty_model(state, settings)
    names = tf_names(model, uri)
    found = own_state(state, model, names, uri)
    return _Source(uri, settings, _usable(found, names, uri, "albert"))


def _usable(
    found: OwnState, names: Mapping[str, str], where: str, architecture: Architecture
) -> dict[str, Tensor]:
    """Return the tensors of ``found``, without parts that are not whole.

    Raises:
        IntegrityError: something is missing or unknown that is in the encoder.
    """
    missing = [name for name in found.missing if _part_of(names[name]) is None]
    unknown = [name for name in found.unknown if name.startswith(f"{architecture}.")]
    if missing or unknown:
        raise IntegrityError(
            f"{where} does not hold the encoder that its configuration describes: missing "
            f"{missing[:4] or 'nothing'}, unknown {unknown[:4] or 'nothing'}. Copy it again."
        )
    if found.unknown:
        log.warning("%s: left out, for this model has no place for it: %s", where, found.unknown)
    incomplete = {_part_of(names[name]) for name in found.missing}
    return {
        name: tensor for name, tensor in found.tensors.items() if _part_of(name) not in incomplete
    }


def _part_of(name: str) -> str | None:
    """Return the module in `_PARTS` that the parameter ``name`` is in, or None."""
    return next((module for module in _PARTS if name.startswith(f"{module}.")), None)


def _check_fit(source: _Source, settings: ModelSettings, vocab_size: int) -> None:
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


def _check_vocabulary(source: _Source, vocabulary: Tokenizer) -> None:
    own = source.tokenizer()
    if own is None:
        log.warning("%s has no vocabulary: whether its pieces are ours is not known", source.where)
        return
    if own.pieces != vocabulary.pieces or own.lower_case != vocabulary.lower_case:
        raise ConfigError(
            f"{source.where} was trained with another vocabulary: "
            f"{_first_difference(own, vocabulary)}. Make the examples with its vocabulary, or "
            "start from other weights."
        )


def _first_difference(there: Tokenizer, here: Tokenizer) -> str:
    for number, (theirs, ours) in enumerate(zip(there.pieces, here.pieces, strict=False)):
        if theirs != ours:
            return f"piece {number} is {theirs!r} there and {ours!r} here"
    return f"lower_case is {there.lower_case} there and {here.lower_case} here"


def _start(source: _Source, settings: ModelSettings) -> AlbertForPretraining:
    """Return a new model of the shape ``settings`` that begins with the weights of ``source``."""
    model = AlbertForPretraining(settings, source.vocab_size)
    result = model.load_state_dict(_deepened(source, settings), strict=False)
    fresh = {module for name in result.missing_keys if (module := _part_of(name))}
    log.info(
        "%d layers start from the %d of %s",
        settings.num_hidden_layers,
        source.settings.num_hidden_layers,
        source.where,
    )
    for module in sorted(fresh):
        log.warning("%s has no %s: a new one is drawn", source.where, _PARTS[module])
    return model


def _deepened(source: _Source, settings: ModelSettings) -> dict[str, Tensor]:
    """Return the state of a model of the shape ``settings``, from that of ``source``."""
    state = {name: t for name, t in source.tensors.items() if not name.startswith(_BLOCKS)}
    for kind, origins in zip(_BLOCKS, _origins(source, settings), strict=True):
        for own, other in origins.items():
            prefix = f"{kind}{other}."
            for name, tensor in source.tensors.items():
                if name.startswith(prefix):
                    state[f"{kind}{own}.{name.removeprefix(prefix)}"] = tensor
    return state


def _origins(source: _Source, settings: ModelSettings) -> tuple[dict[int, int], dict[int, int]]:
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
        other = theirs[_source_layer(layer, shared, settings) * num_blocks + inner]
        for origin, block, from_block in zip(origins, own, other, strict=True):
            if origin.setdefault(block, from_block) != from_block:
                raise ConfigError(
                    f"{source.where} does not fit the model: sharing is {shared.sharing!r} in "
                    f"{shared.num_hidden_groups} groups there and {settings.sharing!r} in "
                    f"{settings.num_hidden_groups} here, so that one block would start from "
                    "several. Share as the source does, or less."
                )
    return origins


def _source_layer(layer: int, source: ModelSettings, settings: ModelSettings) -> int:
    return layer * source.num_hidden_layers // settings.num_hidden_layers
