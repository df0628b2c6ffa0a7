"""Every selection of tokens with every option of the other groups: refused in words that name the
selection, or the tokens that the loop over them says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlmods.algo import PolicyGradient
from rlmods.config import build
from rlmods.distributed import trainer as trainers
from rlmods.errors import UserError
from rlmods.training.selection import TokenSelection
from rlmods.types import Experience
from tests.support.composed import ALGORITHMS, CONF, algorithm, composed
from tests.support.tiny_setup import Log
from tests.training.test_selection import PARTS, distributions, expected_tokens

NAMES = ("entropy", "clip_cov", "kl_cov", "off_policy")
SMALL = (
    "batch.prompts=4",
    "batch.samples=4",
    "batch.epochs=1",
    "batch.minibatches=2",
    "batch.token_budget=512",
    "rollout.max_tokens=8",
    "validation.every=null",
    "validation.max_prompts=1",
    "data.num_train=64",
    "data.num_val=8",
)
CRITIC = ("critic=separate",)
GAME = ("data=hidden_number", "environment=guess_number", "reward=length")
NEEDED = {
    "advantage=gae": CRITIC,
    "advantage=gae_whitened": CRITIC,
    "advantage=n_step": CRITIC,
    "advantage=sum": ("+advantage@advantage.terms.a.estimator=group_norm",),
    "algo=arpo": ("environment.max_turns=4",),
    "algo=ppo": ("batch.samples=4",),
    "branching=entropy": GAME,
    "critic=separate": ("advantage=gae",),
    "critic=shared": ("advantage=gae",),
    "environment=guess_number": GAME[:1] + GAME[2:],
    "environment=tools": ("data=long_sums", "reward=length", "environment.max_tokens=12"),
}
"""Further overrides that an option needs."""
WITHOUT = ("data", "policy", "reference", "reward", "rollout", "router")
"""Groups that do not change what a selection reads. tests/training/test_expert_routing.py has the
routers."""


def options() -> list[str]:
    algorithms = [a for a in ALGORITHMS if issubclass(algorithm(a), PolicyGradient)]
    found = [f"algo={a}" for a in algorithms]
    for group in PolicyGradient.config_groups:
        if group not in (*WITHOUT, "tokens"):
            found += [f"{group}={path.stem}" for path in sorted((CONF / group).glob("*.yaml"))]
    return found


def typed(option: str) -> tuple[str, ...]:
    base = () if option.startswith("algo=") else ("algo=grpo",)
    return (*base, *SMALL, option, *NEEDED.get(option, ()))


def refusal(*typed: str) -> str | None:
    try:
        composed(*typed)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.nightly
@pytest.mark.parametrize("option", options())
def test_is_right_or_refused(option: str) -> None:
    message = refusal(*typed(option))
    if message is not None:
        pytest.skip(f"refused with all tokens too: {message}")
    run = build.load(composed(*typed(option)))
    parts = []
    for name, part in zip(NAMES, PARTS, strict=True):
        message = refusal(*typed(option), f"tokens={name}")
        if message is None:
            parts.append(part)
        else:
            assert f"tokens={name}" in message
            assert ": type " in message
    learner: Any = run.learner
    step = learner.train_step
    checked = 0

    def spy(minibatch: Experience, *more: Any) -> None:
        nonlocal checked
        for part in parts:
            learner.tokens = TokenSelection(part)
            rows = learner.select_tokens(minibatch)
            with torch.no_grad():
                found = learner.tokens(rows, learner.scorer.score(rows, learner.policy))
                every = distributions(learner, rows)
            expected = expected_tokens(part, every, rows, learner.optimizer_steps)
            assert {tuple(x) for x in found.nonzero().tolist()} == expected
            checked += int(rows.mask.any())
        learner.tokens = TokenSelection(parts[learner.iteration % len(parts)])
        step(minibatch, *more)

    learner.train_step = spy
    log = Log()
    trainer = trainers.build(
        max_iterations=2, callbacks=[], loggers=[log], accelerator="cpu", devices=1
    )
    trainer.fit(learner, datamodule=run.data())
    assert checked >= len(parts)
    trained = [row for row in log.rows if "train/reward" in row]
    assert len(trained) == 2
    assert all(row["train/grad_norm"] < float("inf") for row in trained)
