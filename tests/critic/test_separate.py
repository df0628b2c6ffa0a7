"""A value network of its own: what it reads, where it starts."""

import pytest
import torch

from rlmods.critic import Separate
from rlmods.policy import ScalarModel, Tiny
from rlmods.types import UserError
from tests.support.tiny_setup import collected, learner, policy


def random_head(network):
    torch.manual_seed(0)
    torch.nn.init.normal_(network.scalar.model.score.weight)
    return network


class TestWhatItReads:
    def test_column_t_is_the_number_at_the_token_before(self):
        network, rows = random_head(Separate()(policy())), collected(learner())
        values, numbers = network(rows.tokens, rows.mask), network.scalar(rows.tokens)
        where = rows.mask.nonzero()
        assert len(where) > 20
        for row, t in where.tolist():
            assert values[row, t] == numbers[row, t - 1]
        assert (values[~rows.mask] == 0).all()

    def test_value_is_blind_to_its_own_token_and_to_later_ones(self):
        network, rows = random_head(Separate()(policy())), collected(learner())
        before = network(rows.tokens, rows.mask)
        row = int(rows.mask.sum(1).argmax())
        t = int(rows.mask[row].nonzero()[1])
        changed = rows.tokens.clone()
        changed[row, t] = (changed[row, t] + 1) % 50
        after = network(changed, rows.mask)
        assert torch.equal(after[row, : t + 1], before[row, : t + 1])
        assert not torch.equal(after[row, t + 1 :], before[row, t + 1 :])


class TestWhereItStarts:
    def test_from_the_policy_under_a_head_of_zeros(self):
        start = policy()
        network, rows = Separate()(start), collected(learner())
        assert (network(rows.tokens, rows.mask) == 0).all()
        assert torch.equal(network.scalar.model.model.layers[0].mlp.up_proj.weight, start.model.model.layers[0].mlp.up_proj.weight)
        network.scalar.model.model.layers[0].mlp.up_proj.weight.data.zero_()
        assert start.model.model.layers[0].mlp.up_proj.weight.norm() > 0

    def test_from_a_reward_model(self, tmp_path):
        reward_model = random_head(Separate()(policy())).scalar
        reward_model.export(tmp_path / "export")
        network, rows = Separate(init=str(tmp_path))(policy(seed=1)), collected(learner())
        assert torch.equal(network.scalar(rows.tokens), reward_model(rows.tokens))
        assert all(p.requires_grad for p in network.parameters())

    def test_refuses_other_tokens(self, tmp_path):
        other = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
        other.tokenizer.add_tokens(["new"])
        other.model.resize_token_embeddings(len(other.tokenizer))
        ScalarModel.from_policy(other).export(tmp_path)
        with pytest.raises(UserError, match=r"critic\.init=.* reads other tokens.*critic\.init=null"):
            Separate(init=str(tmp_path))(policy())

    def test_refuses_what_is_no_reward_model(self, tmp_path):
        policy().export(tmp_path)
        with pytest.raises(UserError, match="no reward model"):
            Separate(init=str(tmp_path))(policy())


@pytest.mark.parametrize(("field", "value"), [("coefficient", 0), ("clip", 0.0), ("lr", -1.0)])
def test_settings_out_of_range(field, value):
    with pytest.raises(ValueError, match=rf"critic\.{field}="):
        Separate(**{field: value})
