"""Results and scores of a scorecard, and the reference results of the package."""

import json
import math
from pathlib import Path
from random import Random

import numpy as np
import pytest

from rlmods.lab.statistics import holm, paired_t_test
from rlmods.lab.tunnel.results import (
    NUM_POINTS,
    REFERENCE,
    Result,
    curve,
    mean_over_tokens,
    read_results,
    reference_results,
    score,
    scorecard,
    thinned,
    write_results,
)
from rlmods.lab.tunnel.tasks import TASKS, Task
from rlmods.run.saved import SavedRun

TASK = Task("x", "x", "x", 0.2, 0.7, "val/accuracy")


def run_of(
    folder: Path, tokens: list[int], values: list[float], budget: int | str = "null"
) -> SavedRun:
    """Write a run with a validation before and after each iteration."""
    rows = [{"iteration": 0, "val/accuracy": values[0]}]
    for i, (count, value) in enumerate(zip(tokens, values[1:], strict=True), 1):
        rows.append({"iteration": i, "perf/sampled_tokens": count})
        rows.append({"iteration": i, "val/accuracy": value})
    config = f"callbacks: {{budget: {{max_tokens: {budget}}}}}\n"
    (folder / "config.yaml").write_text(config)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SavedRun(folder)


def test_a_curve_counts_the_tokens_up_to_each_validation(tmp_path: Path) -> None:
    run = run_of(tmp_path, [10, 30], [0.1, 0.2, 0.4])
    assert curve(run, "val/accuracy") == [(0, 0.1), (10, 0.2), (40, 0.4)]
    assert mean_over_tokens(curve(run, "val/accuracy")) == pytest.approx((1.5 + 9) / 40)


def test_the_mean_is_the_trapezoid_rule() -> None:
    random = Random(0)
    for _ in range(20):
        xs = sorted(random.uniform(0, 100) for _ in range(8))
        ys = [random.random() for _ in range(8)]
        expected = np.trapezoid(ys, xs) / (xs[-1] - xs[0])
        assert mean_over_tokens(list(zip(xs, ys, strict=True))) == pytest.approx(expected)


@pytest.mark.parametrize("points", [[], [(0.0, 0.5)], [(3.0, 0.5), (3.0, 0.7)]])
def test_a_curve_without_width_has_no_mean(points: list[tuple[float, float]]) -> None:
    assert mean_over_tokens(points) is None


def test_a_run_with_one_validation_has_no_score(tmp_path: Path) -> None:
    assert score(run_of(tmp_path, [], [0.3]), TASK) is None


@pytest.mark.parametrize(("value", "expected"), [(0.2, 0.0), (0.7, 1.0), (0.1, -0.2)])
def test_scores_are_scaled_by_start_and_best(tmp_path: Path, value: float, expected: float) -> None:
    run = run_of(tmp_path, [5, 5], [value] * 3)
    assert score(run, TASK) == pytest.approx(expected)


def test_what_is_sampled_beyond_the_budget_does_not_count(tmp_path: Path) -> None:
    """10 tokens at 0.2, then 10 of the 40 tokens from 0.2 to 0.6."""
    run = run_of(tmp_path, [10, 40], [0.2, 0.2, 0.6], budget=20)
    mean = (10 * 0.2 + 10 * 0.25) / 20
    assert score(run, TASK) == pytest.approx((mean - 0.2) / 0.5)


@pytest.mark.parametrize(("budget", "has_score"), [(29, True), (30, True), (31, False)])
def test_a_run_that_was_not_validated_at_its_end_has_no_score(
    tmp_path: Path, budget: int, has_score: bool
) -> None:
    """Others would be averaged over more tokens."""
    run = run_of(tmp_path, [10, 20], [0.2, 0.3, 0.4], budget=budget)
    assert (score(run, TASK) is not None) == has_score


def test_differences_are_paired_and_corrected_for_all_cells() -> None:
    scores = {
        ("a", "x"): {1: 0.1, 2: 0.3, 3: 0.5},
        ("b", "x"): {1: 0.3, 2: 0.51, 3: 0.7},
        ("c", "x"): {1: 0.2, 2: 0.1, 4: 0.5},
    }
    card = scorecard(scores, {}, "a")
    assert card["a", "x"].difference is None
    b, c = card["b", "x"], card["c", "x"]
    assert b.difference is not None
    assert c.difference is not None
    assert b.difference.mean == pytest.approx((0.2 + 0.21 + 0.2) / 3)
    assert c.difference.num_values == 2
    raw = [paired_t_test([0.2, 0.21, 0.2]), paired_t_test([0.1, -0.2])]
    assert [b.p_value, c.p_value] == pytest.approx(holm(raw))
    assert (b.better, c.better) == (True, None)


def test_a_worse_entrant_and_one_without_runs() -> None:
    scores = {
        ("a", "x"): {1: 0.5, 2: 0.6, 3: 0.7},
        ("b", "x"): {1: 0.3, 2: 0.4, 3: 0.51},
        ("c", "x"): {},
    }
    card = scorecard(scores, {("c", "x"): "refused"}, "a")
    assert card["b", "x"].better is False
    assert card["c", "x"].mean is None
    assert card["c", "x"].reason == "refused"


def test_equal_seeds_show_no_spread() -> None:
    scores = {("a", "x"): {1: 0.5, 2: 0.5}, ("b", "x"): {1: 0.6, 2: 0.6}}
    cell = scorecard(scores, {}, "a")["b", "x"]
    assert cell.p_value is None
    assert cell.better is None
    assert cell.difference is not None
    assert math.isinf(cell.difference.high)


def test_a_thinned_curve_has_the_mean_of_all_points() -> None:
    points = [(float(x), float(x) ** 0.5) for x in range(4 * NUM_POINTS)]
    found = thinned(points)
    assert len(found) == NUM_POINTS
    assert sum(y for _, y in found) / NUM_POINTS == pytest.approx(
        sum(y for _, y in points) / len(points), rel=1e-3
    )
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    assert thinned(points[:3]) == [(0, 0.0), (1, 1.0), (2, 1.414)]


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
