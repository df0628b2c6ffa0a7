"""What a language model is asked as a judge, and how its reply is read."""

from __future__ import annotations

import re
from string import Formatter

from rlmods.types import Prompt, UserError

TEMPLATE = """\
Compare two responses to one request. Correctness counts first, then helpfulness, then clarity. Neither the order of the responses nor \
their length counts.

<request>
{prompt}
</request>

<response_A>
{first}
</response_A>

<response_B>
{second}
</response_B>

Say in a sentence or two what decides it. Then write the verdict on a last line of its own, one word: A, B or TIE."""
"""What is asked by default."""
RATING = """\
Rate a response to a request. Correctness counts first, then helpfulness, then clarity. Its length does not count.

<request>
{prompt}
</request>

<response>
{response}
</response>

Say in a sentence or two what decides it. Then write the rating on a last line of its own, one whole number from 0 (useless) to 10 \
(as good as can be)."""
"""What is asked by default of a single response."""
NAMES = ("prompt", "first", "second", "answer")
"""What a template of a comparison may fill in."""
RATED = ("prompt", "response", "answer")
"""What a template of a rating may fill in."""
BEST = 10
VERDICTS = {"A": 1.0, "B": 0.0, "TIE": 0.5}
OPENING = re.compile(r"((my|the|final|verdict|answer|choice|winner|decision|response|boxed|better|best|is|it|a|i|say|pick) ?)*", re.I)
"""Words that may come before a verdict on its line."""


def ask(template: str, prompt: Prompt, first: str, second: str) -> str:
    """The template with its names filled in: chat turns as `role: content`, a lone one as it is, a missing gold answer as ""."""
    return template.format_map({"prompt": _request(prompt), "first": first, "second": second, "answer": prompt.answer or ""})


def ask_rating(template: str, prompt: Prompt, response: str) -> str:
    """The template of a rating, filled in likewise."""
    return template.format_map({"prompt": _request(prompt), "response": response, "answer": prompt.answer or ""})


def _request(prompt: Prompt) -> str:
    if prompt.messages is None:
        return prompt.text or ""
    if len(prompt.messages) == 1:
        return str(prompt.messages[0]["content"])
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt.messages)


def read_verdict(reply: str) -> float | None:
    """1.0 for A, 0.0 for B, 0.5 for TIE: what the last line with a word in it says, alone or after words such as "Final verdict:". None for
    any other line."""
    lines = [words for line in reply.splitlines() if (words := re.findall(r"[^\W_]+", line))]
    *before, last = lines[-1] if lines else [""]
    alone = OPENING.fullmatch(" ".join(before)) is not None
    return VERDICTS.get("TIE" if last.upper() == "TIE" else last) if alone else None  # "a" is an article


def read_rating(reply: str) -> float | None:
    """0 to 1: what the last line with a word in it says, alone or after words such as "Rating:", of 10. None for any other line."""
    lines = [line.strip(" .*_`\t[]()$") for line in reply.splitlines() if re.search(r"\w", line)]
    found = re.fullmatch(r"(?:\D*[:\s*])?\**\s*(\d{1,2})(?:\s*/\s*10)?", lines[-1]) if lines else None
    rating = int(found[1]) if found else BEST + 1
    return rating / BEST if rating <= BEST else None


def names(template: str, known: tuple[str, ...] = NAMES, shown: tuple[str, ...] = ("first", "second")) -> set[str]:
    """What the template fills in.

    Args:
        known: what it may fill in.
        shown: what it must.

    Raises:
        UserError: stray braces, an unknown name, or a response that it does not show.
    """
    try:
        found = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise UserError(f"judge.template: {error}; write a literal brace twice") from error
    for name in sorted(found - set(known)):
        raise UserError(f"judge.template: no {{{name}}} to fill in; there are {', '.join(known)}, and a literal brace is written twice")
    for name in shown:
        if name not in found:
            raise UserError(f"judge.template: it lacks {{{name}}}, so the judge would not see what it judges")
    return found
