"""Every algorithm trains the adapter only, and its reference is the adapter's initial state."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rlmods.adapter import LoRA, NoAdapter
from rlmods.advantage import GAE, Accept
from rlmods.algo import DPO, PPO, RFT, SFT, Batch, OnlineDPO
from rlmods.callbacks import IterationCheckpoint
from rlmods.critic import Separate, Shared
from rlmods.errors import UserError
from rlmods.kl import Penalty
from rlmods.policy import ScalarModel
from rlmods.preference import KTO, Sigmoid
from rlmods.ratio import LogLikelihood
from rlmods.sampling import BestOf
from tests.algo.test_online_dpo import even_first
from tests.support.composed import composed
from tests.support.tiny_setup import SPLITS, collected, fit, learner, policy

from .policies import frozen_tensors, perturbed

ADAPTER = {"adapter": LoRA(rank=4)}
LOSS, REWARD = Penalty("k3", 0.1, "loss"), Penalty("k1", 0.05, "reward")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "policy_gradient": {"kl": LOSS, "batch": Batch(prompts=4, samples=4, epochs=2)},
    "ppo": {"kind": PPO, "advantage": GAE(), "critic": Separate(), "kl": REWARD},
    "ppo shared": {"kind": PPO, "advantage": GAE(), "critic": Shared(), "kl": REWARD},
    "ppo ptx": {
        "kind": PPO,
        "advantage": GAE(),
        "critic": Separate(),
        "ptx_coefficient": 0.1,
        "ptx_prompts": SPLITS.train,
        "ptx_rows": 4,
    },
    "rft": {"kind": RFT, "advantage": Accept(), "sampling": BestOf(k=2), "ratio": LogLikelihood()},
    "sft": {"kind": SFT},
    "dpo": {"kind": DPO, "preference": Sigmoid()},
    "dpo precomputed": {"kind": DPO, "preference": Sigmoid(), "reference": "precomputed"},
    "kto": {"kind": DPO, "preference": KTO()},
    "online_dpo": {
        "kind": OnlineDPO,
        "preference": Sigmoid(),
        "judge": even_first,
        "reference_every": 1,
    },
}


def adapter_values(module: Any) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in module.policy.trainable_tensors().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_adapter_is_trained_and_the_base_is_not(name: str) -> None:
    module = learner(**ADAPTER, **ALGORITHMS[name])
    before, base_before = adapter_values(module), frozen_tensors(module.policy)
    rows = fit(module, 2)
    assert all(not torch.equal(x, before[name]) for name, x in adapter_values(module).items())
    assert all(
        torch.equal(x, dict(module.policy.named_parameters())[name])
        for name, x in base_before.items()
        if ".reference." not in name
    )
    trained = [x for group in module.optimizers().param_groups for x in group["params"]]
    critic = getattr(module, "critic", None)
    assert len(trained) == len(before) + (len(list(critic.parameters())) if critic else 0)
    for row in rows:
        assert row.get("train/sampler_logprob_gap", 0.0) < 1e-4
    assert rows[-1]["train/grad_norm"] > 0


def test_sampler_and_trainer_use_the_same_weights() -> None:
    """Also after steps large enough to change the log-probabilities."""
    module = learner(**ADAPTER, kl=LOSS)
    rows = fit(module, 4)
    assert max(row["train/sampler_logprob_gap"] for row in rows) < 1e-4
    assert rows[-1]["train/kl_ref"] > 1e-2


class TestReference:
    @pytest.mark.parametrize("start", ["full", "lora", "lora on an adapter"])
    def test_does_not_change_in_three_updates(self, start: str) -> None:
        part = NoAdapter() if start == "full" else ADAPTER["adapter"]
        initial = part(policy())
        if start == "lora on an adapter":
            perturbed(initial)
        module = learner(policy=initial, kl=LOSS, batch=Batch(prompts=4, samples=4, epochs=3))
        batch = collected(module)
        ref_logprobs, expected = (
            module.scorer.score(batch, module.reference.policy).logprobs,
            module.scorer.score(batch, module.policy).logprobs,
        )
        assert torch.equal(ref_logprobs, expected)
        base = module.scorer.score(batch, policy()).logprobs
        assert torch.equal(ref_logprobs, base) != (start == "lora on an adapter")
        fit(module, 1)
        assert module.optimizer_steps == 3
        assert torch.equal(
            module.scorer.score(batch, module.reference.policy).logprobs, ref_logprobs
        )
        assert not torch.allclose(
            module.scorer.score(batch, module.policy).logprobs, ref_logprobs, atol=1e-3
        )
        ids = {id(x) for group in module.optimizers().param_groups for x in group["params"]}
        assert not any(
            x.requires_grad or id(x) in ids
            for x in module.reference.policy.trainable_tensors().values()
        )

    def test_is_updated_with_reference_every(self) -> None:
        """The KL to the reference is 0 after each update of it."""
        distance = [
            row["train/kl_ref"] for row in fit(learner(**ADAPTER, kl=LOSS, reference_every=2), 4)
        ]
        assert max(distance[0], distance[2]) < 1e-9 < 1e-4 < min(distance[1], distance[3])


def test_a_critic_is_a_full_copy_of_the_merged_policy() -> None:
    adapted = ADAPTER["adapter"](policy())
    adapted.frozen_copy()
    perturbed(adapted)
    scalar, merged = ScalarModel.from_policy(adapted), adapted.merged()
    assert all(x.requires_grad for x in scalar.parameters())
    assert not any("lora" in name for name, _ in scalar.named_parameters())
    for name, x in merged.model.base_model.state_dict().items():
        assert torch.equal(scalar.model.base_model.state_dict()[name], x)
    assert not torch.equal(
        scalar.model.model.layers[0].mlp.up_proj.weight,
        policy().model.model.layers[0].mlp.up_proj.weight,
    )


class TestCheckpoint:
    def saved(self, folder: Path, **change: Any) -> dict[str, Any]:
        fit(learner(**ADAPTER, **change), 1, callbacks=(IterationCheckpoint(folder, every=1),))
        return torch.load(folder / "iteration_000001.ckpt", weights_only=True)

    def test_holds_only_the_adapter(self, tmp_path: Path) -> None:
        content = self.saved(tmp_path, kl=LOSS)
        assert len(content["state_dict"]) == 28
        assert all(".default." in name for name in content["state_dict"])
        assert content["rlmods"]["adapter_bases"].keys() == {"policy"}
        assert len(content["optimizer_states"][0]["state"]) == 28

    def test_another_base_is_rejected_on_resume(self, tmp_path: Path) -> None:
        self.saved(tmp_path)
        with pytest.raises(
            UserError, match="differ from those that the run began with: type the original policy="
        ):
            fit(
                learner(**ADAPTER, policy=policy(seed=1)),
                2,
                resume=tmp_path / "iteration_000001.ckpt",
            )

    def test_missing_tensors_are_rejected_on_resume(self, tmp_path: Path) -> None:
        content = self.saved(tmp_path)
        content["state_dict"].popitem()
        torch.save(content, tmp_path / "incomplete.ckpt")
        with pytest.raises(RuntimeError, match="Missing key"):
            fit(learner(**ADAPTER), 2, resume=tmp_path / "incomplete.ckpt")


class Params4bit(torch.nn.Parameter):
    """Has the class name of bitsandbytes' parameter."""


