"""A value head on the policy's trunk."""

import torch

from rlmods.advantage import GAE
from rlmods.critic import Shared
from tests.support.tiny_setup import collected, gradients, learner, policy


def test_values_come_from_the_hidden_state_before_each_token():
    lm, rows = policy(), collected(learner())
    head = Shared()(lm)
    torch.manual_seed(0)
    torch.nn.init.normal_(head.linear.weight)
    values = lm(rows.tokens, rows.mask, value_head=head).values
    hidden = lm.model.base_model(input_ids=rows.tokens, use_cache=False).last_hidden_state
    expected = torch.nn.functional.pad(head(hidden[:, :-1]).squeeze(-1), (1, 0))
    torch.testing.assert_close(values, torch.where(rows.mask, expected, 0.0))
    assert values[rows.mask].std() > 0.01


def test_values_start_at_zero():
    assert (Shared()(policy()).linear(torch.randn(5, policy().model.config.hidden_size)) == 0).all()


def test_value_loss_also_trains_the_trunk():
    trunk_gradients = []
    for coefficient in (1e-9, 1.0):
        module = learner(advantage=GAE(), critic=Shared(coefficient=coefficient))
        torch.nn.init.ones_(module.critic.linear.weight)
        weight = module.policy.model.model.layers[0].mlp.up_proj.weight
        weight.register_post_accumulate_grad_hook(lambda x: trunk_gradients.append(x.grad.clone()))
        gradients(module, collected(module))
    assert (trunk_gradients[0] - trunk_gradients[1]).norm() > 1e-4
