"""Answers that repeat the question instead of answering it: an expression of the question, with or
without an edit that computes nothing, and an expression whose evaluation is left to the reader.

Both have the right value. They are refused because a policy finds them without solving anything.
The functions raise ParseError for a text outside the grammar, which is neither."""

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import islice

from rlmods.grading.grader.compare import strict
from rlmods.grading.grader.evaluate import evaluate, unknowns
from rlmods.grading.grader.normal import Product, normal_form
from rlmods.grading.grader.numbers import THREAD, close, is_integer
from rlmods.grading.grader.parse import parse
from rlmods.grading.grader.realset import real_set
from rlmods.grading.grader.rules import is_number
from rlmods.grading.grader.style import MATH, clean, compact, flat, plain_characters
from rlmods.grading.grader.syntax import FUNCTIONS, Node, ParseError, TooDeepError
from rlmods.grading.grader.values import plain_number

MAX_QUESTION_CHARS = 20_000
MAX_FORMULAS = 100
"""Formulas of a question that are compared with an answer."""
_OPERATION = re.compile(r"[+*/^!°]|(?<=[\w)}])-|\\[A-Za-z]|[A-Za-z]\(", re.ASCII)
_FORMULA = re.compile(r"[0-9\\^+*/=]|(?<![A-Za-z])[a-z](?![A-Za-z])")
_NAMES = "|".join(sorted((*FUNCTIONS, "pi", "binom"), key=len, reverse=True))
_RUN = re.compile(
    rf"(?:\\[A-Za-z]+|\\[{{}}|,;:!]|\b(?:{_NAMES})\b|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[0-9]"
    r"|[-+*/^_=<>(){}\[\]|!.,:;&°' ])+"
)
"""A formula in plain text."""
_SIDE = re.compile(r"\s*(?:,\s|;|=(?!=)|\\text\{[^{}]*\}|\\(?:q?quad|ldots|dots)(?![A-Za-z]))\s*")
_KNOWN = re.compile(r"[A-Za-z0-9]")
_EXPAND = re.compile(
    r"\b(?:expan[ds]|multiply out|product of|distribut|as a polynomial"
    r"|without (?:bracket|parenthes))",
    re.IGNORECASE,
)
_FACTOR = re.compile(
    r"\bfactor(?:i[sz]e|ed|ing|isation|ization)?\b|\bas a product\b", re.IGNORECASE
)
_ORDER = re.compile(
    r"\b(?:(?:a|de)scending|(?:in|de)creasing|alphabetical|chronological) order\b"
    r"|\bfrom (?:the )?(?:least|smallest|lowest|greatest|largest|highest|biggest) (?:\w+ )?to\b",
    re.IGNORECASE,
)
_REWRITE = re.compile(r"\b(?:convert|(?:re)?write|express|simplify|reduce|change)\b", re.IGNORECASE)
_LITERAL = re.compile(r"\d{1,40}(?:,\d{3})*(?:\.\d{1,40})?|\.\d{1,40}", re.ASCII)
_QUANTITY = re.compile(r"\d[\d,.]{0,40}[A-Za-z]")
"""A number and the first letter of its unit."""
_TRIGONOMETRIC = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|a(?:sin|cos|tan)")
_LOGARITHMS = frozenset(("ln", "log", "lg"))
_COLLECTIONS = frozenset(("list", "group", "matrix", "row"))


def repeats(answer: str, gold: str, question: str) -> bool:
    """Return True if the answer is an expression that occurs in the question and is not the gold in
    other notation.

    An edit that computes nothing makes no difference (`normal`). Numbers, words, and answers to
    golds that are words are not expressions."""
    nodes = _expressions(answer) if _is_expression(answer, gold) else []
    asked = _sizes_of_question(question)
    wanted = _sizes(_expressions(gold) or ())
    if nodes is None:
        written = compact(clean(answer))
        return written in compact(question) and written != compact(clean(gold))
    return any(_occurs(node, asked, wanted) for node in nodes)


