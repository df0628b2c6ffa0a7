"""A batch in which one response in eight is hostile, and its expected scores. `python -m
tests.grading.hostile` runs one rank of two."""

import os
import time
from typing import Any

from rlmods.reward import Accuracy, WeightedSum
from rlmods.types import Prompt, Response, Scores
from tests.grading.careless import Plugin

NUM, NUM_HOSTILE = 256, 32
ATTACKS = ("loop", "exit", "bomb", "raise", "print")
"""Actions of `Plugin`; for `Accuracy`, these responses are wrong answers."""
TEXTS = (
    r"\boxed{9^{9^{9^{9^9}}}}",
    r"\boxed{" + "(" * 5000 + "1" + ")" * 5000 + "}",
    r"\boxed{" + "9" * 10**6 + "}",
    "x" * 10**6,
    r"\boxed{10^{10^{10}}!}",
    r"\boxed{\sum_{i=1}^{10^{12}} i}",
    "<answer>" + r"\frac{1}{" * 3000 + "1" + "}" * 3000 + "</answer>",
    r"\boxed{__import__('os').system('touch hostile_was_here')}",
    "\\boxed{" + "\ud800" + "\x00" * 100 + "}",
    "<answer>" * 50_000,
    r"\boxed{" + "{" * 100_000,
)


def batch(num: int = NUM) -> list[Response]:
    """One response in eight is hostile; two in three of the others are correct."""
    rows = []
    for i in range(num):
        hostile = i % (NUM // NUM_HOSTILE) == 0
        number = i // (NUM // NUM_HOSTILE)
        attack = ATTACKS[number % len(ATTACKS)] if hostile else None
        text = (
            TEXTS[number % len(TEXTS)]
            if hostile
            else rf"So it is \boxed{{\frac{{{i}}}{{{7 if i % 3 else 9}}}}}."
        )
        rows.append(
            Response(
                Prompt(id=str(i), text="?", answer=rf"\frac{{{i}}}{{7}}", meta={"attack": attack}),
                tokens=range(3),
                text=text,
            )
        )
    return rows


def grade_batch(num: int = NUM) -> tuple[Scores, float]:
    """Return the scores of the batch by two terms, and the wall time in seconds."""
    terms: dict[str, Any] = {
        "accuracy": {"reward": Accuracy(timeout_s=2.0)},
        "plugin": {"reward": Plugin(), "timeout_s": 2.0},
    }
    start = time.monotonic()
    return WeightedSum(terms)(batch(num)), time.monotonic() - start


def check_scores(scores: Scores, wall_s: float) -> None:
    rows = batch(len(scores.values))
    assert wall_s < 90
    for i, row in enumerate(rows):
        attack = row.prompt.meta["attack"]
        if i % (NUM // NUM_HOSTILE):
            expected = float(i % 3 > 0)
            assert (scores.terms["accuracy"][i], scores.terms["plugin"][i]) == (
                expected,
                expected,
            ), i
        else:
            assert scores.terms["accuracy"][i] == 0.0, i
            assert scores.terms["plugin"][i] == (0.0 if attack == "print" else None), (i, attack)
    attacks = [ATTACKS[i % len(ATTACKS)] for i in range(len(rows) * NUM_HOSTILE // NUM)]
    assert scores.counts["plugin/timeouts"] == attacks.count("loop")
    assert scores.counts["plugin/errors"] == sum(
        attacks.count(name) for name in ("exit", "bomb", "raise")
    )
    assert scores.counts["accuracy/timeouts"] + scores.counts["accuracy/errors"] <= NUM_HOSTILE
    assert not os.path.exists("hostile_was_here")


def main() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    check_scores(*grade_batch())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
