"""Lengths of the rows of the data in tokens, for whoever needs a limit or the longest rows.

A data set may have millions of rows, and an encoding takes 0.1 ms. So rows are encoded only if a
bound on their length, which takes none (`TokenizerMixin.token_bound`), does not decide."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Any

from rlmods.data.file_rows import FileRows, largest, select
from rlmods.environment import Agent
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.scalar import ScalarModel
from rlmods.rollout.turns import MultiTurn, engine_of, num_added_tokens
from rlmods.types import Prompt

NUM_ENCODED = 1000
"""Number of rows among which the longest are searched: those with the largest bounds."""


Encoder = Policy | ScalarModel
"""A model with a tokenizer."""


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
    texts = responses_of(prompt, columns)
    bounds = [encoder.token_bound(prompt), *map(encoder.text_bound, texts)]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return None
    return known[0] + max(known[1:], default=-1) + 1  # the token that ends it


def length_above(encoder: Encoder, prompt: Prompt, limit: int, columns: Sequence[str] = ()) -> int:
    """Return the `row_length` of a prompt if it exceeds `limit`, else 0."""
    bound = row_bound(encoder, prompt, columns)
    if bound is not None and bound <= limit:
        return 0
    length = row_length(encoder, prompt, columns)
    return length if length > limit else 0


def lengths_above(
    encoder: Encoder, prompts: Sequence[Prompt], limit: int, columns: Sequence[str] = ()
) -> Iterator[tuple[int, int]]:
    """Yield the position and the `row_length` of each prompt with more tokens than the limit. Of a
    large file, only the rows are read that have more bytes."""
    rows: Iterable[tuple[int, Prompt]] = enumerate(prompts)
    if isinstance(prompts, FileRows):
        added = [_added_bound(encoder, prompt, columns) for prompt in prompts.facts.kinds]
        if None not in added:
            rows = prompts.larger(limit - max(filter(None, added), default=0), bool(columns))
    for i, prompt in rows:
        length = length_above(encoder, prompt, limit, columns)
        if length:
            yield i, length


def _added_bound(encoder: Encoder, prompt: Prompt, columns: Sequence[str]) -> int | None:
    """Return a bound on the number of tokens that are not of the texts of a row: the frame of its
    chat messages, and the end of a response."""
    bound = row_bound(encoder, prompt, columns)
    texts = [prompt.text or ""]
    if prompt.messages is not None:
        texts = [message["content"] for message in prompt.messages]
    bounds = list(map(encoder.text_bound, [*texts, *responses_of(prompt, columns)]))
    if bound is None or None in bounds:
        return None
    return bound - sum(filter(None, bounds))


def short_prompts(
    encoder: Encoder, prompts: Sequence[Prompt], limit: int | None, key: str = "data"
) -> Sequence[Prompt]:
    """Return the prompts with at most `limit` tokens; None: all.

    Raises:
        UserError: every prompt is longer.
    """
    if limit is None:
        return prompts
    above = dict(lengths_above(encoder, prompts, limit))
    if above and len(above) == len(prompts):
        raise UserError(
            f"{key}.max_prompt_tokens={limit}: all {len(prompts)} prompts of a split are longer: "
            f"type {key}.max_prompt_tokens={max(above.values())}, which keeps all"
        )
    return select(prompts, [i for i in range(len(prompts)) if i not in above])


def check_context(
    encoder: Encoder,
    prompts: Sequence[Prompt],
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
    # each text of a large file was checked when it was read
    for prompt in () if isinstance(prompts, FileRows) else prompts:
        is_blank = prompt.messages is None and not (prompt.text or "").strip()
        if is_blank and not encoder.encode(prompt):
            raise UserError(f"prompt {prompt.id} is empty: remove it from the data")
    if known is not None and known <= limit:
        return
    too_long = dict(lengths_above(encoder, prompts, limit))
    if not too_long:
        return
    advice = f"shorten the prompt or type a smaller {setting}"
    if filters and limit > 0 and len(too_long) < len(prompts):
        advice = (
            f"type data.max_prompt_tokens={limit} to leave out {len(too_long)} of "
            f"{len(prompts)} prompts, or a smaller {setting}"
        )
    first, length = next(iter(too_long.items()))
    name = "the model's context" if context == encoder.context_length else "rollout.max_length"
    raise UserError(
        f"prompt {prompts[first].id} has {length + num_added} tokens; with "
        f"{setting}={max_tokens} that exceeds {name} of {context}: {advice}"
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
    if isinstance(rollout, MultiTurn) and isinstance(rollout.environment, Agent):
        rollout = rollout.rollout  # a program may begin each turn anew
    has_turns = isinstance(rollout, MultiTurn)
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
        max_length=getattr(engine_of(rollout), "max_length", None),
        known=known,
    )


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

    few = largest(prompts, max(num, NUM_ENCODED), bound, bool(columns))
    return nlargest(num, few, key=size)


def forward_length(encoder: Encoder, prompt: Prompt, columns: Sequence[str]) -> int:
    """Return the number of tokens in a forward of a row of the data, whose candidates are padded to
    the longest. A row without a response has one more token."""
    num_candidates = len(responses_of(prompt, columns))
    return (row_length(encoder, prompt, columns) + (not num_candidates)) * max(1, num_candidates)


def longest_row(
    policy: Any, sources: Iterable[Sequence[Prompt]], rollout: Any, response: int = 0
) -> int:
    """Return the tokens of the longest prompt of all sources and the longest response to it that
    the rollout may sample, or of `response` tokens if this is more."""
    prompt = 0
    for prompts in sources:
        own = longest_texts(policy, prompts, (), rollout)
        prompt = max(prompt, own[0])
        response = max(response, own[1])
    return min(prompt + response, int(policy.context_length))


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
        # segments of a response may together be longer than the context
        response = max(response, min(rollout.max_tokens, encoder.context_length - prompt))
    return prompt, response
