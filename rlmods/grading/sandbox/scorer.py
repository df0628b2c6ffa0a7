"""Scoring of one answer by a scorer of the reasoning-gym package, in a confined process of its own:
scorers evaluate answers as code."""

import json
import os
from functools import cache
from typing import Any

from . import wire

_register_at_fork = os.register_at_fork
# threads and random numbers need hooks; scorers have neither
os.register_at_fork = lambda **_: None
import reasoning_gym  # noqa: E402

os.register_at_fork = _register_at_fork


def prepare_server() -> None:
    """The import above is all that scorers share."""


@cache
def prepare(task: str) -> Any:
    """Return the scorer of a task. Called in the server, for all answers to come."""
    return reasoning_gym.get_score_answer_fn(task)


def main(mode: str, ends: dict[str, int]) -> None:
    """Write the score of the answer in the job to the results descriptor."""
    job = wire.read_job(ends["job"])
    entry = wire.decode(job["entry"], wire.refuse)
    score = float(prepare(job["task"])(answer=job["answer"], entry=entry))
    os.write(ends["results"], json.dumps(score).encode())
