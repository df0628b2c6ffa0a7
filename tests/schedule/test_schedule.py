from __future__ import annotations

import pytest

from rlmods.schedule import Schedule


def factors(schedule: Schedule, iterations: int) -> list[float]:
    return [schedule(i, iterations) for i in range(iterations)]


class TestSchedule:
    def test_constant(self) -> None:
        assert factors(Schedule(), 4) == [1.0] * 4

    def test_warmup_moves_at_once_and_ends_full(self) -> None:
        assert factors(Schedule(warmup=4), 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])

    def test_linear(self) -> None:
        assert factors(Schedule(decay="linear"), 5) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])

    def test_cosine(self) -> None:
        assert factors(Schedule(decay="cosine"), 5) == pytest.approx([1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0.0])

    @pytest.mark.parametrize("decay", ["linear", "cosine"])
    def test_decay_starts_full_after_warmup_and_ends_with_final(self, decay: str) -> None:
        have = factors(Schedule(warmup=2, decay=decay, final=0.1), 12)
        assert have[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
        assert have[-1] == pytest.approx(0.1)
        assert have[2:] == sorted(have[2:], reverse=True)
        assert len(set(have[2:])) == 10

    @pytest.mark.parametrize("decay", ["linear", "cosine"])
    def test_stays_there_when_a_run_is_continued_past_its_end(self, decay: str) -> None:
        assert Schedule(decay=decay, final=0.25)(99, 10) == pytest.approx(0.25)

    @pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
    def test_a_run_of_one_iteration_moves(self, decay: str) -> None:
        assert Schedule(decay=decay)(0, 1) == 1.0

    @pytest.mark.parametrize(("change", "says"), [({"warmup": -1}, r"schedule\.warmup=-1"), ({"decay": "step"}, r"schedule\.decay=step")])
    def test_bad_settings(self, change: dict, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            Schedule(**change)
