"""Sets of real numbers: finite unions of intervals and points, also written as inequalities."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key, partial

from rlmods.grading.grader.evaluate import evaluate, free_names
from rlmods.grading.grader.numbers import Value, add, as_mp, close, divide, is_real, mp, spend
from rlmods.grading.grader.syntax import Node, ParseError

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
Rule = Callable[[Sequence[bool]], bool]
_RULES: dict[str, Rule] = {"cup": any, "cap": all, "setminus": lambda x: x[0] and not x[1]}
"""Membership in a combination of sets, from the membership in each."""
Membership = Callable[[Value], bool]
"""Return True for a real number that is in the set."""
_X = Node("name", text="x")


@dataclass(frozen=True, slots=True)
class RealSet:
    """A set that the ends of its intervals divide into parts, each inside or outside."""

    ends: tuple[Value, ...]
    """Finite ends in ascending order."""
    inside: tuple[bool, ...]
    """Membership of the numbers below the first end, the first end itself, the numbers between it
    and the next end, and so on, of which no three in a row are equal around an end."""

    def equals(self, other: RealSet) -> bool:
        return self.inside == other.inside and all(map(close, self.ends, other.ends))


REALS = RealSet((), (True,))


def real_set(node: Node) -> RealSet:
    """Return the set of a bracket pair, a set in braces, an inequality in one unknown or a union of
    those; otherwise raise ParseError.

    A list of conditions is their intersection, or their union if joined by "or"; a list of sets is
    their union."""
    bounds: list[Value] = []
    return _divided(_membership(node, bounds), bounds)


def _divided(contains: Membership, bounds: Sequence[Value]) -> RealSet:
    """Return the set with this membership, which changes at some of `bounds` only."""
    points: list[Value] = []
    for bound in sorted(bounds, key=cmp_to_key(_compare)):
        if not (points and close(points[-1], bound)):
            points.append(bound)
    lowest = points[0] - abs(points[0]) - 1 if points else Fraction(0)
    ends = []
    inside = [contains(lowest)]
    for index, point in enumerate(points):
        above = [*points, point + abs(point) + 1][index + 1]
        parts = [contains(point), contains(divide(add(point, above), Fraction(2)))]
        if parts != [inside[-1], inside[-1]]:
            ends.append(point)
            inside += parts
    return RealSet(tuple(ends), tuple(inside))


def _membership(node: Node, bounds: list[Value]) -> Membership:
    """Return the membership in the set of a node, and add the bounds in the node to `bounds`."""
    membership = partial(_membership, bounds=bounds)
    if node.op == "rel":
        return _of_relation(node, bounds)
    if node.op == "list":
        return _of_list(node, bounds)
    if node.op in _RULES:
        return _combined(list(map(membership, node.args)), _RULES[node.op])
    if node.op == "group" and node.text == r"\{\}":
        points = [Node("rel", (_X, arg), "=") for arg in node.args]
        return _combined(list(map(membership, points)), any)
    if node.op == "group" and len(node.args) == 2:
        low, high = node.args
        order = _compare(_number(low), _number(high))
        if order > 0 or (order == 0 and node.text != "[]"):
            raise ParseError("the interval's ends are in descending order")
        above = "<=" if node.text[0] == "[" else "<"
        below = "<=" if node.text[1] == "]" else "<"
        return _of_relation(Node("rel", (low, _X, high), f"{above} {below}"), bounds)
    raise ParseError("not a set of real numbers")


def _combined(members: Sequence[Membership], rule: Rule) -> Membership:
    return lambda x: rule([contains(x) for contains in members])


def _of_list(node: Node, bounds: list[Value]) -> Membership:
    is_intersection = node.text != "or" and all(item.op == "rel" for item in node.args)
    members = list(map(partial(_membership, bounds=bounds), node.args))
    contains = _combined(members, all if is_intersection else any)
    sets = list(map(partial(_divided, bounds=bounds), members))
    if is_intersection:  # x in R beside a condition adds nothing
        sets = [subset for subset in sets if subset != REALS]
    if len(sets) > 1 and any(map(_divided(contains, bounds).equals, sets)):
        raise ParseError("alternatives, of which one is the whole set")
    return contains


def _of_relation(node: Node, bounds: list[Value]) -> Membership:
    signs = node.text.split()
    if signs == ["in"]:
        return _membership(node.args[1], bounds)
    unknown = [arg for arg in node.args if free_names(arg) - {"e"}]
    if not _RELATIONS.keys() >= set(signs) or len(unknown) != 1:
        raise ParseError("not an inequality in one unknown")
    sides = list(map(partial(_side, bounds=bounds), node.args))

    def contains(x: Value) -> bool:
        values = [side(x) for side in sides]
        orders = map(_compare, values[:-1], values[1:])
        return all(_RELATIONS[sign](order, 0) for sign, order in zip(signs, orders, strict=True))

    return contains


def _side(node: Node, bounds: list[Value]) -> Callable[[Value], Value]:
    """Return the value of a side of an inequality by the value of its unknown."""
    if _is_unknown(node):
        return lambda x: x
    if node.op == "abs" and _is_unknown(node.args[0]):
        return abs
    number = _number(node)
    if mp().isfinite(as_mp(number)):
        bounds += [number, -number]
    return lambda x: number


def _is_unknown(node: Node) -> bool:
    return node.op in ("name", "apply") and node.text not in ("e", "i")


def _number(node: Node) -> Value:
    if free_names(node) - {"e"}:
        raise ParseError("not a number")
    value = evaluate(node)
    if not is_real(value):
        raise ParseError("not a real number")
    return value if isinstance(value, Fraction) else value.real


def _compare(a: Value, b: Value) -> int:
    spend(2)
    return 0 if close(a, b) else (-1 if as_mp(a) < as_mp(b) else 1)
