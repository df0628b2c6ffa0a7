"""Equality by sympy, where numbers cannot decide: sums, products and integrals with symbolic
bounds, determinants, powers and inverses of matrices.

sympy is slow, so it runs in worker processes only, and stops after `LIMIT_S`."""

from typing import Literal

from rlmods.grading.grader.compare import same_answer, strict
from rlmods.grading.grader.evaluate import evaluate
from rlmods.grading.grader.numbers import THREAD
from rlmods.grading.grader.parse import parse
from rlmods.grading.grader.rules import STRICT, Rules, is_number
from rlmods.grading.grader.style import clean_pair
from rlmods.grading.grader.syntax import Node, ParseError, word_set
from rlmods.grading.time_limit import LateError, time_limit

LIMIT_S = 2.0
MAX_NODES = 80
_WORK = (("sum",), ("prod",), ("int",), ("call", "det"))
_SINGLE = word_set("number name constant neg + * / ^ ! % call abs sum prod int matrix")
Verdict = bool | Literal["sympy", "sympy timeout"]


def graded(answer: str, gold: str, rules: Rules = STRICT) -> Verdict:
    """Return the verdict of `same_answer`; "sympy" for answers that only sympy finds right, and
    "sympy timeout" if it was too slow to tell."""
    if same_answer(answer, gold, rules):
        return True
    if not rules.sympy:
        return False
    try:
        THREAD.reset()
        answer_node, gold_node = (strict.equation_value(parse(x)) for x in clean_pair(answer, gold))
    except ParseError:
        return False
    if not _is_open(answer_node, gold_node):
        return False
    # before the limit: importing sympy takes longer than most verdicts
    from rlmods.grading.grader.symbolic import equal

    try:
        with time_limit(LIMIT_S):
            return "sympy" if equal(answer_node, gold_node) else False
    except (LateError, MemoryError):
        return "sympy timeout"
    except Exception:  # sympy fails in many ways on what it does not know
        return False


def _is_open(answer: Node, gold: Node) -> bool:
    """Return True if numbers do not decide, and the answer leaves no work that the gold has
    done."""
    are_known = {answer.op, gold.op} <= _SINGLE
    are_small = len([*answer.walk(), *gold.walk()]) <= MAX_NODES
    leaves_work = any(answer.contains(*x) and not gold.contains(*x) for x in _WORK)
    is_done = is_number(gold, reduced=False) or (gold.op == "matrix" and answer.op != "matrix")
    if not (are_known and are_small) or leaves_work or is_done:
        return False
    return not (_has_value(answer) and _has_value(gold))


def _has_value(node: Node) -> bool:
    try:
        THREAD.reset()
        evaluate(node)
    except ParseError:
        return False
    return True
