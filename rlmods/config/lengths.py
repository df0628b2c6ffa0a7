"""Prompts and responses have to fit into the model's context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from omegaconf import DictConfig

from rlmods.errors import UserError
from rlmods.training.evaluation import Validation
from rlmods.types import Prompt


class Encoder(Protocol):
    """A policy, as far as lengths are concerned."""

    @property
    def context_length(self) -> int: ...

    def encode(self, prompt: Prompt) -> Sequence[int]: ...

    def encode_response(self, text: str, prompt: Prompt) -> Sequence[int]: ...


def short_prompts(
    policy: Encoder, prompts: Sequence[Prompt], limit: int | None, key: str = "data"
) -> list[Prompt]:
    """Return the prompts with at most `limit` tokens; None: all.

    Raises:
        UserError: every prompt is longer.
    """
    if limit is None:
        return list(prompts)
    lengths = [len(policy.encode(prompt)) for prompt in prompts]
    if prompts and min(lengths) > limit:
        raise UserError(
            f"{key}.max_prompt_tokens={limit}: all {len(prompts)} prompts of a split are longer: "
            f"type {key}.max_prompt_tokens={max(lengths)}, which keeps all"
        )
    return [prompt for prompt, length in zip(prompts, lengths, strict=True) if length <= limit]


def without_long_prompts(validation: Validation, policy: Encoder, config: DictConfig) -> Validation:
    """Return the settings of validation without the prompts of its named sets that are longer than
    the `max_prompt_tokens` of their set. `config`: settings of validation.

    Raises:
        UserError: all prompts of a set are longer.
    """
    if validation.data is None:
        return validation
    sets = {}
    for name, prompts in validation.data.items():
        limit = config.data[name].get("max_prompt_tokens")
        sets[name] = short_prompts(policy, prompts, limit, f"validation.data.{name}")
    return replace(validation, data=sets)


def check_context(
    policy: Encoder,
    prompts: Sequence[Prompt],
    max_tokens: int,
    setting: str = "rollout.max_tokens",
    num_added: int = 0,
    filters: bool = False,
) -> None:
    """Check that each prompt and `max_tokens` response tokens fit into the model's context.

    Args:
        setting: limits the response tokens.
        num_added: number of tokens that an environment adds to a prompt.
        filters: the data set has `max_prompt_tokens`.

    Raises:
        UserError: a prompt that is empty or too long.
    """
    lengths = [len(policy.encode(prompt)) for prompt in prompts]
    if 0 in lengths:
        raise UserError(f"prompt {prompts[lengths.index(0)].id} is empty: remove it from the data")
    limit = policy.context_length - max_tokens - num_added
    too_long = [i for i, length in enumerate(lengths) if length > limit]
    if not too_long:
        return
    advice = f"shorten the prompt or type a smaller {setting}"
    if filters and limit > 0 and len(too_long) < len(prompts):
        advice = (
            f"type data.max_prompt_tokens={limit} to leave out {len(too_long)} of "
            f"{len(prompts)} prompts, or a smaller {setting}"
        )
    first = too_long[0]
    raise UserError(
        f"prompt {prompts[first].id} has {lengths[first] + num_added} tokens; with "
        f"{setting}={max_tokens} that exceeds the model's context of {policy.context_length}: "
        f"{advice}"
    )


def check_response_lengths(
    policy: Encoder, prompts: Iterable[Prompt], columns: Sequence[str]
) -> None:
    """Check that each prompt, with each of its responses in the data, fits into the model's
    context.

    Raises:
        UserError: a row that is too long.
    """
    if not columns:
        return
    for prompt in prompts:
        lengths = [len(policy.encode_response(text, prompt)) for text in texts(prompt, columns)]
        length = len(policy.encode(prompt)) + max(lengths, default=0)
        if length > policy.context_length:
            raise UserError(
                f"prompt {prompt.id} and its response have {length} tokens, and the model's "
                f"context is {policy.context_length}: shorten the row, or choose another model "
                "with policy=hf policy.name=..."
            )


def replies(prompt: Prompt, columns: Iterable[str]) -> list[str]:
    """Return the responses in these columns of a row, and the assistant messages of its prompt."""
    messages = prompt.messages or ()
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    return [*texts(prompt, columns), *said]


def texts(prompt: Prompt, columns: Iterable[str]) -> list[str]:
    """Return the responses in these columns of a row."""
    responses: list[str] = []
    for column in columns:
        value = prompt.meta[column]
        responses += value if column == "candidates" else ["".join(value)]
    return responses
