"""Checks that an architecture computes what this package assumes, made once with its weights."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from rlmods.errors import UserError
from rlmods.policy.output_layer import output_logits
from rlmods.policy.packing import (
    packed_states,
    padded_states,
    use_packed_attention,
    use_plain_attention,
)


@torch.no_grad()
def check_head(model: PreTrainedModel, device: torch.device) -> None:
    """Check that the model computes logits as `output_logits` does. Otherwise its
    log-probabilities would be silently wrong.

    Raises:
        UserError: they are not.
    """
    if device.type == "meta":
        return
    ids = torch.arange(4, device=device)[None] % model.config.get_text_config().vocab_size
    expected = model(input_ids=ids, use_cache=False).logits
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    actual = output_logits(model, hidden)
    # transformers rounds logits to 16 bits
    tolerance = 1e-3 if expected.dtype == torch.float32 else 2e-2
    if not torch.allclose(expected.float(), actual.float(), rtol=tolerance, atol=tolerance):
        raise UserError(
            f"policy: {type(model).__name__} transforms its logits after the output layer, which "
            "is not supported: choose another model"
        )


@torch.no_grad()
def packing_agrees(model: PreTrainedModel, device: torch.device) -> bool:
    """Return True if packed and padded rows have the same states: the architecture passes the
    packing on to its attention, and tokens see each other in no other way."""
    if device.type == "meta":
        return False
    size = model.config.get_text_config().vocab_size
    tokens = torch.tensor([[3, 1, 4, 1, 5], [3, 1, 4, 2, 0], [2, 7, 1, 8, 2]], device=device) % size
    scored = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 1, 0], [0, 0, 1, 0, 1]], device=device)
    mask = scored.bool()
    with torch.autocast(device.type, enabled=False):
        try:
            states = packed_states(model.base_model, tokens, mask)
        except TypeError:  # forward without further arguments
            return False
        padded = padded_states(model.base_model, tokens, mask).hidden
    tolerance = 1e-3 if padded.dtype == torch.float32 else 3e-2
    packed = states.by_token(states.hidden).float()
    padded = padded.float()
    limit = tolerance * float(padded.abs().max())
    return torch.allclose(packed, padded, rtol=tolerance, atol=limit)


def enable_packing(model: PreTrainedModel, device: torch.device) -> bool:
    """Let a model of transformers accept `packing`, and return True if the states of packed rows
    are then those of padded ones. Otherwise leave it with its own attention. `device`: where its
    forward runs."""
    if not use_packed_attention(model):
        return False
    if packing_agrees(model, device):
        return True
    use_plain_attention(model)
    return False
