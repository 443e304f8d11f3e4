"""A release of google-research/albert with random weights, and a TensorFlow that can read it.

The names and shapes are written down from a published checkpoint, not derived from the code under
test.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.albert_core.tiny_vocab import tiny_vocab

V, E, H, F = 200, 8, 16, 24
TF_CONFIG_VALUES: dict[str, Any] = {
    "attention_probs_dropout_prob": 0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0,
    "embedding_size": E,
    "hidden_size": H,
    "initializer_range": 0.02,
    "intermediate_size": F,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "num_hidden_groups": 1,
    "net_structure_type": 0,
    "layers_to_keep": [],
    "gap_size": 0,
    "num_memory_blocks": 0,
    "inner_group_num": 1,
    "down_scale_factor": 1,
    "type_vocab_size": 2,
    "vocab_size": V,
}
DATA = ".data-00000-of-00001"


def tf_variables(
    num_groups: int = 1, inner_group_num: int = 1, embedding_size: int = E
) -> dict[str, NDArray[np.float32]]:
    """Return random weights, with what an optimizer adds to them; no projection where E = H."""
    width = embedding_size
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (V, width),
        "bert/embeddings/token_type_embeddings": (2, width),
        "bert/embeddings/position_embeddings": (16, width),
        **_norm("bert/embeddings/LayerNorm", width),
        **(_dense("bert/encoder/embedding_hidden_mapping_in", width, H) if width != H else {}),
        **_dense("bert/pooler/dense", H, H),
        **_dense("cls/predictions/transform/dense", H, width),
        **_norm("cls/predictions/transform/LayerNorm", width),
        "cls/predictions/output_bias": (V,),
        "cls/seq_relationship/output_weights": (2, H),
        "cls/seq_relationship/output_bias": (2,),
    }
    for group in range(num_groups):
        for inner in range(inner_group_num):
            block = f"bert/encoder/transformer/group_{group}/inner_group_{inner}"
            for name in ("self/query", "self/key", "self/value", "output/dense"):
                shapes |= _dense(f"{block}/attention_1/{name}", H, H)
            shapes |= _dense(f"{block}/ffn_1/intermediate/dense", H, F)
            shapes |= _dense(f"{block}/ffn_1/intermediate/output/dense", F, H)
            shapes |= _norm(f"{block}/LayerNorm", H) | _norm(f"{block}/LayerNorm_1", H)
    draw = np.random.default_rng(5)
    weights = {n: draw.normal(0, 0.2, shape).astype(np.float32) for n, shape in shapes.items()}
    slots = {f"{n}/{slot}": w * 0 for n, w in weights.items() for slot in ("adam_m", "adam_v")}
    return weights | slots | {"global_step": np.array(125_000, np.int64)}


def write_tf_release(folder: Path, variables: Mapping[str, NDArray[Any]], **changes: Any) -> None:
    """Write a release to ``folder``, whose checkpoint only `fake_tensorflow` can read."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "albert_config.json").write_text(json.dumps(TF_CONFIG_VALUES | changes))
    (folder / "30k-clean.model").write_bytes(tiny_vocab().model)
    save_variables(folder / f"model.ckpt-best{DATA}", variables)
    (folder / "model.ckpt-best.index").write_bytes(b"")
    (folder / "model.ckpt-best.meta").write_bytes(b"")


def save_variables(path: Path, variables: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to ``path`` as numpy's archive, whatever it is called."""
    arrays: dict[str, Any] = dict(variables)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _dense(name: str, width: int, to: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (width, to), f"{name}/bias": (to,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}
