"""Weights to start from: a trained model of any source, in the shape of a new one.

The source is recognised by the files at its URI:

* a pretraining run: its folder or its ``manifest.json``, for the model that it ended with;
* a checkpoint of a run: ``checkpoints/step-00125000``;
* a model folder in Hugging Face's layout, ALBERT or BERT, ours or theirs;
* a release of google-research/albert: its folder, or the prefix of a checkpoint in it. The folder
  has ``model.ckpt-best.index`` and ``.data-00000-of-00001``, ``albert_config.json`` and
  ``30k-clean.model``. Reading the first two needs TensorFlow, which this project does not install.

A source with fewer layers can initialise a deeper model: layer i takes the weights of layer
``i * L_source // L``, so that each layer of the source is followed by its own copies. Where all
layers share, these are the same weights. The paper started each deeper network of Table 11 from a
shallower one, and a 12-layer ALBERT-xxlarge from 6 layers (footnote 5); it gives no mapping for
layers that do not share, and this one keeps their order.

A source may lack the pooler or a head, as published checkpoints lack the sentence order head. A
new one is drawn then, and logged.

Source: Lan et al. 2020, Table 11 and footnote 5; `modeling.py` of google-research/albert.
"""

import hashlib
import importlib
import logging
import re
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_core.checkpoint import RECORD, load_checkpoint
from albert_core.config import ModelSettings
from albert_core.conversion import huggingface, model_files
from albert_core.model.albert import AlbertForPretraining, block_route, groups_of
from albert_core.stage import errors, results, storage
from albert_core.stage.lineage import manifest_of, place_in
from albert_core.stage.manifest import MANIFEST, read_manifest
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer

_BLOCKS = ("encoder.attentions.", "encoder.feed_forwards.")
_WORDS = "encoder.embeddings.word.weight"
_TF_CONFIG, _INDEX = "albert_config.json", ".index"
_NO_WEIGHT = re.compile(r"(?:.*/)?(?:global_step|(?:adam|lamb)_[mv])(?::0)?")
"""Variables of a release that belong to the optimizer."""
_LEAVES = {
    "/kernel": ".weight",
    "/gamma": ".weight",
    "/beta": ".bias",
    "/output_weights": ".weight",
    "/output_bias": ".bias",
    "_embeddings": "_embeddings.weight",
}
"""Ending of a release's variable -> ending of the parameter in torch."""

log = logging.getLogger(__name__)


def fitting_source(uri: str, settings: ModelSettings, vocabulary: Tokenizer | None) -> "Source":
    """Return the trained model at ``uri``, from which one of the shape ``settings`` can start.

    Args:
        uri: the source; see the module.
        settings: the model's shape. It may have more layers than the source, share less and have
            other dropouts.
        vocabulary: vocabulary of the new model. If the source has its own, both must have the same
            pieces. None if it is not known yet: only the shape is compared.

    Raises:
        ConfigError: the source does not fit; the message names each difference.
        AlbertError: see `read_source`.
    """
    source = read_source(uri)
    _check_fit(source, settings, vocabulary.vocab_size if vocabulary else source.vocab_size)
    _origins(source, settings)
    if vocabulary:
        _check_vocabulary(source, vocabulary)
    return source


