import pytest

from rlmods.schedule import Schedule


def factors(schedule: Schedule, iterations: int) -> list[float]:
    return [schedule(i, iterations) for i in range(iterations)]


class TestSchedule:
    def test_constant(self) -> None:
        assert factors(Schedule(), 4) == [1.0] * 4

    def test_warmup_starts_above_0_and_ends_at_1(self) -> None:
        assert factors(Schedule(warmup=4), 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])

    def test_linear(self) -> None:
        assert factors(Schedule(decay="linear"), 5) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])

    def test_cosine(self) -> None:
        assert factors(Schedule(decay="cosine"), 5) == pytest.approx(
            [1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0.0]
        )

    @pytest.mark.parametrize("decay", ["linear", "cosine"])
    def test_decay_starts_at_1_after_warmup_and_ends_at_final(self, decay: str) -> None:
        actual = factors(Schedule(warmup=2, decay=decay, final=0.1), 12)
        assert actual[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
        assert actual[-1] == pytest.approx(0.1)
        assert actual[2:] == sorted(actual[2:], reverse=True)
        assert len(set(actual[2:])) == 10

    @pytest.mark.parametrize("final", [0.0, 1.0])
    def test_bounds_of_final_are_allowed(self, final: float) -> None:
        assert Schedule(decay="linear", final=final)(9, 10) == final

    @pytest.mark.parametrize("decay", ["linear", "cosine"])
    def test_stays_at_final_after_the_last_iteration(self, decay: str) -> None:
        assert Schedule(decay=decay, final=0.25)(99, 10) == pytest.approx(0.25)

    @pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
    def test_factor_of_a_single_iteration_is_1(self, decay: str) -> None:
        assert Schedule(decay=decay)(0, 1) == 1.0
