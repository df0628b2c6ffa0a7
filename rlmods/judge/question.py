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
NAMES = ("prompt", "first", "second", "answer")
"""What a template may fill in."""
VERDICTS = {"A": 1.0, "B": 0.0, "TIE": 0.5}
OPENING = re.compile(r"((my|the|final|verdict|answer|choice|winner|decision|response|boxed|better|best|is|it|a|i|say|pick) ?)*", re.I)
"""Words that may come before a verdict on its line."""


def ask(template: str, prompt: Prompt, first: str, second: str) -> str:
    """The template with its names filled in: chat turns as `role: content`, a lone one as it is, a missing gold answer as ""."""
    if prompt.messages is None:
        request = prompt.text or ""
    elif len(prompt.messages) == 1:
        request = prompt.messages[0]["content"]
    else:
        request = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt.messages)
    return template.format_map({"prompt": request, "first": first, "second": second, "answer": prompt.answer or ""})


def read_verdict(reply: str) -> float | None:
    """1.0 for A, 0.0 for B, 0.5 for TIE: what the last line with a word in it says, alone or after words such as "Final verdict:". None for
    any other line."""
    lines = [words for line in reply.splitlines() if (words := re.findall(r"[^\W_]+", line))]
    *before, last = lines[-1] if lines else [""]
    alone = OPENING.fullmatch(" ".join(before)) is not None
    return VERDICTS.get("TIE" if last.upper() == "TIE" else last) if alone else None  # "a" is an article


def names(template: str) -> set[str]:
    """What the template fills in.

    Raises:
        UserError: stray braces, an unknown name, or a response that it does not show.
    """
    try:
        found = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise UserError(f"judge.template: {error}; write a literal brace twice") from error
    for name in sorted(found - set(NAMES)):
        raise UserError(f"judge.template: no {{{name}}} to fill in; there are {', '.join(NAMES)}, and a literal brace is written twice")
    for name in ("first", "second"):
        if name not in found:
            raise UserError(f"judge.template: it lacks {{{name}}}, so the judge would not see what it compares")
    return found