def convert_model(source: str, folder: str) -> None:
    """Write a model and its vocabulary to a model folder, which every stage can read.

    A pooler or sentence order head that the source lacks is drawn, always the same. A masked LM
    head that it lacks is left out: minimal pairs would be scored with it.

    Args:
        source: URI of any of the kinds above that has its vocabulary beside it.
        folder: URI of the model folder.

    Raises:
        ConfigError: the folder is part of a result, which it would damage.
        AlbertError: see `read_source` and `save_model_folder`; or there is no vocabulary.
    """
    if place := place_in(storage.absolute(folder)):
        raise errors.ConfigError(
            f"{folder} is in the result {place}, which must not change. Give a folder elsewhere."
        )
    torch.manual_seed(derive_seed(0, "convert-model"))
    found = read_source(source)
    tokenizer = found.tokenizer()
    if tokenizer is None:
        raise errors.IntegrityError(
            f"{found.where} has no SentencePiece vocabulary, so no text can be read. Give a model "
            "folder with spiece.model and tokenizer_config.json, a run, or a checkpoint of a run."
        )
    huggingface.check_vocabulary(found.vocab_size, tokenizer, f"the model in {found.where}")
    has_masked_lm = any(name.startswith("masked_lm.") for name in found.tensors)
    model = found.start(found.settings, () if has_masked_lm else ("masked_lm",))
    huggingface.save_model_folder(model, tokenizer, folder, has_masked_lm)
    if not has_masked_lm:
        log.warning("%s is written without a masked LM head, as no trained one is known", folder)


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

    def digest(self) -> str:
        """Return the digest of the weights, without what is drawn for parts that are missing."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def tokenizer(self) -> Tokenizer | None:
        """Return the vocabulary beside the weights, or that of a checkpoint's run, or None."""
        if _is_tf_release(self.where):
            return read_tf_tokenizer(self.where)
        if storage.exists(storage.join(self.where, SPIECE_MODEL)):
            return huggingface.read_tokenizer(self.where)
        if run := manifest_of(self.where):
            examples = read_manifest(run).input_manifests.get(results.EXAMPLES)
            return Tokenizer.of_examples(read_manifest(examples)) if examples else None
        return None

    def start(self, settings: ModelSettings, unused: Collection[str] = ()) -> AlbertForPretraining:
        """Return a new model of the shape ``settings`` that begins with these weights, on the CPU.

        A missing part is drawn from torch's default generator: seed it before. That is logged,
        except of the ``unused`` parts.

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
            if part not in unused and any(name.startswith(f"{part}.") for name in missing):
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
        return _read_model_folder(results.model_folder_of(manifest))
    if storage.exists(storage.join(uri, RECORD)):
        return _read_checkpoint(uri)
    if storage.exists(storage.join(uri, model_files.CONFIG)):
        return _read_model_folder(uri)
    if _is_tf_release(uri):
        settings = read_tf_config(uri)
        return Source(uri, settings, from_tf_variables(_read_tf_variables(uri), settings, uri))
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
    there, here = (
        shape.model_dump(include=set(ModelSettings.OF_WEIGHTS)) | {"vocab_size": size}
        for shape, size in ((source.settings, source.vocab_size), (settings, vocab_size))
    )
    found = differences(there, here)
    num_theirs, num_ours = source.settings.num_hidden_layers, settings.num_hidden_layers
    if num_theirs > num_ours:
        found.append(f"num_hidden_layers is {num_theirs} there and only {num_ours} here")
    if found:
        raise errors.ConfigError(
            f"{source.where} does not fit the model: {'; '.join(found)}. Change the model's "
            "settings, or start from other weights."
        )


def _check_vocabulary(source: Source, vocabulary: Tokenizer) -> None:
    own = source.tokenizer()
    if own is None:
        log.warning("%s has no vocabulary: its pieces are assumed to be ours", source.where)
        return
    there, here = (
        {f"piece {number}": piece for number, piece in enumerate(each.pieces)}
        | {"lower_case": each.lower_case, "keep_accents": each.keep_accents}
        for each in (own, vocabulary)
    )
    if found := differences(there, here):
        raise errors.ConfigError(
            f"{source.where} was trained with another vocabulary: {found[0]}. Make the "
            "examples with its vocabulary, or start from other weights."
        )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each name that has not the same value in both."""
    return [
        f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
    ]


def _origins(source: Source, settings: ModelSettings) -> dict[str, str]:
    """Return the block of ``source`` that each block of a model of the shape ``settings`` is from.

    Both are beginnings of the parameters' names.

    Raises:
        ConfigError: a block would start from several.
    """
    shape, num_inner = source.settings, settings.inner_group_num
    theirs, origins = block_route(shape), dict[str, str]()
    for place, own in enumerate(block_route(settings)):
        layer, inner = divmod(place, num_inner)
        layer_there = layer * shape.num_hidden_layers // settings.num_hidden_layers
        there = theirs[layer_there * num_inner + inner]
        for kind, number, number_there in zip(_BLOCKS, own, there, strict=True):
            origin = f"{kind}{number_there}."
            if origins.setdefault(f"{kind}{number}.", origin) != origin:
                raise errors.ConfigError(
                    f"{source.where} does not fit the model: sharing is {shape.sharing!r} in "
                    f"{shape.num_hidden_groups} groups there and {settings.sharing!r} in "
                    f"{settings.num_hidden_groups} here, so that one block would start from "
                    "several. Share as the source does, or less."
                )
    return origins


