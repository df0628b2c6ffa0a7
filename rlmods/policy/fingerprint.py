"""A short hash of a network's weights."""

from __future__ import annotations

import hashlib

from torch import nn


def fingerprint(network: nn.Module) -> str:
    """Return a hash of the first 256 values of every parameter. Training changes all parameters, so it also changes the hash.

    Empty on the meta device, where parameters have no values."""
    digest = hashlib.blake2b(digest_size=8)
    for parameter in network.parameters():
        if parameter.is_meta:
            return ""
        digest.update(parameter.detach().flatten()[:256].float().cpu().numpy().tobytes())
    return digest.hexdigest()
