"""The policy itself as the teacher, with more in its prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlmods.errors import UserError, suggest
from rlmods.needs import FrozenModelNeeds
from rlmods.policy import Policy
from rlmods.settings.bounds import PositiveFraction, bounded
from rlmods.teacher.demonstration import Demonstrated, filled
from rlmods.types import Graded, Prompt, Response

REPROMPT = "{prompt}\n\n{demonstration}\n\nSolve the original question correctly."
"""Default template of `sibling` and `feedback`."""
SIBLING = "A correct solution:\n\n"
FEEDBACK = "Feedback on your earlier, unsuccessful attempt:\n\n"


@dataclass(frozen=True, kw_only=True)
@bounded("teacher")
class SelfTeacher(Demonstrated):
    """The policy with more in its prompt: what it can do in context becomes what it does without
    it.

    With a demonstration of the data this is SDFT (arXiv:2601.19897) and OPSD (arXiv:2601.18734).
    With a correct response of the same group, or with feedback on the response itself, it is SDPO
    (arXiv:2601.20802): the teacher scores the tokens of the original response after

        prompt, another correct response to it (`sibling`), feedback on this one (`feedback`)

    A response for which there is neither gets no signal: its teacher's log-probabilities are left
    out. The demonstration is the first other correct response of the group, so a response is never
    its own, as by default in TRL; the authors' code allows that unless you set
    `dont_reprompt_on_self_success`, as their runs with feedback do. Feedback is shown for responses
    that are not correct, as the paper's template says; the authors' code shows it for all.

    Raises: UserError for a prompt that shows nothing, because policy and teacher would then be the
    same. ValueError for a field out of range.
    """

    weights: Literal["start", "current", "ema"] = "start"
    """start: the weights that training starts from, a frozen copy. current: the policy's weights as
    they change, which takes no memory and follows the policy, also where it goes wrong. ema: a
    copy that moves by `rate` towards the policy after each iteration."""
    rate: PositiveFraction = 0.05
    """Step of `weights=ema`: w_T <- (1 - rate) w_T + rate w, once after the optimizer steps of an
    iteration, as in the authors' code; TRL takes it after every optimizer step. An adapter's
    factors are averaged, not their product. Weights in bfloat16 (`policy.dtype`) lose steps that
    are smaller than their rounding: keep them in float32."""
    sibling: bool = False
    """Show the first other response of the group that is correct."""
    feedback: str | None = None
    """Column of the sample log with text about a response that is not correct, returned by the
    reward; null: none."""
    success: float = 1.0
    """Lowest score of a correct response, in correctness or, if the reward reports none, in total
    reward."""

    def __post_init__(self) -> None:
        if not self.shows_more:
            raise UserError(
                "teacher=self is the policy, from which it learns nothing without a "
                "demonstration: type teacher.sibling=true, teacher.feedback=COLUMN or "
                "teacher.demonstration=COLUMN"
            )
        if self.demonstration is not None and self.reads_responses:
            raise UserError(
                "teacher.demonstration shows a column of the data in place of teacher.sibling and "
                "teacher.feedback: drop it, or them"
            )
        super().__post_init__()

    @property
    def reads_responses(self) -> bool:
        """True if the prompt depends on responses."""
        return self.sibling or self.feedback is not None

    @property
    def shows_more(self) -> bool:
        return self.demonstration is not None or self.reads_responses

    @property
    def needs(self) -> FrozenModelNeeds:
        rate = self.rate if self.weights == "ema" else 0.0
        copies = self.weights != "current"
        return FrozenModelNeeds(
            copies_policy=copies, group=self.sibling, scores=self.reads_responses, rate=rate
        )

    def __call__(self, policy: Policy) -> Policy:
        """Return the teacher; with `weights=current` the policy itself."""
        return policy if self.weights == "current" else policy.frozen_copy()

    def prompt(self, prompt: Prompt) -> Prompt:
        if not self.reads_responses:
            return super().prompt(prompt)
        return filled(prompt, self.template or REPROMPT, "")

    def prompts(self, graded: Graded) -> list[Prompt | None]:
        if not self.reads_responses:
            return super().prompts(graded)
        is_correct = [score >= self.success for score in graded.correct]
        feedback = self._feedback(graded.columns, len(graded.responses))
        correct_rows: dict[int, list[int]] = {}
        for i, group in enumerate(graded.group):
            if is_correct[i]:
                correct_rows.setdefault(group, []).append(i)
        prompts: list[Prompt | None] = []
        for i, response in enumerate(graded.responses):
            sections = []
            others = [row for row in correct_rows.get(graded.group[i], ())[:2] if row != i]
            if self.sibling and others:
                solution = transcript(graded.responses[others[0]])
                sections.append(self._section(SIBLING, solution))
            if feedback[i] and not is_correct[i]:
                sections.append(self._section(FEEDBACK, feedback[i]))
            shown = "\n\n".join(sections)
            template = self.template or REPROMPT
            prompts.append(filled(response.prompt, template, shown) if sections else None)
        return prompts

    def _feedback(self, columns: Mapping[str, Sequence[Any]], num_rows: int) -> list[str]:
        """Return the feedback on each response; "" for none.

        Raises:
            UserError: the reward returns no such column.
        """
        if self.feedback is None:
            return [""] * num_rows
        # a term's columns begin with its name, as in function/why
        matches = [x for x in columns if x == self.feedback or x.endswith(f"/{self.feedback}")]
        if len(matches) != 1:
            advice = f"return Scores(values, columns={{{self.feedback!r}: texts}})"
            if columns:
                advice = suggest(self.feedback, [name.rpartition("/")[2] for name in columns])
            raise UserError(
                f"teacher.feedback={self.feedback}: the reward returns {len(matches)} such "
                f"columns: {advice}"
            )
        return ["" if text is None else str(text).strip() for text in columns[matches[0]]]

    def _section(self, title: str, text: str) -> str:
        """Return a text under its title; your own template has the titles that you write."""
        return text if self.template is not None else title + text


def transcript(response: Response) -> str:
    """Return the text of a response, with all of its turns and what was observed between them."""
    if not response.turns:
        return response.text
    parts = []
    for turn in response.turns:
        parts.append(turn.text)
        parts += [message["content"] for message in turn.observed]
    return "\n\n".join(parts)
