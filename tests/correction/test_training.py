"""Corrections in the loop."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from rlmods.aggregation import SequenceMean, TokenMean
from rlmods.algo import Batch
from rlmods.correction import Masked, NoCorrection, Truncated
from rlmods.kl import Penalty
from rlmods.ratio import Clipped, Unclipped
from rlmods.rollout import Local
from rlmods.types import Experience
from tests.correction.rollouts import Shifted
from tests.support.offline import assert_invariant
from tests.support.reference import correction, dense
from tests.support.tiny_setup import (
    close,
    collected,
    fit,
    flat_gradient,
    gradients,
    learner,
    perturb,
)

KINDS = {
    "truncated": Truncated(1.5),
    "truncated sequence": Truncated(1.5, "sequence"),
    "masked": Masked(0.7, 1.5),
    "masked sequence": Masked(0.7, 1.5, "sequence"),
}
SHIFTED = Shifted(max_tokens=8, even=0.5, odd=-0.3)
"""Ratios of 1.65 and 0.74: some are outside of the bounds."""


def off_policy(**change: Any) -> tuple[Any, Experience]:
    """Return a learner whose policy has moved since the rows were sampled, by a sampler that
    disagrees with it, and the rows."""
    made = learner(**{"rollout": replace(SHIFTED)} | change)
    rows = collected(made)
    perturb(made.policy)
    return made, rows


def unweighted(made: Any, rows: Experience) -> torch.Tensor:
    """Return the gradient without a correction."""
    made.correction, before = NoCorrection(), made.correction
    gradient = gradients(made, rows)
    made.correction = before
    return gradient


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
class TestGradient:
    def test_with_equal_logprobs_is_that_without_a_correction(self, kind: Any) -> None:
        made, rows = off_policy(correction=kind)
        rows = replace(rows, behavior_logprobs=rows.old_logprobs)
        assert torch.equal(gradients(made, rows), unweighted(made, rows))

    @pytest.mark.parametrize("aggregation", [TokenMean(), SequenceMean()])
    def test_is_that_of_the_weighted_objective(self, kind: Any, aggregation: Any) -> None:
        """Each token's ratio times its advantage, weighted by the loop of the papers; the
        denominators count every token."""
        made, rows = off_policy(correction=kind, ratio=Unclipped(), aggregation=aggregation)
        found = gradients(made, rows)
        low = getattr(kind, "low", 0.0)
        field, outside = correction(
            rows.old_logprobs,
            rows.behavior_logprobs,
            rows.mask,
            kind.level,
            low,
            kind.high,
            isinstance(kind, Masked),
        )
        assert 0 < len(outside) < len(field)
        made.policy.zero_grad()
        ratio = torch.where(
            rows.mask, made.policy(rows.tokens, rows.mask).logprobs - rows.old_logprobs, 0.0
        ).exp()
        objective = (
            dense(field, rows.mask.shape)
            * torch.where(rows.mask, ratio * rows.advantages, 0.0).double()
        )
        if isinstance(aggregation, TokenMean):
            (-objective.sum() / rows.mask.sum()).backward()
        else:
            (-(objective.sum(1) / rows.mask.sum(1)).mean()).backward()
        close(found, flat_gradient(made.policy))
        assert (found - unweighted(made, rows)).norm() > 0.1 * found.norm()

    def test_does_not_depend_on_microbatches_padding_and_order(self, kind: Any) -> None:
        made, rows = off_policy(correction=kind)
        assert_invariant(made, rows)

    @pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e6])
    def test_does_not_depend_on_masked_slots(self, kind: Any, garbage: float) -> None:
        made, rows = off_policy(correction=kind)
        columns = ("old_logprobs", "behavior_logprobs", "advantages", "rewards")
        poisoned = replace(
            rows, **{name: getattr(rows, name).masked_fill(~rows.mask, garbage) for name in columns}
        )
        assert torch.equal(gradients(made, poisoned), gradients(made, rows))

    def test_in_the_first_minibatch_has_the_new_logprobs_as_old_ones(self, kind: Any) -> None:
        """They are equal there, and not computed before."""
        made = learner(correction=kind, rollout=replace(SHIFTED))
        rows = collected(made)
        close(
            gradients(made, replace(rows, on_policy=torch.ones_like(rows.on_policy))),
            gradients(made, rows),
        )


def test_masked_responses_stay_in_the_denominators() -> None:
    made, rows = off_policy(correction=Masked(level="sequence"))
    masked = torch.arange(len(rows)) % 3 == 0
    behavior = torch.where(masked[:, None], rows.old_logprobs - 5.0, rows.old_logprobs)
    rows = replace(rows, behavior_logprobs=behavior)
    kept = rows.select(~masked)
    close(gradients(made, rows), unweighted(made, kept) * (kept.mask.sum() / rows.mask.sum()))


def test_kl_and_entropy_are_not_weighted() -> None:
    """With every weight 0, they are what is left."""
    made, rows = off_policy(
        correction=Masked(), kl=Penalty("k3", 0.5, "loss"), entropy_coefficient=0.3
    )
    with torch.no_grad():
        for p in made.reference.policy.parameters():
            p.mul_(1.2)
    rows = made.scorer.add_ref_logprobs(
        replace(rows, behavior_logprobs=rows.old_logprobs - 5.0), made.reference.policy
    )
    close(
        gradients(made, rows),
        unweighted(made, replace(rows, advantages=torch.zeros_like(rows.advantages))),
    )


class TestRun:
    def run(self, iterations: int = 2, **change: Any) -> list[dict[str, Any]]:
        return fit(
            learner(**{"batch": Batch(prompts=4, samples=4, minibatches=2)} | change), iterations
        )

    def test_without_a_correction_nothing_is_logged(self) -> None:
        assert not any("correction" in name for row in self.run() for name in row)

    def test_of_a_sampler_that_agrees_has_weights_of_1(self) -> None:
        for row in self.run(correction=Truncated()):
            assert row["train/correction_mean"] == pytest.approx(1.0, abs=1e-4)
            assert row["train/correction_ess"] == pytest.approx(1.0, abs=1e-4)
            assert row["train/correction_truncated"] == row["train/correction_masked"] == 0

    @pytest.mark.parametrize(
        "change",
        [{"replay_fraction": 0.5}, {"batch": Batch(prompts=4, samples=4, epochs=3, minibatches=2)}],
    )
    def test_compares_the_sampler_with_the_policy_that_sampled(
        self, change: dict[str, Any]
    ) -> None:
        """And not with the current one, whose distance from it is in the ratio."""
        rows = self.run(
            4, correction=Truncated(), optimizer=partial(torch.optim.SGD, lr=0.5), **change
        )
        assert max(row["train/ratio_max"] for row in rows) > 1.05
        for row in rows:
            assert row["train/correction_mean"] == pytest.approx(1.0, abs=1e-4)
            assert row["train/correction_ess"] == pytest.approx(1.0, abs=1e-4)

    def test_of_nucleus_sampling_is_weighted_by_the_mass_of_the_nucleus(self) -> None:
        """Where the sampler divides by the mass it kept, at least `top_p`, the trainer's
        probability is lower by this factor."""
        rows = self.run(correction=Truncated(), rollout=Local(max_tokens=8, top_p=0.8))
        for row in rows:
            assert 0.8 <= row["train/correction_mean"] < 0.99
            assert 0.9 < row["train/correction_ess"] <= 1.0
            assert row["train/correction_truncated"] == 0
            assert row["train/sampler_logprob_gap"] == pytest.approx(
                -math.log(row["train/correction_mean"]), abs=0.02
            )
            assert row["train/grad_norm"] > 0

    def test_reports_what_is_truncated_and_masked(self) -> None:
        far = Shifted(max_tokens=8, even=1.0, odd=-2.0)
        for row in self.run(correction=Truncated(), rollout=far, batch=Batch(prompts=4, samples=4)):
            share = row["train/correction_truncated"]
            assert 0 < share < 1
            mean, squares = (
                2 * share + math.exp(-2) * (1 - share),
                4 * share + math.exp(-4) * (1 - share),
            )
            assert row["train/correction_mean"] == pytest.approx(mean, rel=1e-3)
            assert row["train/correction_ess"] == pytest.approx(mean**2 / squares, rel=1e-3)
            assert row["train/correction_masked"] == 0
        for row in self.run(correction=Masked(), rollout=far, batch=Batch(prompts=4, samples=4)):
            share = 1 - row["train/correction_masked"]
            assert 0 < share < 1
            assert row["train/correction_mean"] == pytest.approx(math.e * share, rel=1e-3)
            assert row["train/correction_ess"] == pytest.approx(share, rel=1e-3)
            assert row["train/correction_truncated"] == 0

    def test_with_every_token_masked_learns_nothing(self) -> None:
        rows = self.run(correction=Masked(), rollout=Shifted(max_tokens=8, even=3.0, odd=3.0))
        for row in rows:
            assert (
                row["train/correction_masked"],
                row["train/correction_ess"],
                row["train/grad_norm"],
            ) == (1, 0, 0)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", [Truncated(), Masked(0.5, 2.0), Truncated(level="sequence")])
    def test_learns_from_truncated_distributions(self, kind: Any) -> None:
        batch, rollout = Batch(prompts=8, samples=8, minibatches=2), Local(max_tokens=8, top_p=0.8)
        rows = fit(
            learner(batch=batch, rollout=rollout, correction=kind, ratio=Clipped(0.2, 0.28)), 15
        )
        assert rows[-1]["train/reward"] > rows[0]["train/reward"] + 0.15
