"""Compare the grader with math-verify on the same rows: `python bench/grader.py ROWS.jsonl
[PYTHON]`.

ROWS.jsonl holds objects with `gold`, `pred_text`, `expected` (true, false, or null if human graders
disagree), `category` and perhaps `question`, which math-verify does not read. PYTHON is an
interpreter with the package math-verify (`pip install "math-verify[antlr4_13_2]"`, in a separate
environment: its parser needs another version of antlr than Hydra does). Each grader runs in a process of its own and grades every row once, one after the
other on one core; a row that takes longer than five seconds counts as wrong. Prints agreement,
false positives among hostile rows, the time of the slowest row and ordinary rows per second."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 5


def load_grader() -> Callable[[str, str, str], bool]:
    from rlmods.grading.grader import verify

    return lambda text, gold, question: verify(text, gold, question=question)


def load_math_verify() -> Callable[[str, str, str], bool]:
    from math_verify import parse, verify  # type: ignore[import-not-found]

    return lambda text, gold, question: bool(
        verify(parse(f"${gold}$" if "$" not in gold else gold), parse(text))
    )


GRADERS = {"ours": load_grader, "math-verify": load_math_verify}


def measure(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Grade all rows with one grader and return its statistics. The first row is graded once
    before, to load lazy imports."""
    for number, row in enumerate(rows, 1):
        if missing := {"gold", "pred_text", "expected", "category"} - row.keys():
            sys.exit(
                f"row {number} has no {sorted(missing)[0]}: each needs gold, pred_text, "
                "expected (true, false or null) and category"
            )
    verify = GRADERS[name]()

    def on_timeout(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, on_timeout)
    ordinary_s = slowest_s = 0.0
    num_agreed = num_clear = num_false_positives = num_failed = 0
    verify(rows[0]["pred_text"], rows[0]["gold"], "")
    for row in rows:
        start = time.perf_counter()
        signal.alarm(LIMIT_S)
        try:
            verdict = verify(row["pred_text"], row["gold"], row.get("question", ""))
        except Exception:  # counted, of any kind
            verdict, num_failed = False, num_failed + 1
        signal.alarm(0)
        wall_s = time.perf_counter() - start
        hostile = row["category"] == "hostile"
        ordinary_s, slowest_s = ordinary_s + wall_s * (not hostile), max(slowest_s, wall_s)
        if row["expected"] is not None:
            num_clear, num_agreed = num_clear + 1, num_agreed + (verdict == row["expected"])
            num_false_positives += hostile and verdict and not row["expected"]
    num_ordinary = sum(row["category"] != "hostile" for row in rows)
    return {
        "grader": name,
        "rows": len(rows),
        "agreement": round(num_agreed / num_clear, 4),
        "hostile_false_positives": num_false_positives,
        "raised_or_late": num_failed,
        "slowest_s": round(slowest_s, 3),
        "ordinary_rows_per_s": round(num_ordinary / ordinary_s),
    }


def main(file: Path, math_verify_python: str | None) -> None:
    results = [_run(sys.executable, "ours", file)]
    if math_verify_python:
        results.append(_run(math_verify_python, "math-verify", file))
    print(json.dumps(results, indent=2))
    if math_verify_python:
        print(
            f"{results[0]['ordinary_rows_per_s'] / results[1]['ordinary_rows_per_s']:.1f} "
            "times as fast"
        )


def _run(python: str, name: str, file: Path) -> dict[str, Any]:
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [python, __file__, "--grade", name, str(file)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        sys.exit(process.stderr)
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    if sys.argv[1] == "--grade":
        print(
            json.dumps(
                measure(
                    sys.argv[2],
                    [json.loads(line) for line in Path(sys.argv[3]).read_text().splitlines()],
                )
            )
        )
    else:
        main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
