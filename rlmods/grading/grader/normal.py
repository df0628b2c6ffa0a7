"""Normal forms of expressions, in which an edit that computes nothing makes no difference: order,
`+ 0`, `* 1`, `^1`, signs, names of bound variables, and ways to write roots and quotients.

Two forms: the plain one keeps all numbers and terms; the folded one also computes with numbers and
collects equal terms and factors. They serve to recognise a copy, not to prove equality: roots of
powers are taken apart without regard to signs."""

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
_SYMMETRIC = frozenset(("cup", "cap", "list"))


@dataclass(frozen=True, slots=True)
class Product:
    """A number times powers, of which each is (base, symbolic part of the exponent) -> factor of
    the exponent."""

    number: Fraction
    powers: tuple[tuple[Key, Fraction], ...] = ()


def normal_forms(node: Node) -> tuple[Key, Key]:
    """Return the plain and the folded form of an expression."""
    return normal_form(node, folded=False), normal_form(node, folded=True)


def normal_form(node: Node, *, folded: bool) -> Key:
    return _Normal(folded).key(node)


class _Normal:
    def __init__(self, folded: bool) -> None:
        self.folded = folded
        self.num_bound = 0

    def key(self, node: Node) -> Key:
        product = self.product(node)
        return product.number, product.powers

    def product(self, node: Node) -> Product:
        op = node.op
        if op == "number" and node.value is not None:
            return self.of_number(node.value)
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
        if op == "call" and node.text == "exp":
            return self.power(self.atom(("name", "e", ())), self.product(node.args[0]))
        if op == "%":
            return self.times([self.product(node.args[0]), Product(Fraction(1, 100))])
        if op == "abs" and not node.contains("name"):
            return self.product(node.args[0])
        return self.atom(self.other(node))

    def of_number(self, value: Fraction) -> Product:
        if self.folded or abs(value) == 1 or value == 0:
            return Product(value)
        return self.atom(("number", value))

    def atom(self, base: Key) -> Product:
        return Product(_ONE, (((base, ()), _ONE),))

    def other(self, node: Node) -> Key:
        """Return the key of a node that is neither a sum nor a product nor a power."""
        if node.op in ("sum", "prod", "int"):
            self.num_bound += 1
            name = f"bound {self.num_bound}"
            body = _renamed(node.args[2], node.text, name)
            return node.op, name, (*map(self.key, node.args[:2]), self.key(body))
        text = "ln" if node.op == "call" and node.text == "log" else node.text
        keys = [self.key(arg) for arg in node.args]
        if node.op in _SYMMETRIC:
            keys = sorted({repr(key): key for key in keys}.values(), key=repr)
            text = ""
        return node.op, text, tuple(keys)

    def sum(self, node: Node) -> Product:
        terms = [self.product(term) for term in _terms(node)]
        terms = [term for term in terms if term.number != 0]
        if self.folded:
            collected: defaultdict[Key, Fraction] = defaultdict(Fraction)
            for term in terms:
                collected[term.powers] += term.number
            terms = [Product(number, powers) for powers, number in collected.items() if number]
        if len(terms) < 2:
            return terms[0] if terms else Product(Fraction(0))
        terms = sorted(terms, key=lambda term: (repr(term.powers), term.number))
        content = _ONE
        if self.folded:
            content = terms[0].number
        elif terms[0].number < 0:
            content = Fraction(-1)
        items = tuple((term.number / content, term.powers) for term in terms)
        return Product(content, (((("+", items), ()), _ONE),))

    def times(self, factors: Iterable[Product]) -> Product:
        number = _ONE
        powers: list[tuple[Key, Fraction]] = []
        collected: defaultdict[Key, Fraction] = defaultdict(Fraction)
        for factor in factors:
            number *= factor.number
            powers += factor.powers
        if number == 0:
            return Product(number)
        for key, exponent in powers:
            collected[key] += exponent
        items = {key: exponent for key, exponent in collected.items() if exponent}
        for key in list(items):
            base, symbolic = key
            is_number = base[0] == "number" and not symbolic and items[key].denominator == 1
            is_number = is_number and base[1] != 0  # 1/0 stays as it is
            if self.folded and is_number and bits(base[1]) * abs(items[key]) <= MAX_BITS:
                number *= base[1] ** int(items.pop(key))
        return Product(number, tuple(sorted(items.items(), key=repr)))

    def power(self, base: Product, exponent: Product) -> Product:
        """Return the power, with the exponent's number apart from its symbols."""
        number, symbolic = exponent.number, exponent.powers
        plain = _plain_number(exponent)
        if plain is not None:
            number, symbolic = plain, ()
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


def _plain_number(exponent: Product) -> Fraction | None:
    """Return the value of an exponent of one number or of a quotient of two, as of `1/2`, else
    None."""
    value = exponent.number
    for (base, symbolic), power in exponent.powers:
        if base[0] != "number" or symbolic or abs(power) != 1 or base[1] == 0:
            return None
        value *= base[1] ** int(power)
    return value


def _joined(own: Key, symbolic: Key) -> Key:
    return tuple(sorted((*own, *symbolic), key=repr))


def _terms(node: Node) -> list[Node]:
    """Return the terms of a sum, with brackets around sums removed."""
    if node.op == "+":
        return [term for arg in node.args for term in _terms(arg)]
    if node.op == "neg" and node.args[0].op in ("+", "neg"):
        return [_negated(term) for term in _terms(node.args[0])]
    return [node]


def _negated(node: Node) -> Node:
    return node.args[0] if node.op == "neg" else Node("neg", (node,))


def _renamed(node: Node, old: str, new: str) -> Node:
    if node.op == "name" and node.text == old and not node.args:
        return replace(node, text=new)
    return replace(node, args=tuple(_renamed(arg, old, new) for arg in node.args))
