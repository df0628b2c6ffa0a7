import torch
from hypothesis import given, strategies as st

from rlmods.sampling import BestOf
from tests.support.batches import few

NAN = float("nan")
ROWS = st.lists(
    st.tuples(st.integers(-2, 2), st.sampled_from([NAN, -1.0, 0.0, 0.5, 1.0, 2.0])),
    min_size=1,
    max_size=20,
)


@few
@given(ROWS, st.integers(1, 4), st.sampled_from([-1.0, 0.5, 1.0]))
def test_equals_the_loop(rows: list[tuple[int, float]], k: int, threshold: float) -> None:
    keep = BestOf(k, threshold)(
        torch.tensor([s for _, s in rows]), torch.tensor([g for g, _ in rows])
    )
    expected = set()
    for group in {g for g, _ in rows}:
        passed = [(-s, i) for i, (g, s) in enumerate(rows) if g == group and s >= threshold]
        expected |= {i for _, i in sorted(passed)[:k]}
    assert {i for i, kept in enumerate(keep.tolist()) if kept} == expected


def test_unscored_responses_are_not_kept() -> None:
    assert not BestOf(threshold=-1e9)(torch.full((3,), NAN), torch.zeros(3, dtype=torch.long)).any()
    assert BestOf()(torch.zeros(0), torch.zeros(0, dtype=torch.long)).tolist() == []
