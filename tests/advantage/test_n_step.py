import torch
from hypothesis import given, strategies as st

from rlmods.advantage import GAE, NStep
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import dense, true_slots

RATES = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@few
@given(batches, st.integers(1, 9), RATES)
def test_equals_the_loop_whatever_is_in_masked_slots(b: Batch, n: int, gamma: float) -> None:
    returns = {}
    for i, ts in enumerate(true_slots(b.mask)):
        for k, t in enumerate(ts):
            returns[i, t] = sum(gamma**j * b.rewards[i, u] for j, u in enumerate(ts[k : k + n]))
            if k + n < len(ts):
                returns[i, t] = returns[i, t] + gamma**n * b.values[i, ts[k + n]]
    expected = dense(returns, b.mask.shape)
    p = b.poisoned()
    credit = NStep(n, gamma)(p.rewards, p.mask, p.group, p.values)
    torch.testing.assert_close(credit.returns, expected)
    torch.testing.assert_close(credit.advantages, torch.where(b.mask, expected - b.values, 0))


@few
@given(batches, RATES, st.sampled_from([(1, 0.0), (7, 1.0), (99, 1.0)]))
def test_the_limits_are_those_of_gae(b: Batch, gamma: float, limit: tuple[int, float]) -> None:
    n, lam = limit
    one, other = (
        part(b.rewards, b.mask, b.group, b.values) for part in (NStep(n, gamma), GAE(gamma, lam))
    )
    torch.testing.assert_close(one.advantages, other.advantages)
    torch.testing.assert_close(one.returns, other.returns)


def test_gae_is_the_mean_of_n_step_advantages() -> None:
    """GAE(lambda) = (1 - lambda) sum_n lambda^{n-1} A^(n), the last one with the remaining weight
    (arXiv:1506.02438, equation 16)."""
    b, lam = batch(5, 6, seed=3), 0.7
    steps = [NStep(n, 0.9)(b.rewards, b.mask, b.group, b.values).advantages for n in range(1, 7)]
    mean = (
        sum((1 - lam) * lam ** (n - 1) * a for n, a in enumerate(steps[:-1], 1))
        + lam**5 * steps[-1]
    )
    torch.testing.assert_close(GAE(0.9, lam)(b.rewards, b.mask, b.group, b.values).advantages, mean)
