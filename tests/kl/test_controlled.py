import copy

import pytest
import torch

from rlmods.kl import Adaptive, Penalty, Ramp
from rlmods.needs import KLNeeds, needs_of
from rlmods.protocols import KL, Controller
from tests.kl.bandit import distance, improve, start
from tests.support.batches import batch

SHARED = {"estimator": "k1", "coefficient": 0.2, "where": "reward"}
PARTS = {
    "adaptive": lambda **change: Adaptive(**SHARED | {"target": 0.1, "horizon": 100.0} | change),
    "ramp": lambda **change: Ramp(**SHARED | {"final": 0.1, "iterations": 4} | change),
}
every = pytest.mark.parametrize("name", PARTS)


def metrics(kl: float, responses: int = 50) -> dict[str, float]:
    return {"train/kl_ref": kl, "train/responses": float(responses)}


@every
class TestBoth:
    @pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
    def test_estimate_equals_that_of_penalty(self, name: str, estimator: str) -> None:
        b, part = batch(4, 5, seed=1), PARTS[name](estimator=estimator)
        for _ in range(2):
            assert torch.equal(
                part(b.values, b.rewards), Penalty(estimator, 1.0, "reward")(b.values, b.rewards)
            )
            part.on_iteration_end(metrics(1.0))
        assert part.coefficient != 0.2

    def test_implements_kl_and_controller(self, name: str) -> None:
        part = PARTS[name]()
        assert isinstance(part, KL)
        assert isinstance(part, Controller)
        assert needs_of(part, KLNeeds).reference
        assert (part.coefficient, part.where) == (0.2, "reward")

    def test_state_is_restored_exactly(self, name: str) -> None:
        part, other = PARTS[name](), PARTS[name]()
        part.on_iteration_end(metrics(0.11))
        part.on_iteration_end(metrics(0.3))
        other.load_state_dict(copy.deepcopy(part.state_dict()))
        for _ in range(3):
            assert other.coefficient == part.coefficient != 0.2
            part.on_iteration_end(metrics(0.07))
            other.on_iteration_end(metrics(0.07))


class TestAdaptive:
    @pytest.mark.parametrize(
        ("kl", "responses", "factor"),
        [
            (0.1, 50, 1.0),
            (0.11, 50, 1 + 0.1 * 0.5),
            (0.095, 50, 1 - 0.05 * 0.5),
            (5.0, 50, 1 + 0.2 * 0.5),
            (-5.0, 50, 1 - 0.2 * 0.5),  # the mean of k1 can be negative
            (5.0, 200, 1 + 0.2 * 2),
            (5.0, 0, 1.0),
        ],
    )
    def test_formula(self, kl: float, responses: int, factor: float) -> None:
        part = PARTS["adaptive"]()
        part.on_iteration_end(metrics(kl, responses))
        assert part.coefficient == pytest.approx(0.2 * factor, rel=1e-12)

    def test_coefficient_stays_positive(self) -> None:
        part = PARTS["adaptive"](horizon=1.0)
        for _ in range(20):
            part.on_iteration_end(metrics(0.0))
            assert part.coefficient > 0

    @pytest.mark.parametrize("missing", ["train/kl_ref", "train/responses"])
    def test_coefficient_is_kept_without_a_metric(self, missing: str) -> None:
        part = PARTS["adaptive"]()
        part.on_iteration_end({k: v for k, v in metrics(9.0).items() if k != missing})
        assert part.coefficient == 0.2

    @pytest.mark.parametrize("coefficient", [0.02, 2.0])
    def test_kl_of_a_bandit_reaches_the_target(self, coefficient: float) -> None:
        part, logits = PARTS["adaptive"](coefficient=coefficient), start()
        for _ in range(150):
            logits = improve(logits, part, steps=5)
            part.on_iteration_end(metrics(distance(logits), 100))
        assert distance(logits) == pytest.approx(0.1, rel=0.1)

    @pytest.mark.parametrize(("kl", "bound"), [(0.0, 0.05), (9.0, 0.4)])
    def test_coefficient_returns_from_its_bounds(self, kl: float, bound: float) -> None:
        part = PARTS["adaptive"](minimum=0.05, maximum=0.4)
        for _ in range(2000):
            part.on_iteration_end(metrics(kl))
        assert part.coefficient == bound
        part.on_iteration_end(metrics(9.0 - kl))
        assert part.coefficient == pytest.approx(0.055 if bound == 0.05 else 0.36)


class TestRamp:
    @pytest.mark.parametrize(("first", "last"), [(0.2, 0.1), (0.0, 0.4)])
    def test_changes_linearly_and_stays_at_the_final_value(self, first: float, last: float) -> None:
        part, coefficients = PARTS["ramp"](coefficient=first, final=last), []
        for _ in range(7):
            coefficients.append(part.coefficient)
            part.on_iteration_end({})
        assert coefficients == pytest.approx(
            [first + (last - first) * progress for progress in (0, 0.25, 0.5, 0.75, 1, 1, 1)]
        )
        assert coefficients[-1] == pytest.approx(last, rel=1e-12)

    def test_settings_at_their_bounds(self) -> None:
        part = PARTS["ramp"](coefficient=0.2, final=0.0, iterations=1)
        part.on_iteration_end({})
        assert part.coefficient == 0.0
