"""Order of sampled responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlmods.protocols import Rollout
from rlmods.types import Prompt, Response, UserError


def generate(rollout: Rollout, prompts: Sequence[Prompt], *, samples: int, iteration: int) -> list[Response]:
    """Return `samples` responses to each prompt, prompt-major, in whatever order `rollout` returns them.

    A response belongs to the prompt whose id its `prompt` has. Groups are formed from this order, so a response in the wrong place would be
    compared with the responses to another prompt.

    Raises:
        UserError: a prompt has another number of responses.
    """
    responses = rollout.generate(prompts, samples=samples, iteration=iteration)
    wanted = [prompt.id for prompt in prompts for _ in range(samples)]
    found = [response.prompt.id for response in responses]
    if found == wanted:
        return responses
    expected, counts = Counter(wanted), Counter(found)
    for prompt_id in [*expected, *counts]:
        if counts[prompt_id] != expected[prompt_id]:
            name = type(rollout).__name__
            problem = f"{counts[prompt_id]} responses to prompt {prompt_id!r} instead of {expected[prompt_id]}"
            raise UserError(
                f"rollout {name}: generate returned {problem}: return `samples` responses to each prompt, or type rollout=local"
            )
    by_prompt: dict[str, list[Response]] = {}
    for response in responses:
        by_prompt.setdefault(response.prompt.id, []).append(response)
    queues = {prompt_id: iter(group) for prompt_id, group in by_prompt.items()}
    return [next(queues[prompt_id]) for prompt_id in wanted]
