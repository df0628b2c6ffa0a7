"""Literal numbers and closed forms: what an answer may be where the gold is a plain number, so that
repeating a question earns nothing."""

from __future__ import annotations

from math import gcd

from rlmods.grading.grader.rules import Form
from rlmods.grading.grader.syntax import Node

_CLOSED = frozenset(("^", "!", "int", "mod", "constant"))


def is_number(node: Node, *, reduced: bool) -> bool:
    """Return True for an integer, decimal, fraction, percentage, mixed number or number in
    scientific notation, with a sign and a unit, and for infinity. If `reduced`, a fraction must be
    in lowest terms."""
    if node.op in ("unit", "%", "neg"):
        return node.args[0].op != node.op and is_number(node.args[0], reduced=reduced)
    if node.op == "/":
        top, bottom = (_integer(arg) for arg in node.args)
        return (
            top is not None
            and bottom is not None
            and bottom != 0
            and not (reduced and (gcd(top, bottom) > 1 or abs(bottom) == 1))
        )
    if node.op == "+":
        return node.text == "mixed"
    if node.op == "*":
        mantissa, power = sorted(node.args, key=lambda arg: arg.op == "^")
        return (
            is_number(mantissa, reduced=True)
            and mantissa.op in ("number", "neg")
            and _is_power_of_ten(power)
        )
    return (
        node.op == "number"
        or _is_power_of_ten(node)
        or (node.op == "constant" and node.text == "infty")
    )


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
    if node.op in ("unit", "%", "neg"):
        return _is_closed_form(node.args[0])
    if node.op in ("*", "/"):
        if not all(is_number(arg, reduced=False) or _is_closed_form(arg) for arg in node.args):
            return False
        is_decimal = (
            node.op == "*"
            and node.text == "adjacent"
            and any(_integer(arg) is None for arg in node.args)
        )
        return is_decimal or any(map(_is_closed_form, node.args))
    if node.op in ("sum", "prod"):
        return _contains_name(node.args[2], node.text)
    return (
        node.op in _CLOSED
        or (node.op == "call" and node.text in ("binom", "sqrt", "!!"))
        or (node.op == "name" and node.text == "e")
    )


def _contains_name(node: Node, name: str) -> bool:
    return (node.op == "name" and node.text == name) or any(
        _contains_name(arg, name) for arg in node.args
    )


def _integer(node: Node) -> int | None:
    if node.op == "neg":
        value = _integer(node.args[0])
        return None if value is None else -value
    return (
        int(node.value)
        if node.op == "number" and node.value is not None and node.text.isdecimal()
        else None
    )


def _is_power_of_ten(node: Node) -> bool:
    return node.op == "^" and node.args[0].text == "10" and _integer(node.args[1]) is not None
