"""Training on sessions of programs: every algorithm with a policy gradient, failures, resumed runs
and ranks."""

from typing import Any

import lightning as L
import pytest
import torch

from rlmods.advantage import GAE
from rlmods.algo import PPO, Batch
from rlmods.critic import Separate
from rlmods.environment import Agent
from rlmods.kl import Penalty
from rlmods.ratio import Clipped
from rlmods.reward import EnvironmentReward
from rlmods.rollout import Local, MultiTurn
from tests.support.tiny_setup import collected, fit, flat, learner

AGENTS = "tests.support.agents:"
VARIANTS: dict[str, dict[str, Any]] = {
    "token ratio": {},
    "sequence ratio": {"ratio": Clipped(level="sequence")},
    "ppo": {
        "kind": PPO,
        "advantage": GAE(0.9, 0.8),
        "critic": Separate(),
        "kl": Penalty("k1", 0.1, "reward"),
        "reward": EnvironmentReward(by_turn=True),
    },
}


def made(agent: str, **changes: Any) -> Any:
    options = {"timeout_s": 1.0, "parallel": "committee" in agent, "max_tokens": 200}
    environment = Agent(agent=f"{AGENTS}{agent}", **options)
    rollout = MultiTurn(Local(max_tokens=6), environment)
    parts = {"rollout": rollout, "reward": EnvironmentReward(), "batch": Batch(2, 4)}
    return learner(**parts | changes)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("agent", ["forgets", "committee", "fails_at_times"])
def test_trains(agent: str, variant: str) -> None:
    module = made(agent, **VARIANTS[variant])
    before = flat(module.policy)
    fit(module, iterations=2)
    assert not torch.equal(flat(module.policy), before)
    assert flat(module.policy).isfinite().all()


def test_a_failed_session_has_no_loss() -> None:
    module = made("fails_at_times")
    batch = collected(module)
    failed = ~batch.mask.any(1)
    assert 0 < int(failed.sum()) < len(batch)
    assert not batch.advantages[failed].any()


@pytest.mark.parametrize("agent", ["delayed_committee", "delayed_script"])
def test_repeats_bit_for_bit(agent: str) -> None:
    weights = []
    for _ in range(2):
        L.seed_everything(0)
        module = made(agent)
        fit(module, iterations=2)
        weights.append(flat(module.policy))
    assert torch.equal(*weights)
