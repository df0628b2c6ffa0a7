"""Curves of a report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlmods.lab.groups import find_runs, group_runs
from rlmods.lab.report.curves import columns, curves
from rlmods.run.saved import SavedRun
from tests.support.saved_runs import write_run


class TestCurves:
    def test_mean_and_range_of_the_seeds(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", [0.25, 0.5, 0.75], seed=1)
        write_run(tmp_path / "b", [0.75, 0.5], seed=2, settings={"trainer": {"max_iterations": 2}})
        [group] = group_runs(find_runs([tmp_path]))
        curve = curves(group, 100)["val/accuracy"]
        assert curve.iterations == [0, 1, 2]
        assert (curve.mean, curve.low, curve.high) == (
            [0.5, 0.5, 0.75],
            [0.25, 0.5, 0.75],
            [0.75, 0.5, 0.75],
        )

    @pytest.mark.parametrize("num_points", [1, 7, 99, 100, 101])
    def test_neighbours_are_averaged(self, num_points: int, tmp_path: Path) -> None:
        values = np.arange(100.0)
        write_run(tmp_path / "a", values.tolist())
        [group] = group_runs(find_runs([tmp_path]))
        curve = curves(group, num_points)["val/accuracy"]
        assert len(curve.mean) == min(num_points, 100)
        assert list(curve.iterations) == pytest.approx(list(curve.mean), rel=1e-4)
        assert np.diff(curve.mean).min(initial=1) > 0

    def test_values_that_are_no_numbers_are_left_out(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "a", [0.5])
        odd = [{"iteration": 1, "val/accuracy": x} for x in ("1", None, True, [1])]
        with (run / "metrics.jsonl").open("a") as file:
            file.write("".join(f"{json.dumps(row)}\n" for row in odd))
        assert columns(SavedRun(run))["val/accuracy"] == [(0, 0.5)]
