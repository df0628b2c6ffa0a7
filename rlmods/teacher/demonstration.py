"""The prompt that a teacher sees."""

from dataclasses import dataclass, replace

from rlmods.errors import UserError
from rlmods.judge.question import template_fields
from rlmods.types import Graded, Prompt

TEMPLATE = (
    "{prompt}\n\nThis is an example of a response:\n{demonstration}\n\nNow answer with a "
    "response of your own."
)
"""Default template."""


@dataclass(frozen=True, kw_only=True)
class Demonstrated:
    """Settings shared by all teachers: privileged information that the teacher's prompt contains
    and the policy's does not.

    The teacher scores the same response after a longer prompt. With a worked example this is SDFT
    (arXiv:2601.19897), with the solution of the same problem OPSD (arXiv:2601.18734).

    Raises: UserError for a template without `{prompt}` or `{demonstration}`, or with another field.
    """

    demonstration: str | None = None
    """Column of the data with a demonstration, solution or hint for each prompt; `answer` is the
    gold answer. null: the teacher sees the policy's prompt."""
    template: str | None = None
    """Text of the teacher's prompt, or of its last user message in a chat, with {prompt} and
    {demonstration}; a literal brace is written twice. null:
    `rlmods.teacher.demonstration.TEMPLATE`."""

    def __post_init__(self) -> None:
        if self.template is not None and not self.shows_more:
            raise UserError(
                "teacher.template is for a demonstration: type teacher.demonstration=COLUMN, "
                "or drop it"
            )
        fields = ("prompt", "demonstration")
        template_fields(self.template or TEMPLATE, fields, fields, "teacher.template")

    @property
    def shows_more(self) -> bool:
        """True if the teacher's prompt shows what the policy's does not."""
        return self.demonstration is not None

    def shows(self, prompt: Prompt) -> str | None:
        """Return the demonstration of a prompt; None if its row has none."""
        value = (
            prompt.answer
            if self.demonstration == "answer"
            else prompt.meta.get(str(self.demonstration))
        )
        return None if value is None else str(value)

    def prompt(self, prompt: Prompt) -> Prompt:
        """Return the prompt as the teacher sees it."""
        if self.demonstration is None:
            return prompt
        shown = self.shows(prompt)
        # checked by a rule
        assert shown is not None, f"prompt {prompt.id} has no {self.demonstration}"
        return filled(prompt, self.template or TEMPLATE, shown)

    def prompts(self, graded: Graded) -> list[Prompt | None]:
        """Return the prompt that the teacher sees before each response; None: it does not score
        it."""
        return [self.prompt(response.prompt) for response in graded.responses]


def filled(prompt: Prompt, template: str, shown: str) -> Prompt:
    """Return the prompt with its text, or its last user message, replaced by the template."""
    if prompt.messages is None:
        return replace(prompt, text=template.format(prompt=prompt.text, demonstration=shown))
    messages = [dict(message) for message in prompt.messages]
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    messages[last]["content"] = template.format(
        prompt=messages[last]["content"], demonstration=shown
    )
    return replace(prompt, messages=messages)
