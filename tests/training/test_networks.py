"""Weight decay of matrices only, the critic's own learning rate, and float32 master weights."""

from functools import partial
from typing import Any

import pytest
import torch

from rlmods.adapter import LoRA, NoAdapter
from rlmods.advantage import GAE
from rlmods.algo import DPO, PPO, ProcessRewardModel, RewardModel
from rlmods.critic import Separate, Shared
from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.preference import Sigmoid
from rlmods.ranking import BradleyTerry
from rlmods.training.networks import parameter_groups
from tests.support.models import gpt2, policy as wrapped
from tests.support.tiny_setup import OneRank, learner

LR, DECAY = 0.1, 0.5
DECAYING = partial(torch.optim.AdamW, lr=LR, weight_decay=DECAY)
MADE: dict[str, tuple[Any, dict[str, Any]]] = {
    "separate critic": (PPO, {"advantage": GAE(), "critic": Separate(lr=0.02)}),
    "shared critic": (PPO, {"advantage": GAE(), "critic": Shared()}),
    "lora": (PPO, {"advantage": GAE(), "critic": Shared(), "adapter": LoRA(rank=2)}),
    "reward model": (RewardModel, {"ranking": BradleyTerry(), "rollout": None, "reward": None}),
    "process reward model": (ProcessRewardModel, {"rollout": None, "reward": None}),
    "dpo": (DPO, {"preference": Sigmoid(), "adapter": NoAdapter()}),
}


@pytest.mark.parametrize("name", MADE)
def test_weight_decay_leaves_norms_and_biases_alone(name: str) -> None:
    kind, parts = MADE[name]
    made = learner(kind, policy=wrapped(gpt2()), optimizer=DECAYING, **parts)
    made.trainer = OneRank()
    [optimizer], _ = made.configure_optimizers()
    trained = {
        f"{n}.{key}": x
        for n, network in made.networks.items()
        for key, x in network.named_parameters()
        if x.requires_grad
    }
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(trained)
    with torch.no_grad():
        for x in trained.values():
            x.grad = torch.zeros_like(x)
            x.add_(1.0)
    before = {key: x.detach().clone() for key, x in trained.items()}
    optimizer.step()
    assert any(x.ndim > 1 for x in trained.values())
    assert name == "lora" or any(x.ndim == 1 for x in trained.values())
    for key, x in trained.items():
        lr = 0.02 if name == "separate critic" and key.startswith("critic") else LR
        torch.testing.assert_close(
            x, before[key] * (1 - lr * DECAY if x.ndim > 1 else 1.0), rtol=1e-5, atol=0, msg=key
        )


def test_bfloat16_master_weights_are_refused() -> None:
    half = Policy(gpt2().bfloat16(), wrapped().tokenizer)
    with pytest.raises(
        UserError,
        match=r"the weights of policy are bfloat16, .* trainer.precision=bf16-mixed, or type "
        r"adapter=lora",
    ):
        parameter_groups("policy", half)
    assert parameter_groups("policy", half.requires_grad_(False)) == []
    adapted = LoRA(rank=2)(Policy(gpt2().bfloat16(), wrapped().tokenizer))
    assert {x.dtype for group in parameter_groups("policy", adapted) for x in group["params"]} == {
        torch.float32
    }
