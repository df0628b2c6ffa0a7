"""Grade a saved policy: `python -m rlmods.evaluate RUN_OR_MODEL [group=option] [key=value]`.

RUN_OR_MODEL is a run directory (its `export/` is graded, on the run's own data, reward and rollout unless overrides say otherwise), a
directory of a Hugging Face model, or a hub name. Prints one JSON object; the same code validates during training.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from rlmods.command import command, configuration, find_policy
from rlmods.evaluation import Validation
from rlmods.make import block, make
from rlmods.policy.hf import load
from rlmods.types import UserError

OF_THE_RUN = ("data", "reward", "rollout", "validation", "seed")
"""What is taken from a run's configuration where nothing is typed."""


class Alone:
    """One process, no Trainer."""

    global_rank, iteration = 0, 0

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def evaluate(source: str, overrides: list[str]) -> dict[str, Any]:
    """Metrics of the policy at `source`.

    Raises:
        UserError: a user's mistake.
    """
    model, saved = find_policy(source)
    config = configuration(overrides, saved=saved, of_the_run=OF_THE_RUN)
    splits = make(config.data, "data")()
    if not splits.val:
        raise UserError("there are no held-out prompts: type data.num_val=200")
    reward, rollout = make(config.reward, "reward"), make(config.rollout, "rollout")
    validation = block(config.validation, "validation", Validation)
    ranks = Alone()
    policy = load(model).to(ranks.device)
    metrics, _ = validation(policy, rollout, reward, splits.val, ranks)
    return {"model": source, "prompts": len(splits.val[: validation.max_prompts]), **dict(sorted(metrics.items()))}


def main(arguments: list[str]) -> None:
    command(arguments, __doc__, lambda: evaluate(arguments[0], arguments[1:]), indent=2)


if __name__ == "__main__":
    main(sys.argv[1:])
