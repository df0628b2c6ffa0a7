"""How many rows of which length a rank has at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlmods.algo import Learner
from rlmods.config.plan import Plan, texts
from rlmods.policy.text import TokenizerMixin
from rlmods.types import Prompt


@dataclass(frozen=True)
class Rows:
    """Rows of one forward, as long as the longest can be."""

    num: int
    length: int
    """Tokens of a prompt and its response."""
    response: int
    """Those of them that are scored."""


@dataclass(frozen=True)
class Sampling:
    """What is decoded at once."""

    prompts: int
    samples: int
    rows: Rows


@dataclass(frozen=True)
class Workload:
    """Of one rank, at most."""

    step: int
    """Rows of an optimizer step."""
    micro: Rows
    """Rows of one forward and backward."""
    iteration: Rows
    """Rows of an iteration, and those that wait for later ones."""
    decoded: dict[str, Sampling]
    """By stage: sampling, validation."""


def workload(plan: Plan, learner: Learner, ranks: int) -> Workload:
    """Every response as long as `rollout.max_tokens` allows, or as the longest in the data."""
    batch, rollout = plan.batch, plan.parts.get("rollout")
    reader: Any = getattr(learner, "policy", None) or next(iter(learner.networks.values()))
    asked = max((len(reader.encode(prompt)) for prompt in plan.splits.train), default=1)
    online, limit = plan.algorithm.samples_responses, getattr(rollout, "max_tokens", 0)
    if online:
        length, response, width = asked + limit, limit, batch.samples // plan.algorithm.rows_per_prompt(batch)
    else:
        said = list(_responses(plan, reader))
        length, response = (max(x[i] for x in said) for i in (0, 1))
        width = max(x[2] for x in said)
    rows = batch.prompts // ranks * (batch.samples if online else width)
    step = max(width, rows // batch.minibatches)
    num = min(step, max(1, batch.token_budget // (width * length)) * width)
    replay = getattr(learner, "replay", None)
    stays = 1 + int(getattr(plan.parts.get("sampling"), "needs_group", False)) + (replay.staleness if replay and replay.fraction else 0)
    decoded: dict[str, Sampling] = {}
    if rollout is not None:
        at_once = getattr(rollout, "batch_size", rows)
        held_out = len(plan.splits.val[: plan.validation.max_prompts]) // ranks
        asks = {"sampling": (batch.prompts // ranks, batch.samples)} if online else {}
        asks |= {"validation": (held_out, max(1, plan.validation.samples))} if held_out else {}
        for stage, (prompts, samples) in asks.items():
            some = min(prompts, max(1, at_once // samples))
            longest = asked if stage == "sampling" else max(len(reader.encode(p)) for p in plan.splits.val)
            decoded[stage] = Sampling(some, samples, Rows(some * samples, longest + limit, limit))
    return Workload(step, Rows(num, length, response), Rows(rows * stays, length, response), decoded)


def _responses(plan: Plan, reader: TokenizerMixin) -> Iterator[tuple[int, int, int]]:
    """Tokens of prompt and longest response, of that response, and how many responses there are: of each row of the data."""
    prompt: Prompt
    for prompt in plan.splits.train:
        said = [len(reader.encode_response(text)) for text in texts(prompt, plan.algorithm.needs_columns)]
        yield len(reader.encode(prompt)) + max(said, default=0), max(said, default=1), max(1, len(said))
