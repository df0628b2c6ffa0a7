"""Grader of mathematical answers: extract -> style -> tokens -> parse -> compare (literal, values, units, evaluate, calculus, realset).

Importing it loads neither torch nor any other slow package. No text is ever evaluated as code.
"""

from __future__ import annotations

from rlmods.reward.grader.compare import same_answer
from rlmods.reward.grader.extract import extract, extract_gold
from rlmods.reward.grader.rules import CLOSED_FORMS, Rules
from rlmods.reward.grader.values import is_gold, same_plain

__all__ = ["CLOSED_FORMS", "Rules", "extract", "extract_gold", "is_gold", "same_answer", "same_plain", "verify"]


def verify(text: str, gold: str, rules: Rules = CLOSED_FORMS) -> bool:
    """Return True if the answer extracted from `text` equals `gold`; False if either is not a string.

    Runs in the caller's process, in bounded time. Unlike the reward `Accuracy` it does not know the question, and by default it accepts
    closed forms for a gold that is a plain number, as other graders do: 2^{10} for 1024, but not 1000+24.
    """
    if not isinstance(text, str) or not isinstance(gold, str):
        return False
    answer = extract(text)
    return answer is not None and same_answer(answer, extract_gold(gold), rules)
