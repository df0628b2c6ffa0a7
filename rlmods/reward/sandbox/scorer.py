"""Scoring of one answer by a scorer of the reasoning-gym package, in a confined process of its own.

Scorers call `eval` and `sympy.parse_expr` on the answer. Both are replaced by `expressions`, which evaluates arithmetic only; should a text
get past it, the process can do no harm and is no other answer's.
"""

import json
import os
import sys
from functools import cache
from typing import Any

import reasoning_gym
from sympy.parsing import sympy_parser

from . import expressions, wire

expressions.guard([module for name, module in list(sys.modules.items()) if name.split(".")[0] == "reasoning_gym" and module])
expressions.guard_sympy()


def prepare_server() -> None:
    """Use the parser and the messages once in the server, so that what they cache is not computed, and its memory not copied, in each fork."""
    for _ in range(20):
        float(sympy_parser.parse_expr("(1 + 2) * 3 - 4 / 5"))
        wire.decode(json.loads(json.dumps(wire.encode({"numbers": [1, 2.0], "answer": "3"}))))
        expressions.evaluate("[1 + 2]")


@cache
def prepare(task: str) -> Any:
    """Return the scorer of a task. Called in the server, for all answers to come."""
    return reasoning_gym.get_score_answer_fn(task)


def main(mode: str, ends: dict[str, int]) -> None:
    """Write the score of the answer in the job to the results descriptor."""
    with os.fdopen(ends["job"], "rb") as stream:
        job = json.load(stream)
    if mode == "check":
        return
    score = prepare(job["task"])
    os.write(ends["results"], json.dumps(float(score(answer=job["answer"], entry=wire.decode(job["entry"])))).encode())
