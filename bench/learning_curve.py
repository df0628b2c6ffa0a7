"""Draw held-out accuracy over iterations: `python bench/learning_curve.py OUT.png LABEL=RUN_DIR ...`
(needs the extra rlmods[plot])."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLORS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#64748b", "#dc2626")


def curve(run: Path) -> tuple[list[int], list[float]]:
    """Return iteration and val/accuracy of the validations of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    points = [(row["iteration"], row["val/accuracy"]) for row in rows if "val/accuracy" in row]
    return [iteration for iteration, _ in points], [value for _, value in points]


def main(out: str, *runs: str) -> None:
    """Plot runs given as LABEL=RUN_DIR."""
    figure, axes = plt.subplots(figsize=(7, 3.4), dpi=130)
    for color, (label, run) in zip(COLORS, (pair.split("=", 1) for pair in runs), strict=False):
        axes.plot(*curve(Path(run)), color=color, label=label, linewidth=1.8)
    axes.set(xlabel="iteration", ylabel="held-out accuracy, greedy", ylim=(0, 1), xlim=(0, None))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(out)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
