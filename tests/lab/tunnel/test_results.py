"""Results of a scorecard, and the reference results of the package."""

from pathlib import Path

import pytest

from rlmods.lab.tunnel.results import (
    NUM_POINTS,
    REFERENCE,
    Result,
    read_results,
    reference_results,
    thinned,
    write_results,
)
from rlmods.lab.tunnel.tasks import TASKS


def test_a_thinned_curve_has_the_mean_of_all_points() -> None:
    curve = [(float(x), float(x) ** 0.5) for x in range(4 * NUM_POINTS)]
    found = thinned(curve)
    assert len(found) == NUM_POINTS
    assert sum(y for _, y in found) / NUM_POINTS == pytest.approx(
        sum(y for _, y in curve) / len(curve), rel=1e-3
    )
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    assert thinned(curve[:3]) == [(0, 0.0), (1, 1.0), (2, 1.414)]
    assert thinned([]) == []


def digest(entrant: str, task: str) -> str:
    return "" if entrant == "mine" else f"{entrant} {task}"


def result(entrant: str, task: str, settings: str) -> Result:
    return Result(entrant, task, 1, 0.5, {"val/mean@4": [(0, 0.2)]}, 1.5, 100.0, settings)


def test_reference_results_of_other_settings_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "reference.jsonl"
    current = result("grpo", "long", digest("grpo", "long"))
    other_task = result("grpo", "sparse", digest("grpo", "long"))
    of_a_plugin = result("mine", "long", "")
    write_results(path, [current, other_task, of_a_plugin])
    [(key, found)] = reference_results(digest, path).items()
    assert key == ("grpo", "long", 1)
    assert found.score == current.score
    assert [tuple(point) for point in found.curves["val/mean@4"]] == [(0, 0.2)]


def test_the_package_has_results_of_its_tasks() -> None:
    results = read_results(REFERENCE)
    assert {"grpo", "dapo"} <= {result.entrant for result in results}
    assert {result.task for result in results} <= {task.name for task in TASKS}
    assert all(result.score is not None for result in results)
