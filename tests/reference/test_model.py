"""Any model as the reference: what it changes, what is refused, and that a run resumes with the
same one only."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from rlmods.algo import DPO
from rlmods.errors import UserError
from rlmods.kl import Penalty
from rlmods.policy import Policy, Tiny
from rlmods.preference import Sigmoid
from rlmods.reference import Model, StartPolicy
from tests.support.offline import RAGGED, alone
from tests.support.tiny_setup import (
    SPLITS,
    attached,
    close,
    collected,
    flat,
    gradients,
    learner,
    other_vocabulary,
    perturb,
    policy,
)


@dataclass(frozen=True)
class Wide:
    """Loads a model that is wider than the tests' policy, with other weights."""

    seed: int = 1
    hidden_size: int = 64

    def __call__(self) -> Policy:
        torch.manual_seed(self.seed)
        return Tiny(pretrained=False, hidden_size=self.hidden_size, num_layers=1)()


def with_reference(part, **change):
    return learner(kl=Penalty("k3", 0.5, "loss"), reference=part, **change)


class TestModel:
    @pytest.mark.parametrize("where", ["loss", "reward"])
    def test_the_kl_is_measured_from_it(self, where: str) -> None:
        made = attached(learner(kl=Penalty("k1", 0.5, where), reference=Model(policy=Wide())))
        batch, _ = made.sample(SPLITS.train[:2])
        other = Wide()().requires_grad_(False)
        expected = other(batch.tokens, batch.mask).logprobs
        torch.testing.assert_close(batch.ref_logprobs, expected)
        assert not torch.allclose(
            expected, made.policy(batch.tokens, batch.mask).logprobs.detach(), atol=1e-3
        )

    def test_by_name_it_is_the_exported_model(self, tmp_path: Path) -> None:
        other = Wide()()
        other.export(tmp_path)
        loaded = Model(name=str(tmp_path))(policy())
        tokens = torch.arange(12).view(2, 6)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        torch.testing.assert_close(
            loaded(tokens, mask).logprobs, other(tokens, mask).logprobs.detach()
        )
        assert not any(x.requires_grad for x in loaded.parameters())
        half = Model(name=str(tmp_path), dtype="bfloat16")(policy())
        assert {x.dtype for x in half.parameters()} == {torch.bfloat16}

    def test_a_copy_of_the_policy_is_the_start_policy(self, tmp_path: Path) -> None:
        policy().export(tmp_path)
        models = [with_reference(part) for part in (StartPolicy(), Model(name=str(tmp_path)))]
        batches = [collected(made) for made in models]
        for made in models:
            perturb(made.policy)
        start, same = (gradients(made, batch) for made, batch in zip(models, batches, strict=True))
        close(same, start)

    def test_of_dpo(self) -> None:
        made = alone(learner(DPO, preference=Sigmoid(), reference_part=Model(policy=Wide())))
        rows = made.rows(RAGGED)
        torch.testing.assert_close(rows.ref_logprobs, made.score(rows, Wide()()))
        assert not torch.allclose(rows.ref_logprobs, made.score(rows, made.policy), atol=1e-2)

    def test_it_is_sharded_and_moved_with_the_policy(self) -> None:
        made = with_reference(Model(policy=Wide()))
        assert made.reference.networks == [made.reference.policy]
        assert list(made.frozen) == ["reference"]
        assert not any("reference" in name for name in made.state_dict())


class TestRefused:
    def test_another_vocabulary(self) -> None:
        with pytest.raises(
            UserError,
            match=r"^reference: the model has another vocabulary .* type another reference\.name=$",
        ):
            Model(policy=other_vocabulary)(policy())

    @pytest.mark.parametrize("options", [{}, {"name": "a", "policy": Wide()}])
    def test_no_model_or_two(self, options) -> None:
        with pytest.raises(
            UserError, match=r"^reference=model needs one model: type reference\.name="
        ):
            Model(**options)(policy())

    def test_a_model_that_does_not_exist(self) -> None:
        with pytest.raises(UserError, match=r"^reference\.name=\./nowhere: .*no such directory"):
            Model(name="./nowhere")(policy())

    def test_resuming_with_another_model(self) -> None:
        saved = with_reference(Model(policy=Wide())).checkpoint.state()
        with_reference(Model(policy=Wide())).checkpoint.load_state(saved)
        for other in (Model(policy=Wide(seed=2)), StartPolicy()):
            with pytest.raises(
                UserError,
                match="the reference is not the model that the run began with: restore policy= and "
                "reference= to",
            ):
                with_reference(other).checkpoint.load_state(saved)

    def test_a_policy_that_cannot_be_copied_to_it(self) -> None:
        with pytest.raises(
            UserError, match=r"algo\.reference_every copies the policy .* type reference=policy"
        ):
            with_reference(Model(policy=Wide()), reference_every=2)

    def test_an_equal_architecture_can_follow(self) -> None:
        made = with_reference(Model(policy=lambda: policy(seed=5)), reference_every=2)
        made.reference.step_towards(made.policy, 1.0)
        assert torch.equal(flat(made.reference.policy), flat(made.policy))
        assert made.checkpoint.state()["frozen"]["reference"].keys() == {"origin", "weights"}
