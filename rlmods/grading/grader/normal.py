"""Normal form of an expression, in which an edit that computes nothing makes no difference: order,
`+ 0`, `* 1`, `^1`, signs, names of bound variables, and ways to write roots and quotients. Numbers
are computed, and equal terms and factors collected.

It serves to recognise a copy, not to prove equality: roots of powers are taken apart without regard
to signs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rlmods.grading.grader.numbers import bits
from rlmods.grading.grader.syntax import Node

Key = Any
"""A nested tuple, equal for equal forms."""
MAX_BITS = 2_000
"""Larger powers of numbers stay as they are."""
_ONE = Fraction(1)


@dataclass(frozen=True, slots=True)
class Product:
    """A number times powers, of which each is (base, symbolic part of the exponent) -> factor of
    the exponent."""

    number: Fraction
    powers: tuple[tuple[Key, Fraction], ...] = ()


def normal_form(node: Node) -> Key:
    product = _Normal().product(node)
    return product.number, product.powers


class _Normal:
    def __init__(self) -> None:
        self.num_bound = 0

    def key(self, node: Node) -> Key:
        product = self.product(node)
        return product.number, product.powers

    def product(self, node: Node) -> Product:
        op = node.op
        if op == "number" and node.value is not None:
            return Product(node.value)
        if op == "neg":
            return self.times([Product(Fraction(-1)), self.product(node.args[0])])
        if op == "+":
            return self.sum(node)
        if op == "*":
            return self.times(map(self.product, node.args))
        if op == "/":
            top, bottom = map(self.product, node.args)
            return self.times([top, self.power(bottom, Product(Fraction(-1)))])
        if op == "^":
            base, exponent = map(self.product, node.args)
            return self.power(base, exponent)
        if op == "call" and node.text == "sqrt":
            degree = self.product(node.args[1]) if len(node.args) > 1 else Product(Fraction(2))
            return self.power(self.product(node.args[0]), self.power(degree, Product(-_ONE)))
        if op == "abs" and not node.contains("name"):
            return self.product(node.args[0])
        return Product(_ONE, (((self.other(node), ()), _ONE),))

    def other(self, node: Node) -> Key:
        """Return the key of a node that is neither a sum nor a product nor a power."""
        if node.op in ("sum", "prod", "int"):
            self.num_bound += 1
            name = f"bound {self.num_bound}"
            body = _renamed(node.args[2], node.text, name)
            return node.op, name, (*map(self.key, node.args[:2]), self.key(body))
        text = "ln" if node.op == "call" and node.text == "log" else node.text
        return node.op, text, tuple(map(self.key, node.args))

    def sum(self, node: Node) -> Product:
        collected: defaultdict[Key, Fraction] = defaultdict(Fraction)
        for term in map(self.product, _terms(node)):
            collected[term.powers] += term.number
        terms = [Product(number, powers) for powers, number in collected.items() if number]
        if len(terms) < 2:
            return terms[0] if terms else Product(Fraction(0))
        terms = sorted(terms, key=lambda term: repr(term.powers))
        content = terms[0].number
        items = tuple((term.number / content, term.powers) for term in terms)
        return Product(content, (((("+", items), ()), _ONE),))

    def times(self, factors: Iterable[Product]) -> Product:
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

    def power(self, base: Product, exponent: Product) -> Product:
        """Return the power, with the exponent's number apart from its symbols."""
        number, symbolic = exponent.number, exponent.powers
        if number == 0:
            return Product(_ONE)
        factors = [
            Product(_ONE, (((inner, _joined(own, symbolic)), own_number * number),))
            for (inner, own), own_number in base.powers
        ]
        if base.number != 1:
            whole = number.denominator == 1 and not symbolic
            size = bits(base.number) * abs(number)
            if whole and size <= MAX_BITS and base.number != 0:
                factors.append(Product(base.number ** int(number)))
            else:
                factors.append(Product(_ONE, (((("number", base.number), symbolic), number),)))
        return self.times(factors)


def _joined(own: Key, symbolic: Key) -> Key:
    return tuple(sorted((*own, *symbolic), key=repr))


def _terms(node: Node) -> list[Node]:
    """Return the terms of a sum, with brackets around sums removed."""
    if node.op == "+":
        return [term for arg in node.args for term in _terms(arg)]
    return [node]


def _renamed(node: Node, old: str, new: str) -> Node:
    if node.op == "name" and node.text == old and not node.args:
        return replace(node, text=new)
    return replace(node, args=tuple(_renamed(arg, old, new) for arg in node.args))
