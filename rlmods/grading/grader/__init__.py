"""Grader of mathematical answers: extract -> style -> units -> syntax -> parse -> compare (rules,
values, numbers, evaluate, realset).

Importing it loads neither torch nor any other slow package. No text is ever evaluated as code.
"""

from rlmods.grading.grader.asked import as_asked
from rlmods.grading.grader.compare import same_answer
from rlmods.grading.grader.echo import is_unevaluated, misorders, repeats, restates
from rlmods.grading.grader.extract import extract, extract_gold
from rlmods.grading.grader.numbers import THREAD
from rlmods.grading.grader.rules import CLOSED_FORMS, Rules
from rlmods.grading.grader.syntax import ParseError, TooDeepError
from rlmods.grading.grader.values import is_gold, same_plain

__all__ = [
    "CLOSED_FORMS",
    "Rules",
    "as_asked",
    "extract",
    "extract_gold",
    "is_gold",
    "is_refused",
    "same_answer",
    "same_plain",
    "verify",
]


def verify(text: str, gold: str, rules: Rules = CLOSED_FORMS, question: str = "") -> bool:
    """Return True if the answer extracted from `text` equals `gold`; False if either is not a
    string.

    Runs in the caller's process, in bounded time. Unlike the reward `Accuracy`, by default it
    accepts closed forms for a gold that is a plain number, as other graders do: 2^{10} for 1024,
    but not 1000+24. Of what a known `question` asks, an answer may repeat or leave nothing
    (`is_refused`)."""
    if not isinstance(text, str) or not isinstance(gold, str):
        return False
    answer = extract(text)
    if answer is None:
        return False
    gold = extract_gold(gold)
    answer = as_asked(answer, gold, question)
    return same_answer(answer, gold, rules) and not is_refused(answer, gold, rules, question)


def is_refused(answer: str, gold: str, rules: Rules, question: str) -> bool:
    """Return True if an answer of the right value repeats the question, or leaves the work or the
    order that it asks for."""
    THREAD.reset()
    try:
        if any(rule(answer, gold, question) for rule in (repeats, restates, misorders)):
            return True
        return rules.form != "any" and is_unevaluated(answer, gold, question)
    except TooDeepError:
        return True  # a worker with more room on its stack may have read it
    except (ArithmeticError, ParseError, RecursionError):
        # words, a zeroth root, which has no normal form, or 5!!!!!!
        return False
