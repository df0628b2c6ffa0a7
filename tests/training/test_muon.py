"""Muon: which weights it takes, its steps, and those of shards."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rlmods.adapter import LoRA
from rlmods.advantage import GAE
from rlmods.algo import PPO, RewardModel
from rlmods.config import build
from rlmods.critic import Separate, Shared
from rlmods.errors import UserError
from rlmods.ranking import BradleyTerry
from rlmods.training.muon import Muon
from tests.support import ranks
from tests.support.composed import composed
from tests.support.mixtures import mixture
from tests.support.models import gpt2, llama, policy as wrapped
from tests.support.tiny_setup import OneRank, learner

ATTENTION = [f"self_attn.{x}_proj" for x in "qkvo"]
LLAMA = [*ATTENTION, *(f"mlp.{x}_proj" for x in ("gate", "up", "down"))]
GPT2 = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]


def optimizer_of(made: Any) -> Any:
    made.trainer = OneRank()
    [optimizer], _ = made.configure_optimizers()
    return optimizer


def hidden_names(made: Any) -> set[str]:
    """Names of the weights in the groups of Muon, after all weights were found in one group."""
    names = {}
    for network, module in made.networks.items():
        names |= {id(x): f"{network}.{name}" for name, x in module.named_parameters()}
    groups = optimizer_of(made).param_groups
    trained = [x for network in made.networks.values() for x in network.parameters()]
    found = [id(x) for group in groups for x in group["params"]]
    assert sorted(found) == sorted(id(x) for x in trained if x.requires_grad)
    return {names[id(x)] for group in groups if group["hidden"] for x in group["params"]}


def layers(prefix: str, names: list[str], count: int) -> set[str]:
    return {f"{prefix}.{i}.{name}.weight" for i in range(count) for name in names}


def test_embedded_model() -> None:
    made = build.load(composed("optimizer=muon")).learner
    assert hidden_names(made) == layers("policy.model.model.layers", LLAMA, 4)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_and_output_layer_have_adamw(tied: bool) -> None:
    made = learner(policy=wrapped(llama(tie_word_embeddings=tied)), optimizer=Muon)
    assert hidden_names(made) == layers("policy.model.model.layers", LLAMA, 2)
    made = learner(policy=wrapped(gpt2(tie_word_embeddings=tied)), optimizer=partial(Muon, lr=1.0))
    assert hidden_names(made) == layers("policy.model.transformer.h", GPT2, 2)


def test_value_heads_have_adamw() -> None:
    trunk = layers("policy.model.model.layers", LLAMA, 2)
    settings: dict[str, Any] = {"advantage": GAE(), "optimizer": Muon}
    assert hidden_names(learner(PPO, critic=Shared(), **settings)) == trunk
    own = layers("critic.scalar.model.model.layers", LLAMA, 2)
    assert hidden_names(learner(PPO, critic=Separate(), **settings)) == trunk | own
    settings = {"ranking": BradleyTerry(), "rollout": None, "reward": None, "optimizer": Muon}
    made = learner(RewardModel, **settings)
    [name] = made.networks
    assert hidden_names(made) == layers(f"{name}.model.model.layers", LLAMA, 2)


def test_experts_in_one_tensor_have_adamw() -> None:
    names = hidden_names(learner(policy=mixture(), optimizer=Muon))
    assert {x.rsplit(".", 2)[1] for x in names} == {"q_proj", "k_proj", "v_proj", "o_proj", "gate"}


def test_factors_of_an_adapter_have_muon() -> None:
    pytest.importorskip("peft")
    names = hidden_names(learner(adapter=LoRA(rank=2), optimizer=Muon))
    assert len(names) == 2 * 7 * 2
    assert all("lora_" in x for x in names)


@pytest.mark.parametrize("scale", ["match_rms_adamw", "original"])
def test_is_both_optimizers_by_hand(scale: str) -> None:
    """Three steps with a schedule, the critic's own learning rate and weight decay."""
    both: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.5}
    adam: dict[str, Any] = {"betas": (0.8, 0.9), "eps": 1e-5, "fused": True}
    create = partial(Muon, momentum=0.8, adjust_lr_fn=scale, **both, **adam)
    made = learner(PPO, advantage=GAE(), critic=Separate(lr=0.02), optimizer=create)
    hidden = hidden_names(made)
    expected = {name: copy.deepcopy(network) for name, network in made.networks.items()}
    optimizers: list[torch.optim.Optimizer] = []
    for name, network in expected.items():
        lr = 0.02 if name == "critic" else 0.1
        named = list(network.named_parameters())
        matrices = [x for key, x in named if f"{name}.{key}" in hidden]
        others = [x for key, x in named if f"{name}.{key}" not in hidden]
        groups: list[dict[str, Any]] = [
            {"params": [x for x in others if x.ndim > 1]},
            {"params": [x for x in others if x.ndim == 1], "weight_decay": 0.0},
        ]
        muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.5, momentum=0.8, adjust_lr_fn=scale)
        adamw = torch.optim.AdamW(groups, lr=lr, weight_decay=0.5, **adam)
        optimizers += [muon, adamw]
    optimizer = optimizer_of(made)
    generator = torch.Generator().manual_seed(0)
    for factor in (1.0, 0.5, 0.25):
        for name, network in expected.items():
            pairs = zip(network.parameters(), made.networks[name].parameters(), strict=True)
            for x, own in pairs:
                x.grad = torch.randn(x.shape, generator=generator)
                own.grad = x.grad.clone()
        for each in [optimizer, *optimizers]:
            for group in each.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
            each.step()
    for name, network in expected.items():
        for x, own in zip(network.parameters(), made.networks[name].parameters(), strict=True):
            assert torch.equal(x, own)


def test_the_closure_runs_once_and_its_value_is_returned() -> None:
    calls: list[int] = []
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    assert Muon([weight]).step(lambda: calls.append(1) or 3.0) == 3.0
    assert calls == [1]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("optimizer.adjust_lr_fn=other", "optimizer: Adjust learning rate function other is not"),
        ("optimizer.momentum=-1", "optimizer.momentum=-1: must be"),
        ("optimizer.nesterov=true", "unknown key optimizer.nesterov"),
    ],
)
def test_a_mistake_is_one_line(typed: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        composed("optimizer=muon", f"+{typed}" if "nesterov" in typed else typed)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_shards(num_ranks: int, tmp_path: Path) -> None:
    ranks.run("tests.support.muon_ranks", [str(tmp_path)], num_ranks=num_ranks)
