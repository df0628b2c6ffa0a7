"""Iterations with responses sampled ahead on as many ranks as there are: `python -m tests.support.ahead_ranks OUT URL`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch

from rlmods.correction import Truncated
from rlmods.distributed.collectives import is_first_rank
from rlmods.distributed.strategy import DDP
from rlmods.rollout import VLLMServer
from tests.support.tiny_setup import fit, learner


def trained(url: str, **options: Any) -> dict[str, Any]:
    """Return weights and metrics after three iterations."""
    rollout = VLLMServer(urls=[url], max_tokens=6, backoff_s=0.0, ahead=1)
    made = learner(rollout=rollout, correction=Truncated(), optimizer=partial(torch.optim.SGD, lr=0.1))  # Adam would magnify rounding
    rows = [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in fit(made, 3, **options)]
    return {"weights": {name: x.clone() for name, x in made.state_dict().items()}, "rows": rows}


if __name__ == "__main__":
    out, url = sys.argv[1:]
    found = trained(url, devices=2, strategy=DDP())
    if is_first_rank():
        torch.save(found, out)
