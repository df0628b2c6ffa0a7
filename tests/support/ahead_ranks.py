"""Iterations with responses sampled ahead on as many ranks as there are: `python -m
tests.support.ahead_ranks OUT URL [turns]`."""

import sys
from functools import partial
from typing import Any

import torch

from rlmods.correction import Truncated
from rlmods.distributed.collectives import is_first_rank
from rlmods.distributed.strategy import DDP
from rlmods.rollout import MultiTurn, VLLMServer
from tests.support.environments import Echo
from tests.support.tiny_setup import fit, learner, untimed


def trained(url: str, *, turns: bool = False, **options: Any) -> dict[str, Any]:
    """Return weights and metrics after three iterations. `turns`: with responses of several
    turns."""
    rollout: Any = VLLMServer(urls=[url], max_tokens=6, backoff_s=0.0, ahead=1)
    rollout = MultiTurn(rollout, Echo(least=2)) if turns else rollout
    # Adam would magnify rounding
    made = learner(
        rollout=rollout, correction=Truncated(), optimizer=partial(torch.optim.SGD, lr=0.1)
    )
    rows = untimed(fit(made, 3, **options))
    return {"weights": {name: x.clone() for name, x in made.state_dict().items()}, "rows": rows}


if __name__ == "__main__":
    out, url, *rest = sys.argv[1:]
    found = trained(url, turns="turns" in rest, devices=2, strategy=DDP())
    if is_first_rank():
        torch.save(found, out)