def _deepened(source: Source, settings: ModelSettings) -> dict[str, Tensor]:
    """Return the state of a model of the shape ``settings``, from that of ``source``.

    Raises:
        ConfigError: a block would start from several.
    """
    state = {name: t for name, t in source.tensors.items() if not name.startswith(_BLOCKS)}
    for block, origin in _origins(source, settings).items():
        for name, tensor in source.tensors.items():
            if name.startswith(origin):
                state[block + name.removeprefix(origin)] = tensor
    return state


# Releases of google-research/albert


def _is_tf_release(uri: str) -> bool:
    """Return whether ``uri`` is the folder of a release, or the prefix of a checkpoint."""
    return storage.exists(uri + _INDEX) or any(
        name.endswith((_TF_CONFIG, _INDEX)) for name in storage.list_names(uri)
    )


def read_tf_config(uri: str) -> ModelSettings:
    """Return the shape of the model of a release.

    The reference's "gelu" always means the tanh approximation, which is "gelu_new" here. Keys
    that the reference itself does not read are ignored.

    Args:
        uri: the release's folder, or the prefix of one checkpoint in it (``.../model.ckpt-best``).

    Raises:
        ConfigError: this project does not have such a model.
        IntegrityError: albert_config.json is missing or damaged.
    """
    where = storage.join(_folder(uri), _TF_CONFIG)
    if not storage.exists(where):
        raise errors.IntegrityError(
            f"{where} is missing: it says which shape the checkpoint has. Copy it from the "
            "release's archive."
        )
    config = huggingface.DEFAULTS["albert"] | huggingface.read_object(_folder(uri), _TF_CONFIG)
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


def _read_tf_variables(uri: str) -> dict[str, NDArray[np.float32]]:
    """Return the weights of a release by the variables' names.

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
    with tempfile.TemporaryDirectory() as scratch:
        path = storage.local_path(prefix)
        if path is None:
            fs, remote = storage.filesystem(prefix)
            fs.get(f"{remote}.*", f"{scratch}/")
            path = Path(scratch, prefix.rpartition("/")[2])
        try:
            reader = tensorflow.train.load_checkpoint(str(path))
            names = reader.get_variable_to_shape_map()
            return {n: reader.get_tensor(n) for n in names if not _NO_WEIGHT.fullmatch(n)}
        except tensorflow.errors.OpError as error:
            raise errors.IntegrityError(
                f"{prefix}: TensorFlow cannot read it ({error.message}). Fetch it again."
            ) from error


def from_tf_variables(
    variables: Mapping[str, NDArray[np.float32]], settings: ModelSettings, where: str
) -> dict[str, Tensor]:
    """Return the weights of a checkpoint of google-research/albert, as `from_hf_state` does.

    Args:
        variables: arrays by variable name; the optimizer's are left out.
        settings: the shape of the model.
        where: the file the variables came from, for messages.

    Raises:
        ConfigError: the reference divides the layers into groups in another way.
        IntegrityError: a variable of the encoder is missing or unknown, or one has another shape.
    """
    num_layers, num_groups = settings.num_hidden_layers, settings.num_hidden_groups
    groups = [int(layer / num_layers * num_groups) for layer in range(num_layers)]
    if groups != groups_of(settings):
        raise errors.ConfigError(
            f"{where}: by a rounding error the reference divides {num_layers} layers into "
            f"{num_groups} groups unevenly: {groups}. This project has no such model."
        )
    state = {}
    for variable, value in variables.items():
        if not _NO_WEIGHT.fullmatch(variable):
            name = variable.removeprefix("module/").removesuffix(":0")
            tensor = torch.tensor(value.T if name.endswith("/kernel") else value)
            state[huggingface.renamed(name, _LEAVES).replace("/", ".")] = tensor
    return huggingface.from_hf_state(state, settings, where, "release")


def _folder(uri: str) -> str:
    return uri.rpartition("/")[0] or "." if storage.exists(uri + _INDEX) else uri


def _prefix(uri: str) -> str:
    """Return the prefix of the checkpoint's files: ``uri``, or the only one in that folder."""
    if storage.exists(uri + _INDEX):
        return uri
    names = storage.list_names(uri)
    found = [name.removesuffix(_INDEX) for name in names if name.endswith(_INDEX)]
    if len(found) != 1:
        raise errors.SourceError(
            f"{uri} has the TF checkpoints {found or 'none'}, expected one. Give the prefix of "
            "one: the path of its .index file without .index."
        )
    return storage.join(uri, found[0])
