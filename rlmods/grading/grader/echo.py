"""Answers that repeat the question instead of answering it: an expression of the question, with or
without an edit that computes nothing, and an expression whose evaluation is left to the reader.

Both have the right value. They are refused because a policy finds them without solving anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from rlmods.grading.grader.compare import equation_value, same_form
from rlmods.grading.grader.evaluate import reset_budget, unknowns
from rlmods.grading.grader.normal import Key, normal_form, normal_forms
from rlmods.grading.grader.numbers import close
from rlmods.grading.grader.parse import parse
from rlmods.grading.grader.realset import real_set
from rlmods.grading.grader.rules import is_number
from rlmods.grading.grader.style import clean, degrees, plain_characters
from rlmods.grading.grader.syntax import FUNCTIONS, Node, ParseError
from rlmods.grading.grader.values import plain_number

MAX_QUESTION_CHARS = 20_000
MAX_FORMULAS = 100
"""Formulas of a question that are compared with an answer."""
_OPERATION = re.compile(r"[+*/^!°]|(?<=[\w)}])-|\\[A-Za-z]|[A-Za-z]\(", re.ASCII)
_FORMULA = re.compile(r"[0-9\\^+*/=]|(?<![A-Za-z])[a-z](?![A-Za-z])")
_INSIGNIFICANT = re.compile(
    r"\\(?:left|right|displaystyle|limits)(?![A-Za-z])|\\q?quad(?![A-Za-z])"
    r"|\\[()\[\],;:! ]|[\s${}]"
)
_TIMES = re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_MATH = re.compile(
    r"\$\$((?:[^$\\]|\\.)+)\$\$|\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
_NAMES = "|".join(sorted((*FUNCTIONS, "pi", "binom"), key=len, reverse=True))
_RUN = re.compile(
    rf"(?:\\[A-Za-z]+|\\[{{}}|,;:!]|\b(?:{_NAMES})\b|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[0-9]"
    r"|[-+*/^_=<>(){}\[\]|!.,:;&°' ])+"
)
"""A formula in plain text."""
_SIDE = re.compile(r"\s*(?:,\s|;|=(?!=)|\\text\{[^{}]*\}|\\(?:q?quad|ldots|dots)(?![A-Za-z]))\s*")
_KNOWN = re.compile(r"[A-Za-z0-9]")
_EXPAND = re.compile(r"\b(?:expand|multiply out|product of|distribut)", re.IGNORECASE)
_TRIGONOMETRIC = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|a(?:sin|cos|tan)")
_LOGARITHMS = frozenset(("ln", "log", "lg"))
_COLLECTIONS = frozenset(("list", "group", "matrix", "row"))
_MIXED = re.compile(r"\d+ *\\frac\{?\d+\}?\{?\d+\}?")
"""A mixed number, which is a number that a question may hold."""


def repeats(answer: str, gold: str, question: str) -> bool:
    """Return True if the answer is an expression that occurs in the question and is not the gold in
    other notation.

    An edit that computes nothing makes no difference (`normal`). Numbers, words, and answers to
    golds that are words are not expressions."""
    if not _is_expression(answer) or not _FORMULA.search(gold) or _MIXED.fullmatch(clean(answer)):
        return False
    compact = _compact(clean(answer))
    if compact in _compact(question) and _OPERATION.search(compact) and not same_form(answer, gold):
        return True
    return any(_occurs(node, gold, question) for node in _expressions(answer))


def is_unevaluated(answer: str, gold: str, question: str) -> bool:
    """Return True if the answer leaves work to the reader that the gold has done: an integral, sum,
    product of brackets or of complex numbers, set operation or the like, which the gold lacks.

    What a person may leave as it is (a logarithm, a factorial, a root of a sum) counts only if the
    question has it too. Without a question nothing is unevaluated."""
    if not _KNOWN.search(question) or not _is_expression(answer) or not _FORMULA.search(gold):
        return False
    try:
        reset_budget()
        left = _work_of_members(answer) - _work_of_members(gold)
    except ParseError:
        return False
    if left & _ALWAYS:
        return True
    asked = _work_of_question(question)
    expands = _EXPAND.search(question) is not None
    asked = asked | {"brackets"} if expands else asked - {"bracket"}
    return bool(left & asked)


def _is_expression(answer: str) -> bool:
    plain = clean(answer)
    return plain_number(plain) is None and _OPERATION.search(_compact(plain)) is not None


def _compact(text: str) -> str:
    """Return `text` with one way to write products and fractions, and without spaces and braces."""
    text = degrees(_FRACTION.sub(r"\\frac", plain_characters(text)))
    return _INSIGNIFICANT.sub("", _TIMES.sub("*", text))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Node:
    return parse(text)


def _expressions(text: str) -> list[Node]:
    """Return the members of an answer that are expressions, of an equation the value."""
    try:
        node = _parsed(text)
    except ParseError:
        return []
    reset_budget()
    return [member for member in _members(node) if not _is_atom(member)]


def _members(node: Node) -> Iterator[Node]:
    if node.op == "rel":
        try:
            node = equation_value(node)
        except ParseError:
            return
    if node.op == "unit":
        node = node.args[0]
    if node.op in _COLLECTIONS:
        for arg in node.args:
            yield from _members(arg)
    else:
        yield node


def _is_atom(node: Node) -> bool:
    """Return True for a number or a symbol with a sign or a unit, which is not computed."""
    if node.op in ("neg", "unit", "%"):
        return _is_atom(node.args[0])
    if node.op == "rel":
        return all(map(_is_atom, node.args))
    return node.op in ("name", "constant", "text", "number", "base") or is_number(
        node, reduced=True
    )


def _occurs(node: Node, gold: str, question: str) -> bool:
    plain, folded = normal_forms(node)
    plain_forms, folded_forms = _forms_of_question(question)
    gold_plain, gold_folded = _forms_of_gold(gold)
    if plain in plain_forms and plain not in gold_plain:
        return True
    return folded in folded_forms and folded not in gold_folded


@lru_cache(maxsize=4096)
def _forms_of_gold(gold: str) -> tuple[frozenset[Key], frozenset[Key]]:
    nodes = _expressions(gold)
    plain = frozenset(normal_form(node, folded=False) for node in nodes)
    return plain, frozenset(normal_form(node, folded=True) for node in nodes)


@lru_cache(maxsize=1024)
def _forms_of_question(question: str) -> tuple[frozenset[Key], frozenset[Key]]:
    """Return the plain and the folded forms of all expressions of a question, and of their
    parts."""
    plain = set()
    folded = set()
    for formula in _formulas(question):
        for part in _parts(formula):
            plain.add(normal_form(part, folded=False))
            folded.add(normal_form(part, folded=True))
    return frozenset(plain), frozenset(folded)


def _parts(node: Node) -> Iterator[Node]:
    if _is_atom(node):
        return
    yield node
    for arg in node.args:
        yield from _parts(arg)


@lru_cache(maxsize=1024)
def _formulas(question: str) -> tuple[Node, ...]:
    nodes = []
    for text in islice(dict.fromkeys(_texts(question[:MAX_QUESTION_CHARS])), MAX_FORMULAS):
        try:
            nodes.append(parse(text))
        except ParseError:
            continue
    return tuple(nodes)


def _texts(question: str) -> Iterator[str]:
    """Yield the formulas of a question and the parts between their commas and equals signs."""
    for match in _MATH.finditer(question):
        yield from _sides(match[match.lastindex or 0])
    prose = plain_characters(_MATH.sub("\n", question))
    for match in _RUN.finditer(prose):
        if _OPERATION.search(match[0]):
            yield from _sides(match[0])


def _sides(formula: str) -> Iterator[str]:
    for text in (formula, *_SIDE.split(formula)):
        text = text.strip(" .,:;")
        if text:
            yield text


_ALWAYS = frozenset(("int", "sum", "prod", "matrices", "complex", "sets", "uncollected"))


@lru_cache(maxsize=1024)
def _work_of_question(question: str) -> frozenset[str]:
    return frozenset().union(*map(_work, _formulas(question)))


def _work_of_members(text: str) -> frozenset[str]:
    return frozenset().union(*map(_work, _members(_parsed(text))))


def _work(node: Node) -> frozenset[str]:
    """Return the kinds of work that an expression leaves."""
    return frozenset(_kinds(node))


def _kinds(node: Node) -> Iterator[str]:
    for arg in node.args:
        yield from _kinds(arg)
    op = node.op
    if op in ("int", "sum", "prod", "!", "mod", "floor", "ceil", "abs"):
        yield op
    elif op == "call":
        yield from _kinds_of_call(node)
    elif op in ("cup", "cap", "setminus"):
        if _combines_sets(node):
            yield "sets"
    elif op in ("*", "/", "^"):
        yield from _kinds_of_product(node)
    elif op == "+" and node.text != "mixed":
        if any(arg.contains("matrix") for arg in node.args):
            yield "matrices"
        if _collects(node):
            yield "uncollected"


def _kinds_of_call(node: Node) -> Iterator[str]:
    if _TRIGONOMETRIC.fullmatch(node.text):
        yield "trigonometric"
    elif node.text in _LOGARITHMS:
        yield "logarithm"
    elif node.text == "sqrt":
        if _sum_in(node.args[0]) is not None:
            yield "root of a sum"
    else:
        yield node.text


def _kinds_of_product(node: Node) -> Iterator[str]:
    factors = list(_factors(node))
    matrices = sum(factor.contains("matrix") for factor, _ in factors)
    if matrices > 1 or (node.op == "^" and matrices):
        yield "matrices"
    sums = sum(abs(power) for factor, power in factors if _sum_in(factor) is not None)
    if sums > 1:
        yield "brackets"
    if sums:
        yield "bracket"
    if any(power < 0 and _sum_in(factor) is not None for factor, power in factors):
        yield "quotient by a sum"
    imaginary = [(factor, power) for factor, power in factors if factor.contains("name", "i")]
    pure = sum(abs(power) for _, power in imaginary)
    if not unknowns(node) and (pure > 1 or any(power < 0 for _, power in imaginary)):
        yield "complex"
    numbers = [factor for factor, power in factors if power == 1 and factor.op == "number"]
    others = [factor for factor, _ in factors if factor.op != "number"]
    if len(numbers) > 1 and others:
        yield "uncollected"


def _factors(node: Node, power: int = 1) -> Iterator[tuple[Node, int]]:
    """Yield the factors of a product with their whole exponents; a factor to a fractional power is
    one factor."""
    if node.op == "neg":
        yield from _factors(node.args[0], power)
    elif node.op == "*":
        for arg in node.args:
            yield from _factors(arg, power)
    elif node.op == "/":
        yield from _factors(node.args[0], power)
        yield from _factors(node.args[1], -power)
    elif node.op == "^" and _whole(node.args[1]) is not None:
        yield from _factors(node.args[0], power * (_whole(node.args[1]) or 0))
    else:
        yield node, power


def _whole(node: Node) -> int | None:
    sign = 1
    if node.op == "neg":
        node = node.args[0]
        sign = -1
    value = node.value
    if node.op != "number" or value is None or value.denominator != 1 or value > 1000:
        return None
    return sign * int(value)


def _sum_in(node: Node) -> Node | None:
    """Return the sum that a factor is, else None."""
    while node.op == "neg":
        node = node.args[0]
    return node if node.op in ("+", "+-") and node.text != "mixed" else None


def _collects(node: Node) -> bool:
    """Return True if equal terms of a sum could be collected, or numbers added."""
    number, powers = normal_form(node, folded=True)
    if len(powers) == 1 and powers[0][0][0][0] == "+" and powers[0][1] == 1:
        num_terms = len(powers[0][0][0][1])
    else:
        num_terms = int(number != 0)
    return num_terms < _num_terms(node)


def _num_terms(node: Node) -> int:
    if node.op == "+" and node.text != "mixed":
        return sum(map(_num_terms, node.args))
    return _num_terms(node.args[0]) if node.op == "neg" else 1


def _combines_sets(node: Node) -> bool:
    """Return True if a set operation could be carried out: sets that meet, or finite sets."""
    if node.op == "cap":
        return True
    if node.op == "setminus":
        left, right = node.args
        return right.text != r"\{\}" or left.text == r"\{\}"
    try:
        reset_budget()
        members = list(_union(node))
        num_finite = sum(member.text == r"\{\}" for member in members)
        ends = real_set(node).ends
        all_ends = [end for member in members for end in real_set(member).ends]
        has_all = all(any(close(end, other) for other in ends) for end in all_ends)
        return num_finite > 1 or not has_all
    except ParseError:
        return False


def _union(node: Node) -> Iterator[Node]:
    if node.op == "cup":
        for arg in node.args:
            yield from _union(arg)
    else:
        yield node
