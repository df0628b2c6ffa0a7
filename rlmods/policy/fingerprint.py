"""Telling weights from weights."""

from __future__ import annotations

import hashlib

from torch import nn


def fingerprint(network: nn.Module) -> str:
    """Tells the weights of one network from another's: the start of every parameter goes into it, and training changes all of those.

    On the meta device there are none, and nothing to tell."""
    digest = hashlib.blake2b(digest_size=8)
    for parameter in network.parameters():
        if parameter.is_meta:
            return ""
        digest.update(parameter.detach().flatten()[:256].float().cpu().numpy().tobytes())
    return digest.hexdigest()
