"""Normal form of an expression, in which an edit that computes nothing makes no difference: order,
`+ 0`, `* 1`, `^1`, signs, names of bound variables, and ways to write roots and quotients. Numbers
are computed, and equal terms and factors collected.

It serves to recognise a copy, not to prove equality: roots of powers are taken apart without regard
to signs."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from rlmods.grading.grader.numbers import bits
from rlmods.grading.grader.syntax import Node

Key = Any
"""A nested tuple, equal for equal forms of bases and exponents."""
MAX_BITS = 2_000
"""Larger powers of numbers stay as they are."""
_ONE = Fraction(1)
_LIMITS = ("sum", "prod", "int")


class Product(NamedTuple):
    """A number times powers, of which each is (base, symbolic part of the exponent) -> factor of
    the exponent."""

    number: Fraction
    powers: tuple[tuple[Key, Fraction], ...] = ()


def normal_form(node: Node) -> Product:
    op = node.op
    if op == "number" and node.value is not None:
        return Product(node.value)
    if op == "neg":
        return _times([Product(Fraction(-1)), normal_form(node.args[0])])
    if op == "+":
        return _sum(node)
    if op == "*":
        return _times(map(normal_form, node.args))
    if op == "/":
        top, bottom = map(normal_form, node.args)
        return _times([top, _power(bottom, Product(Fraction(-1)))])
    if op == "^":
        return _power(*map(normal_form, node.args))
    if op == "call" and node.text == "sqrt":
        degree = normal_form(node.args[1]) if len(node.args) > 1 else Product(Fraction(2))
        return _power(normal_form(node.args[0]), _power(degree, Product(Fraction(-1))))
    if op == "abs" and not node.contains("name"):
        return normal_form(node.args[0])
    return _base(_other(node), _ONE)


def _base(base: Key, exponent: Fraction, symbolic: Key = ()) -> Product:
    return Product(_ONE, (((base, symbolic), exponent),))


def _other(node: Node) -> Key:
    """Return the key of a node that is neither a sum nor a product nor a power."""
    args = node.args
    text = "ln" if node.op == "call" and node.text == "log" else node.text
    if node.op in _LIMITS:
        text = f"bound {sum(part.op in _LIMITS for part in node.walk())}"
        args = (*args[:2], _renamed(args[2], node.text, text))
    return node.op, text, tuple(map(normal_form, args))


def _sum(node: Node) -> Product:
    collected: defaultdict[Key, Fraction] = defaultdict(Fraction)
    for term in map(normal_form, node.members("+")):
        collected[term.powers] += term.number
    terms = [Product(number, powers) for powers, number in collected.items() if number]
    if len(terms) < 2:
        return terms[0] if terms else Product(Fraction(0))
    terms = sorted(terms, key=lambda term: repr(term.powers))
    content = terms[0].number
    items = tuple((term.number / content, term.powers) for term in terms)
    return Product(content, _base(("+", items), _ONE).powers)


def _times(factors: Iterable[Product]) -> Product:
    number = _ONE
    collected: defaultdict[Key, Fraction] = defaultdict(Fraction)
    for factor in factors:
        number *= factor.number
        for key, exponent in factor.powers:
            collected[key] += exponent
    own = (("number", number), ())
    if own in collected:  # 7 / sqrt(7) is sqrt(7)
        collected[own] += 1
        number = _ONE
    if number == 0:
        return Product(number)
    powers = [(key, exponent) for key, exponent in collected.items() if exponent]
    return Product(number, tuple(sorted(powers, key=repr)))


def _power(base: Product, exponent: Product) -> Product:
    """Return the power, with the exponent's number apart from its symbols."""
    number, symbolic = exponent
    if number == 0:
        return Product(_ONE)
    factors = []
    for (inner, own), own_number in base.powers:
        joined = tuple(sorted((*own, *symbolic), key=repr))
        factors.append(_base(inner, own_number * number, joined))
    is_whole = number.denominator == 1 and not symbolic
    if base.number and is_whole and bits(base.number) * abs(number) <= MAX_BITS:
        factors.append(Product(base.number ** int(number)))
    elif base.number != 1:
        factors.append(_base(("number", base.number), number, symbolic))
    return _times(factors)


def _renamed(node: Node, old: str, new: str) -> Node:
    if node.op == "name" and node.text == old and not node.args:
        return replace(node, text=new)
    return replace(node, args=tuple(_renamed(arg, old, new) for arg in node.args))
