"""Every algorithm trains the adapter and nothing else, and measures from where it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rlmods.adapter import LoRA, NoAdapter
from rlmods.advantage import GAE, Accept
from rlmods.algo import DPO, PPO, RFT, SFT, Batch, OnlineDPO
from rlmods.callbacks import IterationCheckpoint
from rlmods.callbacks.table import show_plan
from rlmods.critic import Separate, Shared
from rlmods.kl import Penalty
from rlmods.policy import ScalarModel
from rlmods.preference import KTO, Sigmoid
from rlmods.ratio import LogLikelihood
from rlmods.run import RunDir
from rlmods.sampling import BestOf
from rlmods.types import UserError
from tests.algo.test_online_dpo import even_first
from tests.config.test_compose import plan
from tests.support.tiny_setup import SPLITS, collected, fit, learner, policy

from .policies import frozen, moved

ADAPTER = {"adapter": LoRA(rank=4)}
LOSS, REWARD = Penalty("k3", 0.1, "loss"), Penalty("k1", 0.05, "reward")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "policy_gradient": {"kl": LOSS, "batch": Batch(prompts=4, samples=4, epochs=2)},
    "ppo": {"kind": PPO, "advantage": GAE(), "critic": Separate(), "kl": REWARD},
    "ppo shared": {"kind": PPO, "advantage": GAE(), "critic": Shared(), "kl": REWARD},
    "ppo ptx": {"kind": PPO, "advantage": GAE(), "critic": Separate(), "ptx_coefficient": 0.1, "ptx_prompts": SPLITS.train, "ptx_rows": 4},
    "rft": {"kind": RFT, "advantage": Accept(), "sampling": BestOf(k=2), "ratio": LogLikelihood()},
    "sft": {"kind": SFT},
    "dpo": {"kind": DPO, "preference": Sigmoid()},
    "dpo precomputed": {"kind": DPO, "preference": Sigmoid(), "reference": "precomputed"},
    "kto": {"kind": DPO, "preference": KTO()},
    "online_dpo": {"kind": OnlineDPO, "preference": Sigmoid(), "judge": even_first, "reference_every": 1},
}


def values(made: Any) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in made.policy.trainable_tensors().items()}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_adapter_is_trained_and_the_base_is_not(name: str) -> None:
    made = learner(**ADAPTER, **ALGORITHMS[name])
    before, still = values(made), frozen(made.policy)
    rows = fit(made, 2)
    assert all(not torch.equal(x, before[name]) for name, x in values(made).items())
    assert all(torch.equal(x, dict(made.policy.named_parameters())[name]) for name, x in still.items() if ".reference." not in name)
    trained = [x for group in made.optimizers().param_groups for x in group["params"]]
    critic = getattr(made, "critic", None)
    assert len(trained) == len(before) + (len(list(critic.parameters())) if critic else 0)
    for row in rows:
        assert row.get("train/sampler_logprob_gap", 0.0) < 1e-4
    assert rows[-1]["train/grad_norm"] > 0


def test_what_is_sampled_is_what_is_trained() -> None:
    """After steps large enough that the base would say something else."""
    made = learner(**ADAPTER, kl=LOSS)
    rows = fit(made, 4)
    assert max(row["train/sampler_logprob_gap"] for row in rows) < 1e-4
    assert rows[-1]["train/kl_ref"] > 1e-2


class TestReference:
    @pytest.mark.parametrize("start", ["full", "lora", "lora on an adapter", "modules_to_save"])
    def test_stands_still_through_three_updates(self, start: str) -> None:
        part = {"full": NoAdapter(), "modules_to_save": LoRA(rank=4, modules_to_save=["norm"])}.get(start, ADAPTER["adapter"])
        at = part(policy())
        if start == "lora on an adapter":
            moved(at)
        made = learner(policy=at, kl=LOSS, batch=Batch(prompts=4, samples=4, epochs=3))
        batch = collected(made)
        first, want = made.score(batch, made.reference.policy).logprobs, made.score(batch, made.policy).logprobs
        assert torch.equal(first, want)
        base = made.score(batch, policy()).logprobs
        assert torch.equal(first, base) != (start == "lora on an adapter")
        fit(made, 1)
        assert made.optimizer_steps == 3
        assert torch.equal(made.score(batch, made.reference.policy).logprobs, first)
        assert not torch.allclose(made.score(batch, made.policy).logprobs, first, atol=1e-3)
        ids = {id(x) for group in made.optimizers().param_groups for x in group["params"]}
        assert not any(x.requires_grad or id(x) in ids for x in made.reference.policy.trainable_tensors().values())

    def test_follows_in_rounds(self) -> None:
        """The distance that the penalty measures starts anew."""
        distance = [row["train/kl_ref"] for row in fit(learner(**ADAPTER, kl=LOSS, reference_every=2), 4)]
        assert max(distance[0], distance[2]) < 1e-9 < 1e-4 < min(distance[1], distance[3])


class TestCritic:
    def test_is_a_whole_copy_of_what_the_policy_says(self) -> None:
        made = ADAPTER["adapter"](policy())
        made.frozen_copy()
        moved(made)
        scalar, whole = ScalarModel.from_policy(made), made.merged()
        assert all(x.requires_grad for x in scalar.parameters())
        assert not any("lora" in name for name, _ in scalar.named_parameters())
        for name, x in whole.model.base_model.state_dict().items():
            assert torch.equal(scalar.model.base_model.state_dict()[name], x)
        assert not torch.equal(scalar.model.model.layers[0].mlp.up_proj.weight, policy().model.model.layers[0].mlp.up_proj.weight)


class TestCheckpoint:
    def saved(self, folder: Path, **change: Any) -> dict[str, Any]:
        fit(learner(**ADAPTER, **change), 1, callbacks=(IterationCheckpoint(folder, every=1),))
        return torch.load(folder / "iteration_000001.ckpt", weights_only=True)

    def test_holds_the_adapter_and_no_base(self, tmp_path: Path) -> None:
        content = self.saved(tmp_path, kl=LOSS)
        assert len(content["state_dict"]) == 28
        assert all(".default." in name for name in content["state_dict"])
        assert content["rlmods"]["bases"].keys() == {"policy"}
        assert len(content["optimizer_states"][0]["state"]) == 28

    def test_goes_on_with_no_other_base(self, tmp_path: Path) -> None:
        self.saved(tmp_path)
        with pytest.raises(UserError, match="not what the run began with: give the policy as it was then"):
            fit(learner(**ADAPTER, policy=policy(seed=1)), 2, resume=tmp_path / "iteration_000001.ckpt")

    def test_is_loaded_strictly(self, tmp_path: Path) -> None:
        content = self.saved(tmp_path)
        content["state_dict"].popitem()
        torch.save(content, tmp_path / "less.ckpt")
        with pytest.raises(RuntimeError, match="Missing key"):
            fit(learner(**ADAPTER), 2, resume=tmp_path / "less.ckpt")


def test_the_table_says_how_many_are_trained(tmp_path: Path) -> None:
    small = ("policy.pretrained=false", "policy.hidden_size=32", "policy.num_layers=2", f"run_dir={tmp_path / 'run'}")
    made = plan("algo=grpo", "adapter=lora", "adapter.rank=32", "kl=loss", *small)
    console = Console(record=True, width=200)
    show_plan(made, made.learner(), RunDir.open(made.config), console=console)
    said = console.export_text()
    assert "adapter=lora" in said
    assert "0.1M parameters, 0.04M of them trained, float32" in said
    assert "a frozen copy of what is trained, 0.04M more" in said


class TestCompose:
    def test_no_adapter_under_a_reward_model(self) -> None:
        with pytest.raises(UserError, match="algo=reward_model does not use adapter: drop adapter=lora"):
            plan("algo=reward_model", "adapter=lora")

    def test_it_is_named_and_no_departure_from_the_paper(self) -> None:
        made = plan("algo=grpo", "adapter=lora", "adapter.rank=2")
        assert (made.label, made.choices["adapter"], made.adapter.rank) == ("grpo", "lora", 2)
        assert "adapter" not in plan("algo=reward_model").choices
