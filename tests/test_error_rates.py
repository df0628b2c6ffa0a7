"""bench/error_rates.py and bench/alarms.py: what is counted."""

import json
from pathlib import Path

import pytest

from rlmods.lab.statistics import power
from rlmods.lab.tunnel.results import Result, read_results, write_results
from rlmods.run.saved import SavedRun
from tests.test_docs import script

error_rates = script("error_rates")
alarms = script("alarms")


class TestPairs:
    def test_pairs_of_a_task_are_told_apart(self) -> None:
        scores = {
            ("x", "a"): {1: 0.1, 2: 0.2, 3: 0.3},
            ("x", "b"): {1: 0.6, 2: 0.71, 3: 0.8},
            ("x", "c"): {1: 0.3, 2: 0.1, 3: 0.2},
            ("y", "a"): {1: 0.1, 2: 0.2, 3: 0.3},
            ("y", "b"): {1: 0.6, 2: 0.7},
        }
        lines = error_rates.told_apart(scores).splitlines()
        assert lines[0] == "x: 3 pairs, 2 told apart, 1 by Holm"
        assert lines[1].startswith("3 pairs: 2 told apart, ")
        assert lines[-1] == "told from another one: a, b, c"

    def test_false_positives_are_of_one_entrant(self) -> None:
        """Seeds 1 to 3 against the others in every order, and each set of three once."""
        scores = {("x", "a"): {i: 0.1 * i for i in range(1, 7)}}
        line = error_rates.false_positives(scores)
        assert line.startswith("60 pairs of 3 seeds of one entrant: ")
        assert not line.endswith(" 0.000 told apart")


def test_power_of_other_pairs() -> None:
    promised, found = error_rates.foresight(2.0, 5, 200)
    assert found == pytest.approx(power(2.0, 5), abs=0.07)
    assert abs(promised - found) < 0.15
    promised, found = error_rates.foresight(0.0, 3, 200)
    assert promised > found + 0.05


class TestAlarms:
    @staticmethod
    def outcome(folder: Path, accuracy: list[float], reward: list[float]) -> alarms.Outcome | None:
        rows = [{"iteration": i, "train/reward": x} for i, x in enumerate(reward, 1)]
        for i, x in enumerate(accuracy):
            rows.append({"iteration": i, "val/accuracy": x, "val/mean@4": x})
        rows[0]["alert/collapse"] = 1.0
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / "metrics.jsonl").write_text(text)
        found: alarms.Outcome | None = alarms.outcome(SavedRun(folder))
        return found

    @pytest.mark.parametrize(
        ("accuracy", "reward", "kind"),
        [
            ([0.5, 0.6, 0.7], [0.1, 0.9], "healthy"),
            ([0.5, 0.42, 0.55], [0.1, 0.9], "healthy"),
            ([0.5, 0.1, 0.1], [0.9, 0.1], "wrong"),
            ([0.5, 0.1, 0.1], [0.1, 0.9], "gamed"),
        ],
    )
    def test_kinds(
        self, tmp_path: Path, accuracy: list[float], reward: list[float], kind: str
    ) -> None:
        found = self.outcome(tmp_path, accuracy, reward)
        assert found is not None
        assert (found.kind, found.alarms) == (kind, {"collapse"})
        assert f"| {'1 of 1' if kind == 'gamed' else 'no runs'}" in alarms.table([found])

    def test_two_validations_tell_nothing(self, tmp_path: Path) -> None:
        assert self.outcome(tmp_path, [0.5, 0.1], [0.1]) is None

    def test_the_interval_of_a_rate(self) -> None:
        """Wilson's, of 8 of 10."""
        assert alarms.wilson(8, 10) == pytest.approx((0.490, 0.943), abs=1e-3)


def test_reference_results_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result replaces one of the same seed; without a score or of other settings it is left out."""
    reference = script("reference")
    monkeypatch.setattr(reference, "settings_digest", lambda entrant, task: "now")

    def result(seed: int, score: float | None, settings: str = "now") -> Result:
        return Result("grpo", "long", seed, score, {}, 1.0, 10.0, settings)

    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    write_results(old, [result(1, 0.1), result(2, 0.2), result(7, 0.7, "before")])
    write_results(new, [result(2, 0.5), result(3, None), result(4, 0.4, "")])
    assert reference.main([str(new)], old).startswith("2 results")
    assert [(x.seed, x.score) for x in read_results(old)] == [(1, 0.1), (2, 0.5)]
