"""Model cards of exported models."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from rlmods.lab.saved import SavedRun

MAX_ROWS = 12
"""Rows of the table of a card."""
PACKAGES = ("python", "torch", "transformers", "lightning", "git")
"""Lines of `versions.txt` that a card shows."""


def model_card(run: SavedRun, iteration: int | None = None) -> str:
    """Return `README.md` of the model that a run has exported, for people and for the Hugging Face
    Hub: what it was trained on and how, its validations, the command and the versions. `iteration`:
    that of an export of a checkpoint; None: the last one."""
    # none of a run that was started from Python
    config = run.config if (run.path / "config.yaml").is_file() else {}
    label = run.label if config else str(run.summary.get("label", run.path.name))
    base = str((config.get("policy") or {}).get("name", ""))
    front = ["library_name: transformers", "tags: [rlmods, reinforcement-learning]"]
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base):
        front.append(f"base_model: {base}")
    parts = "\n".join(f"| {group} | `{option}` |" for group, option in run.parts.items())
    sections = [
        "---\n" + "\n".join(front) + "\n---",
        f"# {run.path.name}: {label}",
        "Trained with rlmods for "
        f"{run.summary.get('iterations', '?') if iteration is None else iteration} iterations "
        f"(`{label}`), "
        f"seed {config.get('seed', run.summary.get('seed'))}.",
    ]
    if parts:
        sections.append(f"| group | option |\n|---|---|\n{parts}")
    if table := _validations(run):
        sections += ["## Held-out results", table]
    if run.overrides is not None:
        sections += [
            "## Command",
            f"```bash\n{shlex.join(['python', 'train.py', *run.overrides])}\n```",
        ]
    if versions := _versions(run):
        sections += ["## Versions", versions]
    return "\n\n".join(sections) + "\n"


def _validations(run: SavedRun) -> str:
    """Return a table of validations: the first, the last, and some between them."""
    names = [
        name for name in ("val/accuracy", "val/reward", "val/pair_accuracy") if run.series(name)
    ]
    series = {name: dict(run.series(name)) for name in names}
    iterations = _some(sorted({iteration for values in series.values() for iteration in values}))
    rows = [
        "| "
        + " | ".join(
            [str(i), *(f"{series[name][i]:.3f}" if i in series[name] else "" for name in names)]
        )
        + " |"
        for i in iterations
    ]
    return (
        "\n".join([f"| iteration | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|", *rows])
        if rows
        else ""
    )


def _some(values: Sequence[int]) -> list[int]:
    """Return at most `MAX_ROWS` of the values, the first and the last among them."""
    if len(values) <= MAX_ROWS:
        return list(values)
    return [values[round(i * (len(values) - 1) / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]


def _versions(run: SavedRun) -> str:
    file = run.path / "versions.txt"
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return "\n".join(f"- {line}" for line in lines if line.split(" ")[0] in PACKAGES)
