"""A short hash of a network's weights."""

from __future__ import annotations

import hashlib

from torch import nn

from rlmods.distributed.deferred import first_values

NUM_VALUES = 256
"""Values of each parameter that are part of the hash."""


def fingerprint(network: nn.Module) -> str:
    """Return a hash of the first values of every parameter. Training changes all parameters, so it
    also changes the hash.

    Empty on the meta device, where parameters have no values, unless these are in files that have
    not been read (`defer_loading`)."""
    digest = hashlib.blake2b(digest_size=8)
    stored = first_values(network, NUM_VALUES)
    for parameter in network.parameters():
        if id(parameter) in stored:
            values = stored[id(parameter)]
        elif parameter.is_meta:
            return ""
        else:
            values = parameter.detach().flatten()[:NUM_VALUES]
        digest.update(values.float().cpu().numpy().tobytes())
    return digest.hexdigest()
