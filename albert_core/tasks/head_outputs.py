"""What a head gives for the units of a split (see `tasks.problem`), batch by batch."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from albert_core.model import AlbertModel
from albert_core.tasks.problem import Head, Inputs, Ints
from albert_core.tasks.sequences import SequenceBatch, batches_by_length


def unit_lengths(inputs: Inputs) -> Ints:
    """Return the pieces, (U,), of each unit's sequences together."""
    lengths: Ints = inputs.sequences.lengths.reshape(inputs.num_units, -1).sum(axis=1)
    return lengths


def batch_of_units(inputs: Inputs, units: Ints, device: torch.device) -> SequenceBatch:
    """Return the sequences of these units as a batch on ``device``."""
    each = inputs.sequences_per_unit
    rows = (units[:, None] * each + np.arange(each)).ravel()
    return inputs.sequences.batch(rows, device)


@torch.no_grad()
def outputs_of(
    encoder: AlbertModel,
    head: Head,
    inputs: Inputs,
    device: torch.device,
    micro_batch_pieces: int,
) -> dict[str, NDArray[Any]]:
    """Return what the head gives for each of the U units, in their order.

    Args:
        encoder: on ``device``, in evaluation mode, as is the head.
        head: of the task.
        inputs: at least one unit.
        device: where to compute.
        micro_batch_pieces: of one forward pass; units of similar length go together.
    """
    batches = batches_by_length(unit_lengths(inputs), micro_batch_pieces)
    parts = []
    for units in batches:
        outputs = head.outputs(encoder, batch_of_units(inputs, units, device))
        parts.append({name: values.cpu().numpy() for name, values in outputs.items()})
    order = np.argsort(np.concatenate(batches), kind="stable")
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
