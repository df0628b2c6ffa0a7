import pytest

from rlmods.algo import SFT, Batch
from rlmods.protocols import Controller
from rlmods.schedule import KLAdaptive
from tests.support.tiny_setup import fit, learner


def after(schedule: KLAdaptive, *kls: float) -> float:
    for kl in kls:
        schedule.on_iteration_end({"train/kl_old": kl})
    return schedule(len(kls), 100)


class TestKLAdaptive:
    @pytest.mark.parametrize(
        ("kl", "factor"),
        [
            (0.021, 1 / 1.5),
            (0.02, 1.0),
            (0.005, 1.0),
            (0.019, 1.0),
            (0.01, 1.0),
            (0.0051, 1.0),
            (0.0049, 1.5),
            (0.0, 1.0),
            (-1e-9, 1.0),
        ],
    )
    def test_factor_changes_outside_of_the_band(self, kl: float, factor: float) -> None:
        assert after(KLAdaptive(target=0.01), kl) == pytest.approx(factor)

    @pytest.mark.parametrize(("kl", "bound"), [(1.0, 0.2), (1e-4, 3.0)])
    def test_factor_returns_from_its_bounds(self, kl: float, bound: float) -> None:
        schedule = KLAdaptive(target=0.01, minimum=0.2, maximum=3.0)
        assert after(schedule, *[kl] * 500) == bound
        assert after(schedule, 1.0 if kl < 0.01 else 1e-4) == pytest.approx(
            2.0 if bound == 3 else 0.3
        )

    def test_factor_is_kept_without_the_metric(self) -> None:
        schedule = KLAdaptive()
        schedule.on_iteration_end({"train/kl_ref": 9.0})
        assert schedule(1, 2) == 1.0

    def test_state_is_restored_exactly(self) -> None:
        one, other = KLAdaptive(), KLAdaptive()
        after(one, 1.0, 1.0)
        other.load_state_dict(one.state_dict())
        assert other(0, 1) == one(0, 1) != 1.0
        assert isinstance(one, Controller)

    def test_learning_rate_of_the_next_iteration_follows_the_kl_of_this_one(self) -> None:
        made = learner(
            schedule=KLAdaptive(target=1e-9, rate=2.0),
            batch=Batch(prompts=4, samples=4, minibatches=4),
        )
        rows = fit(made, 4)
        assert all(row["train/kl_old"] > 2e-9 for row in rows)
        assert [row["train/lr"] for row in rows] == pytest.approx([1e-2, 5e-3, 2.5e-3, 1.25e-3])
        assert made.checkpoint.state()["parts"]["schedule"] == {"factor": 0.1}

    def test_algorithms_without_a_ratio_keep_their_learning_rate(self) -> None:
        rows = fit(learner(SFT, schedule=KLAdaptive()), 2)
        assert [row["train/lr"] for row in rows if "train/lr" in row] == [1e-2, 1e-2]
