import copy

import pytest
import torch

from rlmods.kl import Adaptive, Penalty, Ramp
from rlmods.protocols import KL, Controller
from tests.kl.bandit import distance, improve, start
from tests.support.batches import batch

SHARED = {"estimator": "k1", "coefficient": 0.2, "where": "reward"}
MADE = {
    "adaptive": lambda **change: Adaptive(**SHARED | {"target": 0.1, "horizon": 100.0} | change),
    "ramp": lambda **change: Ramp(**SHARED | {"final": 0.1, "iterations": 4} | change),
}
every = pytest.mark.parametrize("name", MADE)


def metrics(kl: float, responses: int = 50) -> dict[str, float]:
    return {"train/kl_ref": kl, "train/responses": float(responses)}


@every
class TestBoth:
    @pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
    def test_the_estimate_is_the_penalty_s(self, name: str, estimator: str) -> None:
        b, part = batch(4, 5, seed=1), MADE[name](estimator=estimator)
        for _ in range(2):
            assert torch.equal(part(b.values, b.rewards), Penalty(estimator, 1.0, "reward")(b.values, b.rewards))
            part.on_iteration_end(metrics(1.0))
        assert part.coefficient != 0.2

    def test_is_a_penalty_and_a_controller(self, name: str) -> None:
        part = MADE[name]()
        assert isinstance(part, KL)
        assert isinstance(part, Controller)
        assert part.needs_reference
        assert (part.coefficient, part.where) == (0.2, "reward")

    def test_its_state_is_restored_exactly(self, name: str) -> None:
        part, other = MADE[name](), MADE[name]()
        part.on_iteration_end(metrics(0.11))
        part.on_iteration_end(metrics(0.3))
        other.load_state_dict(copy.deepcopy(part.state_dict()))
        for _ in range(3):
            assert other.coefficient == part.coefficient != 0.2
            part.on_iteration_end(metrics(0.07))
            other.on_iteration_end(metrics(0.07))

    @pytest.mark.parametrize(
        ("bad", "field"), [({"estimator": "k4"}, "estimator"), ({"coefficient": -1.0}, "coefficient"), ({"where": "both"}, "where")]
    )
    def test_bad_fields_are_refused_by_name(self, name: str, bad: dict, field: str) -> None:
        with pytest.raises((ValueError, TypeError), match=field):  # TypeError where types are checked at run time
            MADE[name](**bad)


class TestAdaptive:
    @pytest.mark.parametrize(
        ("kl", "responses", "factor"),
        [
            (0.1, 50, 1.0),
            (0.11, 50, 1 + 0.1 * 0.5),
            (0.095, 50, 1 - 0.05 * 0.5),
            (5.0, 50, 1 + 0.2 * 0.5),
            (-5.0, 50, 1 - 0.2 * 0.5),  # k1's mean can be below 0
            (5.0, 200, 1 + 0.2 * 2),
            (5.0, 0, 1.0),
        ],
    )
    def test_formula(self, kl: float, responses: int, factor: float) -> None:
        part = MADE["adaptive"]()
        part.on_iteration_end(metrics(kl, responses))
        assert part.coefficient == pytest.approx(0.2 * factor, rel=1e-12)

    def test_never_turns_the_sign(self) -> None:
        part = MADE["adaptive"](horizon=1.0)
        for _ in range(20):
            part.on_iteration_end(metrics(0.0))
            assert part.coefficient > 0

    @pytest.mark.parametrize("missing", ["train/kl_ref", "train/responses"])
    def test_without_a_metric_nothing_changes(self, missing: str) -> None:
        part = MADE["adaptive"]()
        part.on_iteration_end({k: v for k, v in metrics(9.0).items() if k != missing})
        assert part.coefficient == 0.2

    @pytest.mark.parametrize("coefficient", [0.02, 2.0])
    def test_steers_a_bandit_to_its_target(self, coefficient: float) -> None:
        part, logits = MADE["adaptive"](coefficient=coefficient), start()
        for _ in range(150):
            logits = improve(logits, part, steps=5)
            part.on_iteration_end(metrics(distance(logits), 100))
        assert distance(logits) == pytest.approx(0.1, rel=0.1)

    @pytest.mark.parametrize("field", ["coefficient", "target", "horizon"])
    def test_what_has_to_be_above_0(self, field: str) -> None:
        with pytest.raises(ValueError, match=field):
            MADE["adaptive"](**{field: 0.0})


class TestRamp:
    @pytest.mark.parametrize(("first", "last"), [(0.2, 0.1), (0.0, 0.4)])
    def test_a_straight_line_that_stays_at_its_end(self, first: float, last: float) -> None:
        part, seen = MADE["ramp"](coefficient=first, final=last), []
        for _ in range(7):
            seen.append(part.coefficient)
            part.on_iteration_end({})
        assert seen == pytest.approx([first + (last - first) * share for share in (0, 0.25, 0.5, 0.75, 1, 1, 1)])
        assert seen[-1] == pytest.approx(last, rel=1e-12)

    @pytest.mark.parametrize(("field", "bad"), [("final", -0.1), ("final", float("inf")), ("iterations", 0)])
    def test_bad_ends_are_refused_by_name(self, field: str, bad: float) -> None:
        with pytest.raises(ValueError, match=field):
            MADE["ramp"](**{field: bad})
