"""Evaluate a saved policy on tasks of lm-evaluation-harness: `python -m rlmods.harness RUN_OR_MODEL
tasks=TASK[,TASK] [key=value]`.

RUN_OR_MODEL is a run directory (its `export/` is evaluated), a directory of a Hugging Face model,
or a hub name. Needs the extra `lm_eval`. Prints one JSON object with the metrics of each task.

    tasks=gsm8k,arc_easy     names of tasks or groups of tasks; python -m lm_eval ls tasks lists
    them include=FOLDER           folder with tasks of your own, in YAML limit=100
    problems of each task, the first ones; null: all fewshot=5                solved examples in
    each prompt; null: as the task says chat=true                write prompts with the chat
    template of the model batch_size=8             problems evaluated at a time
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rlmods.cli.command import command, find_policy
from rlmods.config.instantiate import one_line, parse_settings
from rlmods.data.schema import import_extra
from rlmods.errors import UserError, check_bounds


@dataclass(frozen=True)
class Settings:
    """What to evaluate, and how."""

    tasks: str = ""
    """Names of tasks or groups, separated by commas."""
    include: str | None = None
    """Folder with further tasks; its files are executed as parts of the harness, so it has to be
    your own."""
    limit: int | None = None
    """Problems of each task; None: all."""
    fewshot: int | None = None
    """Solved examples in each prompt; None: as the task says."""
    chat: bool = False
    """True: prompts are written with the chat template of the model."""
    batch_size: int = 8
    """Problems evaluated at a time."""

    def __post_init__(self) -> None:
        rules = {
            "tasks": (
                bool(self.names),
                "names of tasks: type tasks=TASK, of `python -m lm_eval ls tasks`",
            ),
            "include": (self.include is None or Path(self.include).is_dir(), "a folder"),
            "limit": (self.limit is None or self.limit >= 1, "null or at least 1"),
            "fewshot": (self.fewshot is None or self.fewshot >= 0, "null, 0 or more"),
            "batch_size": (self.batch_size >= 1, "at least 1"),
        }
        check_bounds(self, "harness", rules)

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.tasks.split(",") if name.strip()]


def evaluate(source: str, arguments: list[str]) -> dict[str, Any]:
    """Return the metrics of the policy at `source` by task.

    Raises:
        UserError: a user's mistake, or the package is missing.
    """
    if wrong := [argument for argument in arguments if "=" not in argument]:
        raise UserError(f"{wrong[0]}: type key=value, such as tasks=gsm8k")
    try:
        settings: Settings = parse_settings(OmegaConf.from_dotlist(arguments), "harness", Settings)
    except UserError as error:
        raise UserError(str(error).replace("harness.", "", 1)) from error
    harness = import_extra("lm_eval", "lm_eval", "rlmods.harness")
    manager = import_extra("lm_eval.tasks", "lm_eval").TaskManager(include_path=settings.include)
    if unknown := [name for name in settings.names if not manager.match_tasks([name])]:
        raise UserError(
            f"tasks={unknown[0]}: no such task: python -m lm_eval ls tasks lists them, and "
            "include=FOLDER adds yours"
        )
    model, _ = find_policy(source)
    try:
        found = harness.simple_evaluate(
            model="hf",
            model_args={"pretrained": str(model)},
            tasks=settings.names,
            task_manager=manager,
            num_fewshot=settings.fewshot,
            limit=settings.limit,
            batch_size=settings.batch_size,
            apply_chat_template=settings.chat,
            device="cuda" if torch.cuda.is_available() else "cpu",
            log_samples=False,
        )
    except (ValueError, OSError, ConnectionError) as error:
        raise UserError(f"tasks={settings.tasks}: {one_line(error)[:300]}") from error
    return {
        "model": source,
        "tasks": {task: metrics(values) for task, values in sorted(found["results"].items())},
    }


def metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among the results of a task. Names have the filter of the answers, if
    there is one: `exact_match/strict-match`."""
    numbers = {
        key.partition(","): value
        for key, value in values.items()
        if isinstance(value, int | float) and "," in key
    }
    return {
        name if kind == "none" else f"{name}/{kind}": float(value)
        for (name, _, kind), value in numbers.items()
    }


def main(arguments: list[str]) -> None:
    command(arguments, __doc__, lambda: evaluate(arguments[0], arguments[1:]), indent=2)


if __name__ == "__main__":
    main(sys.argv[1:])
