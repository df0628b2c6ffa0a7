"""Runs of random shapes, one by one, on as many ranks as there are: `python -m
tests.support.random_shapes NUM SEED STRATEGY PRECISION`."""

import random
import sys
import zlib
from functools import partial
from typing import Any

from rlmods.advantage import GAE, Greedy, GroupNorm
from rlmods.algo import DPO, PPO, SFT, Batch, OnlineDPO, PolicyGradient, RewardModel
from rlmods.cli.console import silence_libraries
from rlmods.critic import Separate, Shared
from rlmods.distributed.strategy import DDP, FSDP2
from rlmods.kl import NoKL, Penalty
from rlmods.preference import KTO, Sigmoid
from rlmods.ranking import BradleyTerry
from rlmods.rollout import Local
from rlmods.sampling import BestOf, Dynamic, Fixed
from rlmods.training.evaluation import Validation
from tests.algo.test_resume import longer
from tests.support.tiny_setup import SPLITS, even, fit, learner

STRATEGIES = {"ddp": DDP, "fsdp": FSDP2, "hybrid": partial(FSDP2, replicas=2)}


def uneven(responses: list[Any]) -> list[float | None]:
    """No reward for some, so that ranks differ in what they have to learn from."""
    return [
        None if zlib.crc32(r.prompt.id.encode()) % 3 == 0 else float(x or 0.0)
        for r, x in zip(responses, even(responses), strict=True)
    ]


def shape(draw: random.Random) -> dict[str, Any]:
    """Settings of a learner."""
    kind = draw.choice([PolicyGradient, PolicyGradient, PPO, SFT, DPO, OnlineDPO, RewardModel])
    online = kind in (PolicyGradient, PPO)
    prompts, samples = 2 * draw.randint(1, 5), draw.randint(2, 5)
    rows = prompts // 2 * (samples if online else 1)
    minibatches = draw.choice([n for n in range(1, 5) if rows % n == 0])
    found: dict[str, Any] = {
        "kind": kind,
        "batch": Batch(
            prompts,
            samples,
            epochs=draw.randint(1, 2),
            minibatches=minibatches,
            token_budget=draw.randint(1, 200),
        ),
        "rollout": Local(max_tokens=draw.randint(1, 12), batch_size=draw.randint(1, 40)),
        "validation": Validation(every=1, samples=draw.choice([0, 2])),
        "validation_prompts": list(SPLITS.val)[: draw.randint(0, 5)],
    }
    if online:
        found |= {
            "sampling": draw.choice([Fixed(), Dynamic(), BestOf()]),
            "reward": draw.choice([even, uneven, lambda responses: [1.0] * len(responses)]),
            "kl": draw.choice([NoKL(), Penalty("k3", 0.1, "loss"), Penalty("k1", 0.1, "reward")]),
            "overlong_filter": draw.random() < 0.5,
            "max_draws": draw.randint(1, 3),
            "surplus": draw.choice(["keep", "drop"]),
            "fallback": draw.choice(["train", "skip"]),
            "replay_fraction": draw.choice([0.0, 0.5]),
            "normalize_reward": draw.random() < 0.5,
        }
        if draw.random() < 0.3:
            found |= {
                "ptx_coefficient": 0.1,
                "ptx_prompts": list(SPLITS.train),
                "ptx_rows": draw.randint(2, 9),
            }
        found["advantage"] = (
            GroupNorm() if kind is PolicyGradient else GAE(whiten=draw.random() < 0.5)
        )
        if kind is PPO:
            found["critic"] = draw.choice([Separate(), Shared()])
        elif draw.random() < 0.2:
            found["advantage"] = Greedy()
    elif kind is RewardModel:
        found |= {"rollout": None, "reward": None, "ranking": BradleyTerry()}
    elif kind is OnlineDPO:
        found |= {"preference": Sigmoid(), "judge": longer}
    elif kind is DPO:
        found["preference"] = (
            draw.choice([Sigmoid(), KTO()]) if prompts // 2 // minibatches > 1 else Sigmoid()
        )
    return found


if __name__ == "__main__":
    num, seed, strategy, precision = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        STRATEGIES[sys.argv[3]],
        sys.argv[4],
    )
    silence_libraries()
    for i in range(num):
        settings = shape(random.Random(f"{seed}-{i}"))
        print(
            i,
            {k: v for k, v in settings.items() if k not in ("validation_prompts", "ptx_prompts")},
            flush=True,
        )
        fit(learner(**settings), 2, devices=2, strategy=strategy(), precision=precision)
    print("done", flush=True)
