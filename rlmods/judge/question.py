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
    """1.0 for A, 0.0 for B, 0.5 for TIE: the last word of the last line, provided that no other of them is in that line. Else None."""
    line = next((line for line in reversed(reply.splitlines()) if line.strip()), "")
    words = re.findall(r"[^\W_]+", line)
    found = [word.upper() for word in words if word in ("A", "B") or word.upper() == "TIE"]  # "a" is an article
    return VERDICTS[found[0]] if len(set(found)) == 1 and words[-1].upper() == found[0] else None


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
