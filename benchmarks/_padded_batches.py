"""Batches as Hugging Face's classes take them: each sequence padded to the longest."""

import numpy as np
import torch

from albert_core.training.order import padded_length
from albert_core.training.shards import Rows

_IGNORED = -100


def padded(rows: Rows) -> dict[str, torch.Tensor]:
    """Return what the peer takes for ``rows``: as long as the longest of them, in eights."""
    width = padded_length(int(rows.lengths.max()))
    is_real = np.arange(width) < rows.lengths[:, None]
    input_ids = np.zeros(is_real.shape, np.int64)
    input_ids[is_real] = rows.input_ids
    labels = np.full(is_real.shape, _IGNORED)
    of_row = np.repeat(np.arange(len(rows)), rows.num_predictions)
    labels[of_row, rows.positions] = rows.labels
    in_b = (np.arange(width) >= rows.segment_b_starts[:, None]) & is_real
    return {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.from_numpy(is_real.astype(np.int64)),
        "token_type_ids": torch.from_numpy(in_b.astype(np.int64)),
        "labels": torch.from_numpy(labels),
        "sentence_order_label": torch.from_numpy(rows.sentence_order_labels.astype(np.int64)),
    }
