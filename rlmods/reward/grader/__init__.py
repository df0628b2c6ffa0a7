"""From a response to a verdict: extract -> tokens -> parse -> compare (values, evaluate, realset).

Imports neither torch nor anything else that is slow to start with, and never evaluates text.
"""

from __future__ import annotations

from rlmods.reward.grader.compare import same_answer
from rlmods.reward.grader.extract import extract, extract_gold
from rlmods.reward.grader.values import same_plain

__all__ = ["extract", "extract_gold", "same_answer", "same_plain", "verify"]


def verify(text: str, gold: str) -> bool:
    """Whether the answer that `text` gives is the `gold` one. A text or gold that is not a string is wrong."""
    if not isinstance(text, str) or not isinstance(gold, str):
        return False
    answer = extract(text)
    return answer is not None and same_answer(answer, extract_gold(gold))