def restates(answer: str, gold: str, question: str) -> bool:
    """Return True for a number or ratio of the question that the gold writes in another notation,
    where the question asks to rewrite it, and for a quantity of the question in another unit than
    the gold."""
    given = _literals(answer)
    if given <= _literals(gold) or not given <= _literals(question):
        return False
    quantities = _QUANTITY.findall(_joined(answer))
    if quantities:
        return all(quantity in _joined(question) for quantity in quantities)
    is_plain = all(x.op == "ratio" or is_number(x, reduced=False) for x in _stated(answer))
    return is_plain and _REWRITE.search(question) is not None


def misorders(answer: str, gold: str, question: str) -> bool:
    """Return True for a list in another order than the gold, where the question asks for one."""
    if _ORDER.search(question) is None:
        return False
    golds = _stated(gold)
    return len(golds) > 1 and not all(map(strict.same_item, golds, _stated(answer)))


@lru_cache(maxsize=4096)
def _literals(text: str) -> frozenset[Fraction]:
    """Return the values of the numbers that a text holds."""
    literals = _LITERAL.findall(text[:MAX_QUESTION_CHARS])
    return frozenset(Fraction(literal.replace(",", "")) for literal in literals)


def _joined(text: str) -> str:
    """Return a text without spaces between numbers and words."""
    return re.sub(r"(?<=\d) (?=[A-Za-z])", "", flat(plain_characters(text[:MAX_QUESTION_CHARS])))


def is_unevaluated(answer: str, gold: str, question: str) -> bool:
    """Return True if the answer leaves work to the reader that the gold has done: an integral, sum,
    product of brackets or of complex numbers, set operation or the like, which the gold lacks.

    What a person may leave as it is (a logarithm, a factorial, a root of a sum) counts only if the
    question has it too. Without a question nothing is unevaluated."""
    if not _KNOWN.search(question) or not _is_expression(answer, gold):
        return False
    members = _stated(answer)
    gold_members = _stated(gold)
    THREAD.reset()
    left = _work(members) - _work(gold_members)
    has_factors = _num_factors(members) >= _num_factors(gold_members)
    if left & _ALWAYS or (_FACTOR.search(question) and not has_factors):
        return True
    asked = _work(_formulas(question))
    brackets = {"bracket", "brackets"} if _EXPAND.search(question) else set()
    return bool(left & (asked - {"bracket"} | brackets))


def _is_expression(answer: str, gold: str) -> bool:
    if plain_number(answer) is not None or not _FORMULA.search(gold):
        return False
    return _OPERATION.search(compact(clean(answer))) is not None


@lru_cache(maxsize=4096)
def _stated(text: str) -> tuple[Node, ...]:
    """Return the members of an answer, of an equation the value."""
    THREAD.reset()
    return tuple(_members(parse(text)))


def _expressions(text: str) -> list[Node] | None:
    """Return the members of an answer that are expressions; None for a text outside the
    grammar."""
    try:
        return [member for member in _stated(text) if not _is_atom(member)]
    except TooDeepError:
        raise
    except ParseError:
        return None


def _members(node: Node) -> Iterator[Node]:
    if node.op == "rel":
        try:
            node = strict.equation_value(node)
        except ParseError:
            return
    if node.op in _COLLECTIONS:
        for arg in node.args:
            yield from _members(arg)
    else:
        yield node


def _is_atom(node: Node) -> bool:
    """Return True for a number or a symbol with a sign or a unit, which is not computed."""
    if node.op == "rel":
        return all(map(_is_atom, node.args))
    return node.op in ("name", "constant", "text", "number", "base") or is_number(
        node, reduced=True
    )


Sizes = Mapping[Product, int]
"""By normal form: the size of the smallest expression that has it."""


def _occurs(node: Node, asked: Sizes, wanted: Sizes) -> bool:
    """Return True for an expression that is no simpler than one of the question with the same
    normal form, unless the gold is not simpler either."""
    form = normal_form(node)
    size = _size(node)
    return asked.get(form, size + 1) <= size > wanted.get(form, 0)


@lru_cache(maxsize=1024)
def _sizes_of_question(question: str) -> Sizes:
    return _sizes(formula for formula in _formulas(question) if not _is_atom(formula))


def _sizes(nodes: Iterable[Node]) -> Sizes:
    sizes: dict[Product, int] = {}
    for node in nodes:
        form = normal_form(node)
        sizes[form] = min(_size(node), sizes.get(form, MAX_QUESTION_CHARS))
    return sizes


