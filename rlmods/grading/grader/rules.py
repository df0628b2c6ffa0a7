"""Which unusual forms of a right answer are accepted: the rules, and the forms of numbers."""

from dataclasses import dataclass
from math import gcd
from typing import Literal, get_args

from rlmods.grading.grader.syntax import Node

Form = Literal["number", "closed_form", "any"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Leniency of the comparison of an answer with its gold. The defaults are the strict ones: a
    policy finds whatever is lenient.

    Raises: ValueError for an unknown form.
    """

    form: Form = "number"
    """Form required where the gold is a plain number, so that repeating the question earns nothing.
    number: an integer, decimal, reduced fraction, percentage, mixed number or number in scientific
    notation, with a unit or a name (`x = 5`). closed_form: also unreduced fractions, and products
    and quotients with powers, roots, factorials, binomials, series and constants, such as 2^{10},
    but no sums, differences, or products of integers. any: every expression of the same value."""
    any_unit: bool = False
    """Accept any words after a number as its unit. By default units of `units` only, and the words
    of the gold's own unit."""
    irrational_digits: int = 5
    """Digits, from the first that is not 0, that a decimal needs to be accepted for an irrational
    number: 3.1416 for pi."""
    repeating_digits: int = 3
    """Digits that a decimal needs to be accepted for a fraction without a finite decimal: 0.333 for
    1/3."""
    sympy: bool = True
    """Let sympy decide, in a worker process, what evaluation cannot: sums and integrals with
    symbolic bounds, powers and inverses of matrices."""

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise ValueError(f"form={self.form!r} must be one of {', '.join(get_args(Form))}")


STRICT = Rules()
CLOSED_FORMS = Rules(form="closed_form")
"""Rules of `verify`, which grades outside training, where nothing learns to repeat the question."""

_CLOSED = frozenset(("^", "!", "int", "mod", "constant"))


def is_number(node: Node, *, reduced: bool) -> bool:
    """Return True for an integer, decimal, fraction, percentage, mixed number or number in
    scientific notation, with a sign and a unit, and for infinity. If `reduced`, a fraction must be
    in lowest terms."""
    if node.op in ("unit", "%", "neg"):
        return node.args[0].op != node.op and is_number(node.args[0], reduced=reduced)
    if node.op == "/":
        top, bottom = map(_integer, node.args)
        if top is None or not bottom:
            return False
        return not reduced or (gcd(top, bottom) == 1 and abs(bottom) != 1)
    if node.op == "*":
        mantissa, power = sorted(node.args, key=lambda arg: arg.op == "^")
        is_decimal = mantissa.op in ("number", "neg") and is_number(mantissa, reduced=True)
        return is_decimal and _is_power_of_ten(power)
    if node.op in ("+", "constant"):
        return node.text in ("mixed", "infty")
    return node.op == "number" or _is_power_of_ten(node)


def has_form(node: Node, form: Form) -> bool:
    """Return True if an answer to a gold that is a plain number has the required form."""
    if form == "any" or is_number(node, reduced=form == "number"):
        return True
    return form == "closed_form" and _is_closed_form(node)


def _is_closed_form(node: Node) -> bool:
    """Return True for a product or quotient of numbers and functions with at least one function, or
    of decimals in brackets side by side.

    The product of integers, (23)(56), and the sum or product of terms without its index, the sum of
    42 over k, are arithmetic."""
    if node.op in ("*", "/"):
        others = [arg for arg in node.args if not _is_closed_form(arg)]
        if not all(is_number(arg, reduced=False) for arg in others):
            return False
        side_by_side = node.op == "*" and node.text == "adjacent"
        return len(others) < 2 or (side_by_side and None in map(_integer, node.args))
    if node.op in ("sum", "prod"):
        return node.args[2].contains("name", node.text)
    if node.op in ("call", "name"):
        return node.text in ("binom", "sqrt", "e")
    return node.op in _CLOSED


def _integer(node: Node) -> int | None:
    if node.op == "neg":
        value = _integer(node.args[0])
        return None if value is None else -value
    return int(node.text) if node.op == "number" and node.text.isdecimal() else None


def _is_power_of_ten(node: Node) -> bool:
    return node.op == "^" and node.args[0].text == "10" and _integer(node.args[1]) is not None
