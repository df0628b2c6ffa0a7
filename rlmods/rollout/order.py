"""Responses of a rollout, checked to be in the order of their prompts."""

from collections.abc import Sequence

from rlmods.errors import UserError
from rlmods.protocols import Rollout
from rlmods.types import Prompt, Response


def generate_in_order(
    rollout: Rollout, prompts: Sequence[Prompt], *, samples: int, iteration: int
) -> list[Response]:
    """Return `samples` responses to each prompt, prompt-major: groups are formed from this order.

    Raises:
        UserError: `rollout` returns another number of responses, or another order.
    """
    responses = rollout.generate(prompts, samples=samples, iteration=iteration)
    expected = [prompt.id for prompt in prompts for _ in range(samples)]
    if [response.prompt.id for response in responses] != expected:
        raise UserError(
            f"rollout {type(rollout).__name__}: generate returned {len(responses)} responses that "
            f"are not {samples} to each of the {len(prompts)} prompts in their order: return them "
            "prompt by prompt, or type rollout=local"
        )
    return responses
