"""Lengths of the rows of the data in tokens, for whoever needs a limit or the longest rows.

A data set may have millions of rows, and an encoding takes 0.1 ms. So rows are encoded only if a
bound on their length, which takes none (`TokenizerMixin.token_bound`), does not decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Any, Protocol

from rlmods.errors import UserError
from rlmods.rollout.turns import MultiTurn, num_added_tokens
from rlmods.types import Prompt

NUM_ENCODED = 1000
"""Number of rows among which the longest are searched: those with the largest bounds."""


class Encoder(Protocol):
    """A model with a tokenizer, as far as lengths are concerned."""

    @property
    def context_length(self) -> int: ...

    def encode(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]: ...

    def encode_response(self, text: str, prompt: Prompt | None = None) -> list[int]: ...

    def token_bound(self, prompt: Prompt) -> int | None: ...

    def text_bound(self, text: str) -> int | None: ...


def responses_of(prompt: Prompt, columns: Sequence[str]) -> list[str]:
    """Return the responses in these columns of `prompt.meta`: candidates, a text, or its steps."""
    responses: list[str] = []
    for column in columns:
        value = prompt.meta[column]
        responses += value if column == "candidates" else ["".join(value)]
    return responses


def row_length(encoder: Encoder, prompt: Prompt, columns: Sequence[str] = ()) -> int:
    """Return the number of tokens of a prompt and of the longest of its responses in these
    columns."""
    lengths = [len(encoder.encode_response(text, prompt)) for text in responses_of(prompt, columns)]
    return len(encoder.encode(prompt)) + max(lengths, default=0)


def row_bound(encoder: Encoder, prompt: Prompt, columns: Sequence[str] = ()) -> int | None:
    """Return a bound on `row_length` that takes no encoding; None: there is none."""
    bound = encoder.token_bound(prompt)
    longest = -1
    for text in responses_of(prompt, columns):
        of_response = encoder.text_bound(text)
        if of_response is None:
            return None
        longest = max(longest, of_response)
    return None if bound is None else bound + longest + 1  # the token that ends it


def length_above(encoder: Encoder, prompt: Prompt, limit: int, columns: Sequence[str] = ()) -> int:
    """Return the `row_length` of a prompt if it exceeds `limit`, else 0."""
    bound = row_bound(encoder, prompt, columns)
    if bound is not None and bound <= limit:
        return 0
    length = row_length(encoder, prompt, columns)
    return length if length > limit else 0


def short_prompts(
    encoder: Encoder, prompts: Sequence[Prompt], limit: int | None, key: str = "data"
) -> Sequence[Prompt]:
    """Return the prompts with at most `limit` tokens; None: all.

    Raises:
        UserError: every prompt is longer.
    """
    if limit is None:
        return prompts
    above = [length_above(encoder, prompt, limit) for prompt in prompts]
    if prompts and all(above):
        raise UserError(
            f"{key}.max_prompt_tokens={limit}: all {len(prompts)} prompts of a split are longer: "
            f"type {key}.max_prompt_tokens={max(above)}, which keeps all"
        )
    return [prompt for prompt, length in zip(prompts, above, strict=True) if not length]


def check_context(
    encoder: Encoder,
    prompts: Iterable[Prompt],
    max_tokens: int,
    setting: str = "rollout.max_tokens",
    num_added: int = 0,
    filters: bool = False,
    max_length: int | None = None,
    known: int | None = None,
) -> None:
    """Check that each prompt and `max_tokens` response tokens fit into the model's context.

    Args:
        setting: limits the response tokens.
        num_added: number of tokens that an environment adds to a prompt.
        filters: the data set has `max_prompt_tokens`.
        max_length: maximum number of tokens of a prompt and its response, if that is less than the
            context.
        known: number of tokens that no prompt exceeds; None: unknown.

    Raises:
        UserError: a prompt that is empty or too long.
    """
    context = min(encoder.context_length, max_length or encoder.context_length)
    limit = context - max_tokens - num_added
    is_short = known is not None and known <= limit
    num_prompts = 0
    num_long = 0
    first = ""
    for prompt in prompts:
        num_prompts += 1
        length = 0 if is_short else length_above(encoder, prompt, limit)
        if length:
            num_long += 1
            first = first or f"prompt {prompt.id} has {length + num_added} tokens"
        elif prompt.messages is None and not (prompt.text or "").strip():
            _check_not_empty(encoder, prompt)
    if not num_long:
        return
    advice = f"shorten the prompt or type a smaller {setting}"
    if filters and limit > 0 and num_long < num_prompts:
        advice = (
            f"type data.max_prompt_tokens={limit} to leave out {num_long} of {num_prompts} "
            f"prompts, or a smaller {setting}"
        )
    name = "the model's context" if context == encoder.context_length else "rollout.max_length"
    raise UserError(
        f"{first}; with {setting}={max_tokens} that exceeds {name} of {context}: {advice}"
    )


def check_room(
    policy: Any,
    rollout: Any,
    prompts: Sequence[Prompt],
    *,
    filters: bool,
    validation_tokens: int | None = None,
    known: int | None = None,
) -> None:
    """Check that a rollout has room for its responses to these prompts (`check_context`).

    Args:
        rollout: None for an algorithm that samples nothing.
        validation_tokens: `validation.max_tokens`, in place of the rollout's limit on a response of
            one turn.
    """
    has_turns = isinstance(rollout, MultiTurn)
    engine = rollout.rollout if isinstance(rollout, MultiTurn) else rollout
    setting = "environment.max_tokens" if has_turns else "rollout.max_tokens"
    max_tokens = getattr(rollout, "max_tokens", 0)
    if validation_tokens is not None and not has_turns:
        setting = "validation.max_tokens"
        max_tokens = validation_tokens
    check_context(
        policy,
        prompts,
        max_tokens,
        setting,
        num_added=num_added_tokens(policy, rollout, prompts),
        filters=filters,
        max_length=getattr(engine, "max_length", None),
        known=known,
    )


def _check_not_empty(encoder: Encoder, prompt: Prompt) -> None:
    if not encoder.encode(prompt):
        raise UserError(f"prompt {prompt.id} is empty: remove it from the data")


def longest_rows(
    encoder: Encoder, prompts: Sequence[Prompt], num: int, columns: Sequence[str] = ()
) -> list[Prompt]:
    """Return the rows with the most tokens in a forward, the longest first. The candidates of a row
    are padded to the longest.

    Of more than `NUM_ENCODED` rows, those with the largest bounds are compared."""

    def bound(prompt: Prompt) -> int:
        found = row_bound(encoder, prompt, columns)
        return (found or 0) * max(1, len(responses_of(prompt, columns)))

    def size(prompt: Prompt) -> int:
        return forward_length(encoder, prompt, columns)

    if len(prompts) > NUM_ENCODED:
        prompts = nlargest(max(num, NUM_ENCODED), prompts, key=bound)
    return nlargest(num, prompts, key=size)


def forward_length(encoder: Encoder, prompt: Prompt, columns: Sequence[str]) -> int:
    """Return the number of tokens in a forward of a row of the data, whose candidates are padded to
    the longest. A row without a response has one more token."""
    num_candidates = len(responses_of(prompt, columns))
    return (row_length(encoder, prompt, columns) + (not num_candidates)) * max(1, num_candidates)


def longest_texts(
    encoder: Any, prompts: Sequence[Prompt], columns: Sequence[str], rollout: Any
) -> tuple[int, int]:
    """Return the tokens of the longest prompt and of the longest response of the data or, if an
    algorithm samples, of the `rollout` (else None)."""
    prompt = response = 1
    for row in longest_rows(encoder, prompts, 1):
        prompt = max(prompt, row_length(encoder, row))
    if columns:
        for row in longest_rows(encoder, prompts, NUM_ENCODED, columns):
            own = row_length(encoder, row, columns) - row_length(encoder, row)
            response = max(response, own)
    if rollout is not None:
        prompt += num_added_tokens(encoder, rollout, prompts)
        response = max(response, rollout.max_tokens)
    return prompt, response
