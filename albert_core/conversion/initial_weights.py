"""Weights to start from: a trained model of any source, in the shape of a new one.

The source is recognised by what is at its URI:

* a pretraining run: its folder or its ``manifest.json``; the model it ended with is taken;
* a checkpoint of a run: ``checkpoints/step-00125000``;
* a model folder in Hugging Face's layout, ALBERT or BERT, ours or theirs;
* a release of google-research/albert: its folder, or the prefix of a checkpoint in it. The folder
  has ``model.ckpt-best.index`` and ``.data-00000-of-00001``, ``albert_config.json`` and
  ``30k-clean.model``. Reading the first two takes TensorFlow, which is not installed with this
  project.

A source with fewer layers can initialise a deeper model: layer i takes the weights of layer
``i * L_source // L``, so that each layer of the source is followed by its own copies. Where all
layers share, these are the same weights. The paper started each deeper network of Table 11 from a
shallower one, and a 12-layer ALBERT-xxlarge from 6 layers (footnote 5); it gives no mapping for
layers that do not share, and this one keeps their order.

A source may lack the pooler or a head, as published checkpoints lack the sentence order head. A
new one is drawn then, and logged.

Source: Lan et al. 2020, Table 11 and footnote 5; `modeling.py` of google-research/albert.
"""

import importlib
import json
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_core.checkpoint import RECORD, load_checkpoint
from albert_core.config import ModelSettings
from albert_core.conversion import huggingface, model_files
from albert_core.model.albert import AlbertForPretraining, block_route
from albert_core.stage import errors, lineage, storage
from albert_core.stage.manifest import MANIFEST
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer

_MUST_BE_EQUAL = (
    "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size", "inner_group_num",
    "hidden_act", "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
_BLOCKS = ("encoder.attentions.", "encoder.feed_forwards.")
_WORDS = "encoder.embeddings.word.weight"

TF_CONFIG, INDEX = "albert_config.json", ".index"

_SLOTS = ("adam_m", "adam_v", "lamb_m", "lamb_v")
_TENSORS = {
    "bert/embeddings/word_embeddings": "albert.embeddings.word_embeddings.weight",
    "bert/embeddings/token_type_embeddings": "albert.embeddings.token_type_embeddings.weight",
    "bert/embeddings/position_embeddings": "albert.embeddings.position_embeddings.weight",
    "cls/predictions/output_bias": "predictions.bias",
    "cls/seq_relationship/output_weights": "sop_classifier.classifier.weight",
    "cls/seq_relationship/output_bias": "sop_classifier.classifier.bias",
}
_MODULES = {
    "bert/embeddings/LayerNorm": "albert.embeddings.LayerNorm",
    "bert/encoder/embedding_hidden_mapping_in": huggingface.PROJECTION,
    "bert/pooler/dense": "albert.pooler",
    "cls/predictions/transform/dense": "predictions.dense",
    "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
}
_BLOCK = re.compile(r"bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/(.+)")
_BLOCK_MODULES = {
    "attention_1/self/query": "attention.query",
    "attention_1/self/key": "attention.key",
    "attention_1/self/value": "attention.value",
    "attention_1/output/dense": "attention.dense",
    "LayerNorm": "attention.LayerNorm",
    "ffn_1/intermediate/dense": "ffn",
    "ffn_1/intermediate/output/dense": "ffn_output",
    "LayerNorm_1": "full_layer_layer_norm",
}
_LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}

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
        raise errors.IntegrityError(
            f"{found.where} has no SentencePiece vocabulary, so no text can be read. Give the "
            "model folder of a finished run, or put the model's spiece.model there."
        )
    huggingface.check_vocabulary(found.vocab_size, tokenizer, f"the model in {found.where}")
    huggingface.save_model_folder(found.start(found.settings), tokenizer, folder)


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
            return huggingface.read_tokenizer(self.where)
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
        for part, title in huggingface.OPTIONAL_PARTS.items():
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
        return _read_model_folder(lineage.model_folder_of(manifest))
    if storage.exists(storage.join(uri, RECORD)):
        return _read_checkpoint(uri)
    if storage.exists(storage.join(uri, model_files.CONFIG)):
        return _read_model_folder(uri)
    if is_tf_release(uri):
        settings = read_tf_config(uri)
        return Source(uri, settings, from_tf_variables(read_tf_variables(uri), settings, uri))
    raise errors.SourceError(
        f"{uri} is nothing to start from: it has no {MANIFEST} (a finished run), no {RECORD} (a "
        f"checkpoint), no {model_files.CONFIG} (a model folder) and no .index file (a TF release). "
        "Give the URI of one of these."
    )


