"""Sampling of responses in the order of their prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlmods.errors import UserError
from rlmods.protocols import Rollout
from rlmods.types import Prompt, Response


def generate_in_order(
    rollout: Rollout, prompts: Sequence[Prompt], *, samples: int, iteration: int
) -> list[Response]:
    """Return `samples` responses to each prompt, prompt-major, in whatever order `rollout` returns
    them: groups are formed from this order.

    Raises:
        UserError: a prompt has another number of responses.
    """
    responses = rollout.generate(prompts, samples=samples, iteration=iteration)
    wanted = [prompt.id for prompt in prompts for _ in range(samples)]
    expected = Counter(wanted)
    counts = Counter(response.prompt.id for response in responses)
    for prompt_id in [*expected, *counts]:
        if counts[prompt_id] != expected[prompt_id]:
            raise UserError(
                f"rollout {type(rollout).__name__}: generate returned {counts[prompt_id]} "
                f"responses to prompt {prompt_id!r} instead of {expected[prompt_id]}: return "
                "`samples` responses to each prompt, or type rollout=local"
            )
    by_prompt: dict[str, list[Response]] = {}
    for response in responses:
        by_prompt.setdefault(response.prompt.id, []).append(response)
    return [by_prompt[prompt_id].pop(0) for prompt_id in wanted]
