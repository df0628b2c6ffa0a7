"""Model cards of exported models."""

from __future__ import annotations

import re
import shlex

from rlmods.run.saved import SavedRun

MAX_ROWS = 12
"""Rows of the table of a card."""
PACKAGES = ("python", "torch", "transformers", "lightning", "git")
"""Lines of `versions.txt` that a card shows."""


def model_card(run: SavedRun, iteration: int | None = None) -> str:
    """Return `README.md` of the model that a run has exported, for people and for the Hugging Face
    Hub: what it was trained on and how, its validations, the command and the versions.

    Args:
        iteration: iteration of an exported checkpoint; None: the last one.
    """
    # a run that was started from Python has no configuration
    config = run.config if (run.path / "config.yaml").is_file() else {}
    label = run.label if config else str(run.summary.get("label", run.path.name))
    front = ["library_name: transformers", "tags: [rlmods, reinforcement-learning]"]
    base = str((config.get("policy") or {}).get("name", ""))
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base):
        front.append(f"base_model: {base}")
    if iteration is None:
        iteration = run.summary.get("iterations")
    sections = [
        "\n".join(["---", *front, "---"]),
        f"# {run.path.name}: {label}",
        f"Trained with rlmods for {iteration} iterations (`{label}`), "
        f"seed {config.get('seed', run.summary.get('seed'))}.",
    ]
    if run.parts:
        rows = [f"| {group} | `{option}` |" for group, option in run.parts.items()]
        sections.append("\n".join(["| group | option |", "|---|---|", *rows]))
    table = _validations(run)
    if table:
        sections += ["## Held-out results", "\n".join(table)]
    if run.overrides is not None:
        command = shlex.join(["python", "train.py", *run.overrides])
        sections += ["## Command", f"```bash\n{command}\n```"]
    versions = [f"- {name} {text}" for name, text in run.versions().items() if name in PACKAGES]
    if versions:
        sections += ["## Versions", "\n".join(versions)]
    return "\n\n".join(sections) + "\n"


def _validations(run: SavedRun) -> list[str]:
    """Return the lines of a table of validations: the first, the last, and some between them."""
    series: dict[str, dict[int, float]] = {}
    for name in ("val/accuracy", "val/reward", "val/pair_accuracy"):
        values = dict(run.series(name))
        if values:
            series[name] = values
    iterations = sorted(set().union(*series.values()))
    if not iterations:
        return []
    if len(iterations) > MAX_ROWS:
        step = (len(iterations) - 1) / (MAX_ROWS - 1)
        iterations = [iterations[round(i * step)] for i in range(MAX_ROWS)]
    rows = [["iteration", *series], ["---"] * (len(series) + 1)]
    for iteration in iterations:
        cells = [f"{x[iteration]:.3f}" if iteration in x else "" for x in series.values()]
        rows.append([str(iteration), *cells])
    return [f"| {' | '.join(row)} |" for row in rows]
