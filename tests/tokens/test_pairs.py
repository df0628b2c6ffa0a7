"""A selection of tokens beside every option of the other groups.

The loss of a policy gradient is a sum over tokens, and tokens that are left out stay in its
denominators. So the gradients of a selection and of its complement have the sum

    g(selected) + g(others) = g(all) + g(none)

whatever the advantages, the ratio, the KL term, the aggregation, the critic and the correction are.
A selection that changed a denominator, or reached a term that it does not belong to, would differ.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from rlmods.config import build
from rlmods.config.compose import PARTS
from rlmods.errors import UserError
from rlmods.needs import TokenNeeds
from rlmods.training.parts import TokenSelection
from rlmods.types import Experience, Surrogate, TokenFloats, TokenMask
from tests.support.composed import ALGORITHMS, CONF, algorithm, alone, composed
from tests.support.tiny_setup import fit, gradients, perturb
from tests.support.two_ranks import AGENT, BRANCHES, GAME

APART = (
    *("tokens", "judge", "preference", "ranking"),
    *("reward", "rollout", "router", "reference"),
)
"""Groups that are left out: those that no algorithm with `tokens` uses, and those whose options
change the numbers of a batch and not the loss, or need a server, a mixture of experts or another
model."""
GROUPS = [group for group in (*PARTS, "adapter") if group not in APART]
STEPS = (
    "experiment=tunnel/steps",
    "reward.terms.calculations.weight=1",
    "rollout.max_tokens=64",
)
SIBLING = ("advantage=teacher", "teacher=self", "teacher.sibling=true", "teacher.success=0")
NEEDED: dict[str, tuple[str, ...]] = {
    "advantage=anchor_state": GAME,
    "advantage=branch_hard": (*GAME, *BRANCHES),
    "advantage=branch_soft": (*GAME, *BRANCHES),
    "advantage=gae": ("critic=separate",),
    "advantage=gae_whitened": ("critic=separate",),
    "advantage=n_step": ("critic=separate",),
    "advantage=max_rl": ("reward=accuracy",),
    "advantage=process": STEPS,
    "advantage=process_outcome": STEPS,
    "advantage=sum": ("+advantage@advantage.terms.a.estimator=group_mean",),
    "advantage=teacher": SIBLING[1:],
    "advantage=tree": (*GAME, *BRANCHES),
    "advantage=turn_norm": GAME,
    "branching=entropy": (*GAME, *BRANCHES, "advantage=tree"),
    "critic=separate": ("advantage=gae",),
    "critic=shared": ("advantage=gae",),
    "environment=agent": AGENT,
    "environment=guess_number": GAME,
    "environment=tools": ("data=long_sums", "environment.max_tokens=12", "reward=length"),
    "teacher=self": SIBLING,
    "teacher=local": (
        "advantage=teacher",
        "+policy@teacher.policy=tiny",
        "teacher.policy.pretrained=false",
    ),
}
"""What else to type for an option."""
OWN: dict[str, tuple[str, ...]] = {
    "arpo": (*GAME, "branching.num_initial=1", "environment.max_turns=4"),
    "distill": ("teacher.policy.pretrained=false",),
    "iterative_grpo": ("algo.refresh_prompts=4",),
}
"""What else to type for an algorithm."""
SIZE = (
    "batch.prompts=4",
    "batch.samples=4",
    "batch.epochs=2",
    "batch.token_budget=128",
    "rollout.max_tokens=8",
    "validation.every=null",
)
WHOLE = ("ratio=geometric_mean", "ratio=sequence")
"""Options with one ratio for each response, which refuse a selection of single tokens."""
QUICK = ("kl=full", "ratio=sequence")
"""Options of `make test`."""


def options() -> list[str]:
    """Return the options of the groups, without the one that needs a server."""
    paths = [path for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
    found = [f"{path.parent.name}={path.stem}" for path in paths]
    found.remove("teacher=server")
    return found


def users() -> list[str]:
    """Return the algorithms that select tokens."""
    return [algo for algo in ALGORITHMS if "tokens" in algorithm(algo).config_groups]


@dataclass(frozen=True)
class Picked:
    """Selects half of the tokens by their draws, all, or none."""

    kind: str

    needs: ClassVar[TokenNeeds] = TokenNeeds(step=True, draws=True)

    def __call__(
        self, logprobs: TokenFloats, advantages: TokenFloats, mask: TokenMask, draws: TokenFloats
    ) -> TokenMask:
        if self.kind == "all":
            return mask
        if self.kind == "none":
            return torch.zeros_like(mask)
        is_low = draws < 0.5
        return mask & (is_low if self.kind == "half" else ~is_low)


class Penalized(Picked):
    """The same, with another objective for the tokens that are left out."""

    def others(self, objective: TokenFloats, log_ratio: TokenFloats) -> TokenFloats:
        return 0.25 * objective - log_ratio.square()


class PickedRows(Picked):
    """Selects every other one of the responses with an advantage."""

    def __call__(
        self, logprobs: TokenFloats, advantages: TokenFloats, mask: TokenMask, draws: TokenFloats
    ) -> TokenMask:
        has_advantage = (mask & (advantages != 0)).any(1, keepdim=True)
        parity = (has_advantage.cumsum(0) % 2).expand_as(draws)
        return super().__call__(logprobs, advantages, mask, parity)


def captured(overrides: tuple[str, ...], folder: Path) -> tuple[Any, Experience]:
    """Return a learner, whose policy has moved since it sampled, and the rows of its iteration."""
    made = build.load(composed(*SIZE, *overrides, f"run_dir={folder / 'run'}"))
    learner: Any = made.learner
    kept: list[Experience] = []

    def stop(batch: Experience, plan: Any) -> tuple[int, bool]:
        kept.append(batch)
        return 0, True

    learner.optimize = stop
    fit(learner, 1, splits=made.splits)
    for network in learner.networks.values():
        perturb(network, 0.003)
    [batch] = kept
    return learner, replace(batch, on_policy=torch.zeros_like(batch.on_policy))


def check_partition(learner: Any, rows: Experience, part: Any) -> None:
    """Check g(half) + g(other half) = g(all) + g(none), and that nothing but the ratio's objective
    is selected: g(none) = g(all) of a ratio without an objective."""

    def gradient(kind: str) -> Tensor:
        learner.tokens = TokenSelection(part(kind))
        return gradients(learner, rows).double()

    half, rest, everything, nothing = map(gradient, ("half", "rest", "all", "none"))
    size = everything.norm()
    assert size > 0
    assert (half - everything).norm() > 1e-3 * size
    assert (rest - everything).norm() > 1e-3 * size
    assert (half + rest - everything - nothing).norm() < 1e-5 * size
    if part is not Penalized:
        ratio = learner.ratio
        learner.ratio = silent
        of_others = gradient("all")
        learner.ratio = ratio
        assert (nothing - of_others).norm() < 1e-5 * size


def silent(log_ratio: TokenFloats, *_: Any, **__: Any) -> Surrogate:
    """A ratio without an objective."""
    return Surrogate(0.0 * log_ratio, torch.zeros_like(log_ratio, dtype=torch.bool))


@pytest.mark.parametrize(
    "option",
    [pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in options()],
)
def test_beside_every_option(option: str, tmp_path: Path) -> None:
    typed = ("algo=grpo", option, *NEEDED.get(option, ()))
    if option in WHOLE:
        with pytest.raises(UserError, match=r"type ratio=sequence_token, or tokens=all"):
            composed(*typed, "tokens=clip_cov")
    else:
        composed(*typed, "tokens=clip_cov")
    learner, rows = captured((*typed, "tokens=off_policy"), tmp_path)
    check_partition(learner, rows, PickedRows)
    if option not in WHOLE:
        check_partition(learner, rows, Picked)
        check_partition(learner, rows, Penalized)


@pytest.mark.slow
@pytest.mark.parametrize("algo", users())
def test_in_every_algorithm(algo: str, tmp_path: Path) -> None:
    learner, rows = captured((*alone(algo, tmp_path), *OWN.get(algo, ())), tmp_path)
    check_partition(learner, rows, PickedRows)
    if learner.ratio_needs.level != "sequence":
        check_partition(learner, rows, Picked)
        check_partition(learner, rows, Penalized)
