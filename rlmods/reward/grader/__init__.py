"""Grader of mathematical answers: extract -> tokens -> parse -> compare (values, evaluate, realset).

Importing it loads neither torch nor any other slow package. No text is ever evaluated as code.
"""

from __future__ import annotations

from rlmods.reward.grader.compare import same_answer
from rlmods.reward.grader.extract import extract, extract_gold
from rlmods.reward.grader.values import same_plain

__all__ = ["extract", "extract_gold", "same_answer", "same_plain", "verify"]


def verify(text: str, gold: str) -> bool:
    """Return True if the answer extracted from `text` equals `gold`; False if either is not a string."""
    if not isinstance(text, str) or not isinstance(gold, str):
        return False
    answer = extract(text)
    return answer is not None and same_answer(answer, extract_gold(gold))
