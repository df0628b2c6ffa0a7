"""Agreement with answers graded by hand: `shared/golden/math_answers.jsonl`, next to the
repository."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from rlmods.reward.accuracy import verify

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "math_answers.jsonl"
MIN_AGREEMENT = 0.985
MAX_WALL_S = 3.0


@pytest.fixture(scope="module")
def graded() -> list[tuple[dict[str, Any], bool, float]]:
    if not GOLDEN.exists():
        pytest.skip(f"no golden answers at {GOLDEN}")
    rows = []
    for line in GOLDEN.read_text().splitlines():
        row = json.loads(line)
        start = time.perf_counter()
        verdict = verify(row["pred_text"], row["gold"])
        rows.append((row, verdict, time.perf_counter() - start))
    return rows


def test_verdicts_agree(graded: list[tuple[dict[str, Any], bool, float]]) -> None:
    clear = [
        (row["id"], verdict == row["expected"])
        for row, verdict, _ in graded
        if row["expected"] is not None
    ]
    agreement = sum(agrees for _, agrees in clear) / len(clear)
    assert agreement >= MIN_AGREEMENT, (
        f"{agreement:.3f}, wrong: {[name for name, agrees in clear if not agrees]}"
    )


def test_no_hostile_answer_is_accepted(graded: list[tuple[dict[str, Any], bool, float]]) -> None:
    assert [
        row["id"]
        for row, verdict, _ in graded
        if row["category"] == "hostile" and row["expected"] is False and verdict
    ] == []


def test_every_verdict_is_fast(graded: list[tuple[dict[str, Any], bool, float]]) -> None:
    assert max(wall for _, _, wall in graded) < MAX_WALL_S