def _size(node: Node) -> int:
    """Return 1000 for each symbol, number and function of an expression, and 1 for each digit."""
    if node.op == "number":
        return 1000 + len(node.text)
    size = sum(map(_size, node.args))
    if is_number(node, reduced=True):
        return 1000 + size % 1000
    return 1000 * (node.op in ("name", "call")) + size or 1000


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
    formulas = [match[match.lastindex or 0] for match in MATH.finditer(question)]
    prose = plain_characters(MATH.sub("\n", question))
    formulas += filter(_OPERATION.search, _RUN.findall(prose))
    for formula in formulas:
        yield from filter(None, (formula, *_SIDE.split(formula)))


_ALWAYS = frozenset(("int", "sum", "prod", "matrices", "complex", "sets", "uncollected"))


def _work(nodes: Iterable[Node]) -> set[str]:
    """Return the kinds of work that expressions leave."""
    kinds: set[str] = set()
    for node in nodes:
        for part in node.walk():
            kinds.update(_kinds(part))
    return kinds


def _num_factors(nodes: Iterable[Node]) -> int:
    """Return the number of factors that are sums."""
    return sum(_num_sums(_factors(node)) for node in nodes)


def _num_sums(factors: Iterable[tuple[Node, int]]) -> int:
    return sum(abs(power) for factor, power in factors if _is_sum(factor))


def _kinds(node: Node) -> Iterator[str]:
    op = node.op
    if op in ("int", "sum", "prod", "!", "mod", "abs"):
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
        yield "uncollected" if node.args[0].value == 1 else "logarithm"
    elif node.text == "sqrt" and node.args[0].op == "number":
        if len(node.args) == 1 and is_integer(evaluate(node)):
            yield "uncollected"
    elif node.text == "exp" and node.args[0].contains("call"):
        yield "uncollected"
    else:
        yield node.text


def _kinds_of_product(node: Node) -> Iterator[str]:
    if is_number(node, reduced=False):
        return
    factors = list(_factors(node))
    matrices = sum(factor.contains("matrix") for factor, _ in factors)
    if matrices > 1 or (node.op == "^" and matrices):
        yield "matrices"
    sums = _num_sums(factors)
    if sums > 1:
        yield "brackets"
    if sums:
        yield "bracket"
    if any(power < 0 and _is_sum(factor) for factor, power in factors):
        yield "quotient by a sum"
    imaginary = [(factor, power) for factor, power in factors if factor.contains("name", "i")]
    pure = sum(abs(power) for _, power in imaginary)
    if not unknowns(node) and (pure > 1 or any(power < 0 for _, power in imaginary)):
        yield "complex"
    operands = node.args[1:] if node.op == "/" else node.args
    if any(operand.value == 1 for operand in operands):
        yield "uncollected"
    multiplied = [x.op for x, power in factors if power > 0 and x.value != 1]
    if not unknowns(node) and max(multiplied.count("number"), multiplied.count("call")) > 1:
        yield "uncollected"


def _factors(node: Node, power: int = 1) -> Iterator[tuple[Node, int]]:
    """Yield the factors of a product with their whole exponents; a factor to a fractional power is
    one factor."""
    if node.op == "*":
        for arg in node.args:
            yield from _factors(arg, power)
    elif node.op == "/":
        yield from _factors(node.args[0], power)
        yield from _factors(node.args[1], -power)
    elif node.op == "^" and is_integer(node.args[1].value):
        yield from _factors(node.args[0], power * int(node.args[1].value or 0))
    else:
        yield node, power


def _is_sum(node: Node) -> bool:
    if node.op in ("neg", "abs"):
        return _is_sum(node.args[0])
    return node.op in ("+", "+-") and node.text != "mixed"


def _collects(node: Node) -> bool:
    """Return True if equal terms of a sum could be collected, or numbers added."""
    number, powers = normal_form(node)
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
    if node.op in ("cap", "setminus"):
        return node.args[1].text != r"\{\}" or node.op == "cap"
    try:
        THREAD.reset()
        members = node.members("cup")
        num_finite = sum(member.text == r"\{\}" for member in members)
        ends = real_set(node).ends
        all_ends = [end for member in members for end in real_set(member).ends]
        has_all = all(any(close(end, other) for other in ends) for end in all_ends)
        return num_finite > 1 or not has_all
    except ParseError:
        return False
