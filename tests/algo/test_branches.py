"""Trees of responses in the training loop."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning import Callback

from rlmods.advantage import BranchNorm, GroupNorm
from rlmods.algo import Batch
from rlmods.lab.credit import credit
from rlmods.rollout import Local
from rlmods.types import Branch, Prompt, Response, TokenFloats
from tests.support.tiny_setup import close, collected, fit, flat, gradients, learner

NUM_SAMPLES = 4


class Branching(Local):
    """Samples of which the second and third of each prompt begin like the one before, up to their
    last token."""

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        responses = super().generate(prompts, samples=samples, iteration=iteration)
        for i, response in enumerate(responses):
            if (index := response.meta["sample"]) in (1, 2):
                parent = responses[i - 1]
                shared = min(len(parent.tokens), len(response.tokens)) - 1
                responses[i] = replace(
                    response,
                    tokens=[*parent.tokens[:shared], *response.tokens[shared:]],
                    behavior_logprobs=[
                        *parent.behavior_logprobs[:shared],
                        *response.behavior_logprobs[shared:],
                    ],
                    branch=Branch(index - 1, shared),
                )
        return responses


def made(advantage: Any, rollout: Any = None, **changes: Any) -> Any:
    parts = {
        "advantage": advantage,
        "rollout": rollout or Branching(max_tokens=8),
        "reward": last,
        "batch": Batch(prompts=4, samples=NUM_SAMPLES),
    }
    return learner(**parts | changes)


class Samples(Callback):
    """Keep the rows of the sample log."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_iteration_end(self, trainer: Any, learner: Any, metrics: Any) -> None:
        self.rows = list(learner.samples)


def last(responses: list[Response]) -> list[float]:
    """Score the last token, which no two responses share."""
    return [float(r.tokens[-1] % 2) for r in responses]


def gradient(advantage: Any) -> tuple[torch.Tensor, TokenFloats]:
    """Gradient of the first optimizer step, and the advantages of its rows."""
    trained = made(advantage)
    rows = collected(trained)
    return gradients(trained, rows), rows.advantages


def test_hard_and_soft_attribution_have_the_same_first_gradient() -> None:
    soft, expected, hard = (
        gradient(part) for part in (BranchNorm(attribution="soft"), GroupNorm(), BranchNorm())
    )
    assert torch.equal(soft[0], expected[0])
    assert not torch.allclose(hard[1], soft[1])
    close(hard[0], soft[0])


@pytest.mark.parametrize("minibatches", [1, 2])
def test_training_reports_the_trees(minibatches: int) -> None:
    trained = made(
        BranchNorm(),
        batch=Batch(prompts=4, samples=NUM_SAMPLES, minibatches=minibatches, token_budget=64),
    )
    samples = Samples()
    rows = fit(trained, 2, callbacks=(samples,))
    assert rows[-1]["train/grad_norm"] > 0
    branches = [row["branch"] for row in samples.rows]
    assert [x["parent"] for x in branches] == [None, 0, 1, None] * 4
    runs = [credit(row) for row in samples.rows]
    assert any(len({value for _, _, value in x}) > 1 for x in runs)
    ends = [x[-1][1] for x in runs]
    assert ends == [len(row["tokens"]) for row in samples.rows]


def test_without_branches_training_is_that_of_group_norm_bit_for_bit() -> None:
    states = []
    for part in (BranchNorm(), GroupNorm()):
        trained = made(part, Local(max_tokens=8))
        samples = Samples()
        fit(trained, 2, callbacks=(samples,))
        states.append(flat(trained.policy))
        assert all("branch" not in row for row in samples.rows)
    assert torch.equal(*states)
