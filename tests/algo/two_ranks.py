"""One iteration of PPO with a critic and a PTX stream, on however many ranks the environment says: `python -m tests.algo.two_ranks OUT`."""

from __future__ import annotations

import sys
from functools import partial

import torch
from lightning.pytorch.strategies import DDPStrategy

from rlmods.advantage import GAE
from rlmods.algo import PPO, Batch
from rlmods.critic import Separate, Shared
from rlmods.kl import Penalty

from .worlds import SPLITS, fit, learner


def made(critic: str = "separate", **change):
    """Plain gradient descent, so that weights tell what the gradient was."""
    settings = {
        "advantage": GAE(whiten=True),
        "critic": {"separate": Separate(), "shared": Shared()}[critic],
        "kl": Penalty("k1", 0.1, "reward"),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "batch": Batch(prompts=6, samples=3, token_budget=64),
        "ptx_prompts": list(SPLITS.train),
        "ptx_coefficient": 0.5,
        "ptx_rows": 5,
        "normalize_reward": True,
        "reward": lambda responses: [float(len(r.tokens)) for r in responses],
    }
    return learner(PPO, **settings | change)


if __name__ == "__main__":
    out, critic = sys.argv[1:]
    trained = made(critic)
    rows = fit(trained, 1, devices=2, strategy=DDPStrategy(process_group_backend="gloo"))
    if trained.global_rank == 0:
        row = {name: value for name, value in rows[0].items() if name.startswith("train/")}
        torch.save({"weights": trained.state_dict(), "row": row}, out)
