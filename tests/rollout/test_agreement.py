"""Tolerance of the comparison of sampling and training."""

import pytest
import torch
from torch import nn

from rlmods.errors import UserError
from rlmods.policy import Tiny
from rlmods.rollout import agreement
from rlmods.rollout.local import decode


class Int8Params(nn.Parameter):
    """Has the class name of bitsandbytes' parameter."""


def test_products_in_8_bits_may_differ_more(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
    monkeypatch.setattr(agreement, "sampler_gap", lambda *args: 2.2e-3)
    with pytest.raises(UserError, match="other log-probabilities with a cache"):
        agreement.check_agreement(policy, decode)
    layer = policy.model.model.layers[0].mlp.up_proj
    layer.weight = Int8Params(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    agreement.check_agreement(policy, decode)
    monkeypatch.setattr(agreement, "sampler_gap", lambda *args: 0.3)
    with pytest.raises(UserError, match="other log-probabilities with a cache"):
        agreement.check_agreement(policy, decode)
