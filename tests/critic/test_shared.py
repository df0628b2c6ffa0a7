"""A value head on the policy's trunk."""

import torch

from rlmods.advantage import GAE
from rlmods.critic import Shared
from tests.support.tiny_setup import collected, gradients, learner, policy


def test_reads_the_hidden_state_before_each_token():
    made, rows = policy(), collected(learner())
    head = Shared()(made)
    torch.manual_seed(0)
    torch.nn.init.normal_(head.linear.weight)
    values = made(rows.tokens, rows.mask, value_head=head).values
    hidden = made.model.base_model(input_ids=rows.tokens, use_cache=False).last_hidden_state
    want = torch.nn.functional.pad(head(hidden[:, :-1]).squeeze(-1), (1, 0))
    torch.testing.assert_close(values, torch.where(rows.mask, want, 0.0))
    assert values[rows.mask].std() > 0.01


def test_its_loss_also_moves_the_trunk():
    found = []
    for coefficient in (1e-9, 1.0):
        made = learner(advantage=GAE(), critic=Shared(coefficient=coefficient))
        torch.nn.init.ones_(made.critic.linear.weight)
        gradients(made, collected(made))
        found.append(made.policy.model.model.layers[0].mlp.up_proj.weight.grad.clone())
    assert (found[0] - found[1]).norm() > 1e-4
