"""Scoring of one answer by a scorer of the reasoning-gym package, in a confined process of its own.

Scorers call `eval` and `sympy.parse_expr` on the answer. Both are replaced by `expressions`, which
evaluates arithmetic only; should a text get past it, the process can do no harm and is no other
answer's."""

import json
import os
import sys
from functools import cache
from typing import Any

from . import expressions, walls, wire

_register_at_fork, os.register_at_fork = (
    os.register_at_fork,
    lambda **_: None,
)  # threads and random numbers need hooks; scorers have neither
import numpy  # noqa: E402
import reasoning_gym  # noqa: E402
from sympy.parsing import sympy_parser  # noqa: E402

os.register_at_fork = _register_at_fork

_SCORERS = [
    module
    for name, module in list(sys.modules.items())
    if name.split(".")[0] == "reasoning_gym" and module
]
expressions.guard(_SCORERS)
expressions.guard_sympy(_SCORERS)


def prepare_server() -> None:
    """Use the parser and the messages in the server, so that forked processes find their caches
    filled."""
    for _ in range(20):
        float(sympy_parser.parse_expr("(1 + 2) * 3 - 4 / 5"))
        wire.decode(json.loads(json.dumps(wire.encode({"numbers": [1, 2.0], "answer": "3"}))))
        numpy.isclose(float(expressions.evaluate("[1 + 2]")[0]), 3, atol=1e-6)
    walls.use_huge_pages()


@cache
def prepare(task: str) -> Any:
    """Return the scorer of a task. Called in the server, for all answers to come."""
    return reasoning_gym.get_score_answer_fn(task)


def main(mode: str, ends: dict[str, int]) -> None:
    """Write the score of the answer in the job to the results descriptor."""
    job = wire.read_job(ends["job"])
    if mode == "check":
        return
    score = prepare(job["task"])
    os.write(
        ends["results"],
        json.dumps(float(score(answer=job["answer"], entry=wire.decode(job["entry"])))).encode(),
    )
