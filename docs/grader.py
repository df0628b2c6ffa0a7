"""The grader against math-verify on the same rows: `python docs/grader.py ROWS.jsonl [PYTHON]`.

ROWS holds objects with `gold`, `pred_text`, `expected` (true, false, or null where people disagree) and `category`. PYTHON is an
interpreter that has the package math-verify (`pip install "math-verify[antlr4_13_2]"`, in an environment of its own: its parser needs
another version of antlr than Hydra does). Each grades every row once, one after the other on one core, in a process of its own; what takes
longer than five seconds counts as wrong. Prints agreement, false positives among hostile rows, the slowest row and ordinary rows a second.
"""

from __future__ import annotations

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


def ours() -> Callable[[str, str], bool]:
    from rlmods.reward.grader import verify

    return verify


def theirs() -> Callable[[str, str], bool]:
    from math_verify import parse, verify  # type: ignore[import-not-found]

    return lambda text, gold: bool(verify(parse(f"${gold}$" if "$" not in gold else gold), parse(text)))


GRADERS = {"ours": ours, "math-verify": theirs}


def measure(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One pass over the rows, after the first of them has warmed the imports."""
    verify = GRADERS[name]()

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    ordinary_s, slowest_s, agreed, clear, false, failed = 0.0, 0.0, 0, 0, 0, 0
    verify(rows[0]["pred_text"], rows[0]["gold"])
    for row in rows:
        start = time.perf_counter()
        signal.alarm(LIMIT_S)
        try:
            said = verify(row["pred_text"], row["gold"])
        except Exception:  # whatever it raises is counted
            said, failed = False, failed + 1
        signal.alarm(0)
        wall_s = time.perf_counter() - start
        hostile = row["category"] == "hostile"
        ordinary_s, slowest_s = ordinary_s + wall_s * (not hostile), max(slowest_s, wall_s)
        if row["expected"] is not None:
            clear, agreed = clear + 1, agreed + (said == row["expected"])
            false += hostile and said and not row["expected"]
    ordinary = sum(row["category"] != "hostile" for row in rows)
    return {
        "grader": name,
        "rows": len(rows),
        "agreement": round(agreed / clear, 4),
        "hostile_false_positives": false,
        "raised_or_late": failed,
        "slowest_s": round(slowest_s, 3),
        "ordinary_rows_per_s": round(ordinary / ordinary_s),
    }


def main(file: Path, other: str | None) -> None:
    found = [_run(sys.executable, "ours", file)] + ([_run(other, "math-verify", file)] if other else [])
    print(json.dumps(found, indent=2))
    if other:
        print(f"{found[0]['ordinary_rows_per_s'] / found[1]['ordinary_rows_per_s']:.1f} times as fast")


def _run(python: str, name: str, file: Path) -> dict[str, Any]:
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, __file__, "--grade", name, str(file)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    if sys.argv[1] == "--grade":
        print(json.dumps(measure(sys.argv[2], [json.loads(line) for line in Path(sys.argv[3]).read_text().splitlines()])))
    else:
        main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