def _read_model_folder(folder: str) -> Source:
    state, settings, architecture = huggingface.read_model_folder(folder)
    where = storage.join(folder, model_files.WEIGHTS)
    return Source(folder, settings, huggingface.from_hf_state(state, settings, where, architecture))


def _read_checkpoint(uri: str) -> Source:
    state, record = load_checkpoint(uri)
    try:
        settings = ModelSettings.read(record["settings"]["model"], f"{uri}, settings of the run")
        tensors = state["model"]
        with torch.device("meta"):
            model = AlbertForPretraining(settings, len(tensors[_WORDS]))
        model.load_state_dict(tensors, assign=True)
    except (KeyError, RuntimeError) as error:
        raise errors.IntegrityError(
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
        raise errors.ConfigError(
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
    for name in ("lower_case", "keep_accents"):
        there, here = getattr(own, name), getattr(vocabulary, name)
        if there != here:
            differences.append(f"{name} is {there} there and {here} here")
    if differences:
        raise errors.ConfigError(
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
                raise errors.ConfigError(
                    f"{source.where} does not fit the model: sharing is {shared.sharing!r} in "
                    f"{shared.num_hidden_groups} groups there and {settings.sharing!r} in "
                    f"{settings.num_hidden_groups} here, so that one block would start from "
                    "several. Share as the source does, or less."
                )
    return origins


# Releases of google-research/albert


def is_tf_release(uri: str) -> bool:
    """Return whether ``uri`` is the folder of a release, or the prefix of a checkpoint."""
    return storage.exists(uri + INDEX) or any(
        name == TF_CONFIG or name.endswith(INDEX) for name in storage.list_names(uri)
    )


def read_tf_config(uri: str) -> ModelSettings:
    """Return the shape of the model of a release.

    The reference's "gelu" always means the tanh approximation, which is "gelu_new" here. Keys
    that the reference itself does not read are ignored.

    Args:
        uri: the release's folder, or the prefix of one checkpoint in it (``.../model.ckpt-best``).

    Raises:
        ConfigError: this project does not have such a model.
        IntegrityError: albert_config.json is missing.
    """
    where = storage.join(_folder(uri), TF_CONFIG)
    if not storage.exists(where):
        raise errors.IntegrityError(
            f"{where} is missing: it says which shape the checkpoint has. Copy it from the "
            "release's archive."
        )
    config = huggingface.ALBERT_DEFAULTS | json.loads(storage.read_bytes(where))
    fields = {name: config[name] for name in ModelSettings.model_fields if name in config}
    if fields.get("hidden_act") == "gelu":
        fields["hidden_act"] = "gelu_new"
    return ModelSettings.read(fields, where)


def read_tf_tokenizer(uri: str) -> Tokenizer:
    """Return the vocabulary of a release: the one SentencePiece model in its folder.

    It lower-cases texts, as the English releases do, and splits commas off digits, as the
    reference's `tokenization.py` does.

    Args:
        uri: see `read_tf_config`.

    Raises:
        IntegrityError: there is no SentencePiece model, or several.
    """
    folder = _folder(uri)
    models = [name for name in storage.list_names(folder) if name.endswith(".model")]
    if len(models) != 1:
        raise errors.IntegrityError(
            f"{folder} has the SentencePiece models {models or 'none'}, expected one, as in "
            "30k-clean.model. Put the release's vocabulary there, and no other."
        )
    return Tokenizer(storage.read_bytes(storage.join(folder, models[0])), True, True)


def read_tf_variables(uri: str) -> dict[str, NDArray[np.float32]]:
    """Return the weights of a release by the variables' names.

    The optimizer's slots and the global step are not read.

    Args:
        uri: see `read_tf_config`.

    Raises:
        ConfigError: TensorFlow is not installed.
        IntegrityError: a file is damaged.
        SourceError: the folder has no checkpoint, or several.
    """
    prefix = _prefix(uri)
    try:
        tensorflow: Any = importlib.import_module("tensorflow")
    except ImportError as error:
        raise errors.ConfigError(
            f"{prefix} is a checkpoint of TensorFlow, which is not installed. Run "
            "`pip install tensorflow` (tensorflow-cpu will do) in this environment to read it."
        ) from error
    with _local_files(prefix) as path:
        try:
            reader = tensorflow.train.load_checkpoint(path)
            names = filter(_is_weight, reader.get_variable_to_shape_map())
            return {name: reader.get_tensor(name) for name in names}
        except tensorflow.errors.OpError as error:
            raise errors.IntegrityError(
                f"{prefix}: TensorFlow cannot read it ({error.message}). Fetch it again."
            ) from error


def from_tf_variables(
    variables: Mapping[str, NDArray[np.float32]], settings: ModelSettings, where: str
) -> dict[str, Tensor]:
    """Return the weights of a checkpoint of google-research/albert, as `from_hf_state` does.

    Args:
        variables: arrays by variable name; the global step and the optimizer's may be among them.
        settings: the shape of the model.
        where: the file the variables came from, for messages.

    Raises:
        ConfigError: the reference divides the layers into groups in another way.
        IntegrityError: a variable of the encoder is missing, or one is unknown or of another
            shape.
    """
    num_layers, num_groups = settings.num_hidden_layers, settings.num_hidden_groups
    groups = [int(layer / num_layers * num_groups) for layer in range(num_layers)]
    if groups != [layer * num_groups // num_layers for layer in range(num_layers)]:
        raise errors.ConfigError(
            f"{where}: by a rounding error the reference divides {num_layers} layers into "
            f"{num_groups} groups unevenly: {groups}. This project has no such model."
        )
    return huggingface.from_hf_state(tf_to_hf(variables), settings, where, "albert", groups)


def tf_to_hf(variables: Mapping[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    """Return variables of google-research/albert as tensors of `AlbertForPreTraining`.

    Raises:
        IntegrityError: a variable is unknown.
    """
    weights = {_bare(name): value for name, value in variables.items() if _is_weight(name)}
    return {
        _hf_name(name): torch.tensor(value.T if name.endswith("/kernel") else value)
        for name, value in weights.items()
    }


def _bare(variable: str) -> str:
    return variable.removeprefix("module/").removesuffix(":0")


def _is_weight(variable: str) -> bool:
    name = _bare(variable)
    return name != "global_step" and not name.endswith(_SLOTS)


def _hf_name(name: str) -> str:
    if name in _TENSORS:
        return _TENSORS[name]
    module, _, leaf = name.rpartition("/")
    hf_module = _MODULES.get(module)
    if block := _BLOCK.fullmatch(module):
        group, inner, part = block.groups()
        prefix = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
        hf_module = f"{prefix}.{_BLOCK_MODULES[part]}" if part in _BLOCK_MODULES else None
    if hf_module is None or leaf not in _LEAVES:
        raise errors.IntegrityError(
            f"the TF checkpoint has the variable {name}, which is none of ALBERT's pretraining "
            "model. Leave out the variables of fine-tuning heads."
        )
    return f"{hf_module}.{_LEAVES[leaf]}"


def _folder(uri: str) -> str:
    return uri.rpartition("/")[0] or "." if storage.exists(uri + INDEX) else uri


def _prefix(uri: str) -> str:
    """Return the prefix of the checkpoint's files: ``uri``, or the only one in that folder."""
    if storage.exists(uri + INDEX):
        return uri
    found = [name.removesuffix(INDEX) for name in storage.list_names(uri) if name.endswith(INDEX)]
    if len(found) != 1:
        raise errors.SourceError(
            f"{uri} has the TF checkpoints {found or 'none'}, expected one. Give the prefix of "
            "one: the path of its .index file without .index."
        )
    return storage.join(uri, found[0])


@contextmanager
def _local_files(prefix: str) -> Iterator[str]:
    """Give ``prefix`` as a local path; files elsewhere are copied here for as long as needed."""
    path = storage.local_path(prefix)
    if path is not None:
        yield str(path)
        return
    fs, remote = storage.filesystem(prefix)
    with tempfile.TemporaryDirectory() as here:
        fs.get(f"{remote}.*", f"{here}/")
        yield str(Path(here, prefix.rpartition("/")[2]))
