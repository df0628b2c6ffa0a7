"""Sets of real numbers: finite unions of intervals and points, also written as inequalities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key

from rlmods.grading.grader.evaluate import evaluate, free_names, spend
from rlmods.grading.grader.numbers import Value, as_mp, close, is_real, mp, multiply
from rlmods.grading.grader.syntax import Node, ParseError

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
Rule = Callable[[Sequence[bool]], bool]
"""Membership in a combination of sets, from the membership in each."""


@dataclass(frozen=True, slots=True)
class RealSet:
    """A set that the ends of its intervals divide into parts, each inside or outside."""

    ends: tuple[Value, ...]
    """Finite ends in ascending order."""
    inside: tuple[bool, ...]
    """Membership of the numbers below the first end, the first end itself, the numbers between it
    and the next end, and so on, of which no three in a row are equal around an end."""

    def part(self, x: Value, *, above: bool) -> bool:
        """Return the membership of x, or of the numbers right above it."""
        for i, end in enumerate(self.ends):
            order = _compare(x, end)
            if order < 0:
                return self.inside[2 * i]
            if order == 0 and not above:
                return self.inside[2 * i + 1]
        return self.inside[-1]

    def equals(self, other: RealSet) -> bool:
        return self.inside == other.inside and all(map(close, self.ends, other.ends))


REALS = RealSet((), (True,))
_X = Node("name", text="x")


def real_set(node: Node) -> RealSet:
    """Return the set of a bracket pair, a set in braces, an inequality in one unknown or a union of
    those; otherwise raise ParseError.

    A list of conditions is their intersection, or their union if joined by "or"; a list of sets is
    their union."""
    if node.op == "rel":
        return _from_relation(node)
    if node.op == "list":
        return _from_list(node)
    if node.op in ("cup", "cap", "setminus"):
        rules: dict[str, Rule] = {"cup": any, "cap": all, "setminus": lambda x: x[0] and not x[1]}
        return combine(map(real_set, node.args), rules[node.op])
    if node.op == "group" and node.text == r"\{\}":
        points = [RealSet((_number(arg),), (False, True, False)) for arg in node.args]
        return combine(points, any)
    if node.op == "group" and len(node.args) == 2:
        low, high = map(_number, node.args)
        return _interval(low, node.text[0] == "[", high, node.text[1] == "]")
    raise ParseError("not a set of real numbers")


def combine(sets: Iterable[RealSet], rule: Rule) -> RealSet:
    sets = list(sets)
    all_ends = [end for subset in sets for end in subset.ends]
    spend(4 * len(all_ends) ** 2)
    ends: list[Value] = []
    inside = [rule([subset.inside[0] for subset in sets])]
    for end in sorted(all_ends, key=cmp_to_key(_compare)):
        if ends and close(ends[-1], end):
            continue
        at_end = rule([subset.part(end, above=False) for subset in sets])
        above = rule([subset.part(end, above=True) for subset in sets])
        if not inside[-1] == at_end == above:
            ends.append(end)
            inside += [at_end, above]
    return RealSet(tuple(ends), tuple(inside))


def _from_list(node: Node) -> RealSet:
    is_intersection = node.text != "or" and all(item.op == "rel" for item in node.args)
    members = [real_set(item) for item in node.args]
    if is_intersection:  # x in R beside a condition adds nothing
        members = [member for member in members if member != REALS] or members[:1]
    combined = combine(members, all if is_intersection else any)
    if len(members) > 1 and any(map(combined.equals, members)):
        raise ParseError("alternatives, of which one is the whole set")
    return combined


def _from_relation(node: Node) -> RealSet:
    operators = node.text.split()
    if operators == ["in"]:
        return real_set(node.args[1])
    names = {(arg.args[0] if arg.op == "abs" else arg).text for arg in node.args if free_names(arg)}
    if not FLIPPED.keys() >= set(operators) or len(names) != 1:
        raise ParseError("not an inequality in one unknown")
    halves = []
    for operator, left, right in zip(operators, node.args[:-1], node.args[1:], strict=True):
        if _is_unknown(right) or right.op == "abs":
            halves.append(_half_line(right, FLIPPED[operator], _number(left)))
        else:
            halves.append(_half_line(left, operator, _number(right)))
    return combine(halves, all)


def _half_line(unknown: Node, operator: str, x: Value) -> RealSet:
    """Return the numbers that have the relation `operator` to x, or whose size has it."""
    if _is_unknown(unknown):
        below = operator in ("<", "<=", "!=")
        above = operator in (">", ">=", "!=")
        if mp().isinf(as_mp(x)):
            return RealSet((), (below if x > 0 else above,))
        return RealSet((x,), (below, "=" in operator and operator != "!=", above))
    if unknown.op != "abs" or not _is_unknown(unknown.args[0]):
        raise ParseError("not an inequality in one unknown")
    if not as_mp(x) > 0:
        raise ParseError("an absolute value needs a positive bound")
    name = unknown.args[0]
    mirrored = _half_line(name, FLIPPED[operator], multiply(x, Fraction(-1)))
    rule = all if operator in ("<", "<=", "!=") else any
    return combine([_half_line(name, operator, x), mirrored], rule)


def _is_unknown(node: Node) -> bool:
    return node.op in ("name", "apply") and node.text not in ("e", "i")


def _number(node: Node) -> Value:
    if free_names(node) - {"e"}:
        raise ParseError("not a number")
    value = evaluate(node)
    if not is_real(value):
        raise ParseError("not a real number")
    return value if isinstance(value, Fraction) else value.real


def _interval(low: Value, low_closed: bool, high: Value, high_closed: bool) -> RealSet:
    order = _compare(low, high)
    if order > 0 or (order == 0 and not (low_closed and high_closed)):
        raise ParseError("the interval's ends are in descending order")
    above = _half_line(_X, ">=" if low_closed else ">", low)
    below = _half_line(_X, "<=" if high_closed else "<", high)
    return combine([above, below], all)


def _compare(a: Value, b: Value) -> int:
    return 0 if close(a, b) else (-1 if as_mp(a) < as_mp(b) else 1)