class Quantized(torch.nn.Linear):
    """As those of bitsandbytes: its state has entries of its own, and cannot be loaded."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight.absmax"] = torch.ones(1)
        destination[f"{prefix}SCB"] = torch.ones(1)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        assert not any(name.startswith(prefix) for name in state_dict)


class TestQuantizedBase:
    @staticmethod
    def made() -> Any:
        made = learner(**ADAPTER)
        for module in made.policy.model.modules():
            base = module._modules.get("base_layer")
            if base is not None:
                base.__class__ = Quantized
                base.weight = Params4bit(base.weight.detach(), requires_grad=False)
        return made

    def test_is_resumed(self, tmp_path: Path) -> None:
        checkpoint = (IterationCheckpoint(tmp_path, every=1),)
        fit(self.made(), 1, callbacks=checkpoint)
        content = torch.load(tmp_path / "iteration_000001.ckpt", weights_only=True)
        assert all(".default." in name for name in content["state_dict"])
        resumed, whole = self.made(), self.made()
        fit(resumed, 2, resume=tmp_path / "iteration_000001.ckpt")
        fit(whole, 2)
        expected = adapter_values(whole)
        for name, x in adapter_values(resumed).items():
            assert torch.equal(x, expected[name])

    def test_missing_tensors_are_rejected(self, tmp_path: Path) -> None:
        fit(self.made(), 1, callbacks=(IterationCheckpoint(tmp_path, every=1),))
        content = torch.load(tmp_path / "iteration_000001.ckpt", weights_only=True)
        name, _ = content["state_dict"].popitem()
        torch.save(content, tmp_path / "incomplete.ckpt")
        with pytest.raises(UserError, match=f"differ in {name}: type the original policy="):
            fit(self.made(), 2, resume=tmp_path / "incomplete.ckpt")


class TestCompose:
    def test_reward_model_rejects_an_adapter(self) -> None:
        with pytest.raises(
            UserError, match="algo=reward_model does not use adapter: drop adapter=lora"
        ):
            composed("algo=reward_model", "adapter=lora")

    def test_it_is_listed_but_not_part_of_the_label(self) -> None:
        spec = composed("algo=grpo", "adapter=lora", "adapter.rank=2")
        assert spec.label == "grpo"
        assert (spec.choices["adapter"], spec.adapter.rank) == ("lora", 2)
        assert "adapter" not in composed("algo=reward_model").choices
