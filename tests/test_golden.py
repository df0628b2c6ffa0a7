"""Comparison with values and gradients of an independent float64 reference, read from a file
outside of the repository."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.advantage import GAE, RLOO, GroupMean, GroupNorm
from rlmods.aggregation import FixedLength, SequenceMean, TokenMean
from rlmods.kl import Penalty
from rlmods.ratio import CISPO, Clipped, Soft, Unclipped
from rlmods.types import Totals
from tests.support.batches import gradient

FILE = Path(__file__).parents[1].parent / "shared" / "golden" / "rl_math.json"
GOLDEN: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}

pytestmark = pytest.mark.skipif(
    not GOLDEN, reason="no golden numbers beside the repository (../shared/golden/rl_math.json)"
)

ADVANTAGES = {
    "group_norm(unbiased std, eps=1e-6)": GroupNorm(),
    "group_mean (Dr.GRPO)": GroupMean(),
    "rloo": RLOO(),
}
RATIOS = {
    "symmetric(0.2)": Clipped(),
    "clip_higher(0.2,0.28)": Clipped(0.2, 0.28),
    "dual_clip(0.2,0.2,c=3)": Clipped(dual=3.0),
    "sequence(3e-4,4e-4)": Clipped(3e-4, 4e-4, "sequence"),
    "sequence(0.1,0.1)": Clipped(0.1, 0.1, "sequence"),
    "sequence_token(0.1,0.1)": Clipped(0.1, 0.1, "sequence_token"),
    "soft(tau_pos=1,tau_neg=1.05)": Soft(),
    "cispo(no lower, max=1.28)": CISPO(),
    "cispo(0.8..1.28)": CISPO(0.2, 0.28),
    "none (plain importance ratio)": Unclipped(),
}


def close(actual: Tensor | float, expected: Any) -> None:
    actual = torch.as_tensor(actual, dtype=torch.float64).detach()
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0
    )


def read(name: str) -> Tensor:
    return torch.tensor(GOLDEN[name], dtype=torch.float64)


@pytest.fixture
def mask() -> Tensor:
    return torch.tensor(GOLDEN["mask"])


@pytest.fixture
def group() -> Tensor:
    return torch.tensor(GOLDEN["group"])


@pytest.fixture
def totals(mask: Tensor) -> Totals:
    return Totals(mask.sum(), mask.any(1).sum())


def outcome_rewards(mask: Tensor) -> Tensor:
    """Return rewards with each response's score on its last token."""
    last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    return torch.where(last, read("scores")[:, None], 0)


@pytest.mark.parametrize("name", GOLDEN.get("advantages", ()))
def test_group_advantages(name: str, mask: Tensor, group: Tensor) -> None:
    actual = ADVANTAGES[name](outcome_rewards(mask), mask, group).advantages
    close(
        actual,
        torch.where(
            mask, torch.tensor(GOLDEN["advantages"][name], dtype=torch.float64)[:, None], 0
        ),
    )


@pytest.mark.parametrize("name", GOLDEN.get("gae", ()))
def test_gae(name: str, mask: Tensor, group: Tensor) -> None:
    gamma, lam = (
        float(x.partition("=")[2]) for x in name.removeprefix("gae(").removesuffix(")").split(",")
    )
    credit = GAE(gamma, lam)(read("rewards"), mask, group, read("values"))
    close(credit.advantages, GOLDEN["gae"][name]["advantages"])
    close(credit.returns, GOLDEN["gae"][name]["returns"])


@pytest.mark.parametrize(
    "case", GOLDEN.get("losses", ()), ids=lambda c: f"{c['ratio']}-{c['aggregation']}"
)
def test_losses_and_gradients(
    case: dict[str, Any], mask: Tensor, group: Tensor, totals: Totals
) -> None:
    aggregations = {
        "token_mean": TokenMean(),
        "sequence_mean": SequenceMean(),
        "fixed_length": FixedLength(GOLDEN["fixed_length"]),
    }
    aggregation, ratio = aggregations[case["aggregation"]], RATIOS[case["ratio"]]
    advantages = ADVANTAGES[GOLDEN["losses_use_advantage"]](
        outcome_rewards(mask), mask, group
    ).advantages
    new = read("new_logprobs").requires_grad_()
    loss = -aggregation(ratio(new - read("old_logprobs"), advantages, mask).objective, mask, totals)
    grad = gradient(loss, new)
    close(grad, case["grad_new_logprobs"])
    if isinstance(ratio, CISPO):
        # The reference's objective is weight * A * log pi, ours weight * A * log(pi / pi_old): the
        # gradients are equal. The weight is a constant, so the reference's value is the gradient
        # times log pi.
        loss = (grad * new).sum()
    close(loss, case["loss"])


@pytest.mark.parametrize("case", GOLDEN.get("kl", ()), ids=lambda c: c["estimator"])
def test_kl(case: dict[str, Any], mask: Tensor, totals: Totals) -> None:
    new = read("new_logprobs").requires_grad_()
    kl = Penalty(case["estimator"], 1.0, "loss")(new, read("ref_logprobs"))
    close(torch.where(mask, kl, 0), case["per_token"])
    mean = TokenMean()(kl, mask, totals)
    close(mean, case["token_mean"])
    close(gradient(mean, new), case["grad_new_logprobs"])
    exact = TokenMean()(
        Penalty(case["estimator"], 1.0, "loss", "exact")(new, read("ref_logprobs")), mask, totals
    )
    close(exact, case["token_mean"])
    k2 = next(c for c in GOLDEN["kl"] if c["estimator"] == "k2")
    close(gradient(exact, new), k2["grad_new_logprobs"])
