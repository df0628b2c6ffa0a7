"""Value networks: their inputs and their initialisation."""

import pytest
import torch

from rlmods.advantage import GAE
from rlmods.critic import NoCritic, Separate, Shared
from rlmods.errors import UserError
from rlmods.policy import ScalarModel, Tiny
from rlmods.policy.packing import Packing
from tests.support.packed_rows import MODELS, PADDED, RAGGED, policy as small_policy
from tests.support.tiny_setup import collected, gradients, learner, policy


def random_head(network):
    torch.manual_seed(0)
    torch.nn.init.normal_(network.scalar.model.score.weight)
    return network


class TestForward:
    def test_column_t_is_the_score_at_the_token_before(self):
        network, rows = random_head(Separate()(policy())), collected(learner())
        values, scores = network(rows.tokens, rows.mask), network.scalar(rows.tokens)
        positions = rows.mask.nonzero()
        assert len(positions) > 20
        for row, t in positions.tolist():
            torch.testing.assert_close(values[row, t], scores[row, t - 1], rtol=0, atol=1e-5)
        assert (values[~rows.mask] == 0).all()

    def test_values_do_not_depend_on_their_own_or_later_tokens(self):
        network, rows = random_head(Separate()(policy())), collected(learner())
        before = network(rows.tokens, rows.mask)
        row = int(rows.mask.sum(1).argmax())
        t = int(rows.mask[row].nonzero()[1])
        changed = rows.tokens.clone()
        changed[row, t] = (changed[row, t] + 1) % 50
        after = network(changed, rows.mask)
        assert torch.equal(after[row, : t + 1], before[row, : t + 1])
        assert not torch.equal(after[row, t + 1 :], before[row, t + 1 :])


def outcome(network, tokens, mask, packs):
    """Return values and the gradient of a weighted sum of them, with or without packing."""
    network.packs = packs
    network.zero_grad()
    values = network(tokens, mask)
    (values * torch.linspace(-1, 2, mask.numel()).view(mask.shape)).sum().backward()
    return values.detach(), torch.cat([p.grad.flatten() for p in network.parameters()])


class TestPacking:
    """The trunk computes equal prompts once and no padding, as that of the policy
    (`tests/policy/test_packing.py`)."""

    @pytest.mark.parametrize("name", MODELS)
    def test_equals_padded_rows_in_value_and_gradient(self, name):
        network = random_head(Separate()(small_policy(MODELS[name]()))).double()
        assert network.packs
        packed, padded = (outcome(network, *RAGGED, packs) for packs in (True, False))
        assert padded[1].norm() > 1e-3
        for x, y in zip(packed, padded, strict=True):
            assert (x - y).norm() < 1e-6 * y.norm()

    def test_a_prompt_is_computed_once(self):
        network, seen = Separate()(small_policy()), []
        network.scalar.model.model.layers[0].mlp.register_forward_hook(
            lambda module, args, output: seen.append(args[0].shape[:-1].numel())
        )
        network(*RAGGED)
        assert seen == [len(Packing.of(*RAGGED))]
        assert seen[0] < 0.5 * RAGGED[0].numel()

    def test_a_trunk_with_a_window_forwards_padded_rows(self):
        network = random_head(Separate()(small_policy(PADDED["a sliding window"]())))
        assert not network.packs
        scores = network.scalar(RAGGED[0])
        torch.testing.assert_close(
            network(*RAGGED)[:, 1:],
            scores[:, :-1].masked_fill(~RAGGED[1][:, 1:], 0.0),
            rtol=0,
            atol=1e-6,
        )

    def test_rows_without_a_scored_token_have_a_gradient_of_zeros(self):
        """A rank without rows takes part in the reduction of gradients."""
        network = random_head(Separate()(small_policy()))
        values = network(RAGGED[0], torch.zeros_like(RAGGED[1]))
        assert not values.any()
        values.sum().backward()
        trained = list(network.scalar.model.model.layers.parameters())
        assert all(p.grad is not None and not p.grad.any() for p in trained)

    def test_with_gradient_checkpointing(self):
        expected = outcome(random_head(Separate()(small_policy())), *RAGGED, True)
        network, forwards = random_head(Separate()(small_policy(gradient_checkpointing=True))), []
        network.scalar.model.model.layers[0].mlp.register_forward_pre_hook(
            lambda module, args: forwards.append(args)
        )
        assert network.needs_train_mode
        network.train()
        for x, y in zip(outcome(network, *RAGGED, True), expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
        assert len(forwards) == 2  # backward computes the layer again


class TestInitialisation:
    def test_default_is_the_policy_trunk_with_a_zero_head(self):
        initial = policy()
        network, rows = Separate()(initial), collected(learner())
        assert (network(rows.tokens, rows.mask) == 0).all()
        assert torch.equal(
            network.scalar.model.model.layers[0].mlp.up_proj.weight,
            initial.model.model.layers[0].mlp.up_proj.weight,
        )
        network.scalar.model.model.layers[0].mlp.up_proj.weight.data.zero_()
        assert initial.model.model.layers[0].mlp.up_proj.weight.norm() > 0

    def test_from_a_reward_model(self, tmp_path):
        reward_model = random_head(Separate()(policy())).scalar
        reward_model.export(tmp_path / "export")
        network, rows = Separate(init=str(tmp_path))(policy(seed=1)), collected(learner())
        assert torch.equal(network.scalar(rows.tokens), reward_model(rows.tokens))
        assert all(p.requires_grad for p in network.parameters())

    @pytest.mark.parametrize("bias", [False, True])
    def test_offset_of_the_reward_model_is_subtracted(self, tmp_path, bias):
        reward_model = random_head(Separate()(policy())).scalar
        reward_model.metadata.update({"pooling": "last", "offset": 0.75})
        reward_model.export(tmp_path / "export")
        network, rows = Separate(init=str(tmp_path))(policy(seed=1)), collected(learner())
        torch.testing.assert_close(
            network.scalar(rows.tokens), reward_model(rows.tokens) - 0.75, rtol=0, atol=1e-6
        )
        assert network.scalar.model.score.bias.requires_grad
        if bias:  # a head that has a bias already
            network.scalar.metadata["offset"] = -2.0
            network.scalar.fold_offset()
            torch.testing.assert_close(
                network.scalar(rows.tokens), reward_model(rows.tokens) + 1.25, rtol=0, atol=1e-6
            )

    @pytest.mark.parametrize("pooling", ["mean", "sum", "max", "min"])
    def test_rejects_a_score_over_several_tokens(self, tmp_path, pooling):
        reward_model = Separate()(policy()).scalar
        reward_model.metadata["pooling"] = pooling
        reward_model.export(tmp_path)
        with pytest.raises(
            UserError, match=rf"critic\.init=.*the {pooling} over tokens.*: type critic.init=null"
        ):
            Separate(init=str(tmp_path))(policy())

    def test_rejects_another_vocabulary(self, tmp_path):
        other = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
        other.tokenizer.add_tokens(["new"])
        other.model.resize_token_embeddings(len(other.tokenizer))
        ScalarModel.from_policy(other).export(tmp_path)
        with pytest.raises(
            UserError, match=r"critic\.init=.* has another tokenizer.*critic\.init=null"
        ):
            Separate(init=str(tmp_path))(policy())

    def test_rejects_a_language_model(self, tmp_path):
        policy().export(tmp_path)
        with pytest.raises(UserError, match="no reward model"):
            Separate(init=str(tmp_path))(policy())


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


def test_has_no_network():
    assert NoCritic()(policy()) is None
    assert list(learner().networks) == ["policy"]
