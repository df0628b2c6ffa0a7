"""Sets of real numbers: finite unions of intervals and points, also written as inequalities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key

from rlmods.grading.grader.evaluate import evaluate, free_names, spend
from rlmods.grading.grader.numbers import Value, as_mp, close, is_real, mp, scale
from rlmods.grading.grader.syntax import Node
from rlmods.grading.grader.tokens import ParseError

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval, or a point: both ends are the same number and closed."""

    low: Value
    low_closed: bool
    high: Value
    high_closed: bool


@dataclass(frozen=True, slots=True)
class RealSet:
    """Disjoint pieces in ascending order."""

    pieces: tuple[Piece, ...]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RealSet)
            and len(self.pieces) == len(other.pieces)
            and all(map(_same_piece, self.pieces, other.pieces))
        )

    __hash__ = None  # type: ignore[assignment]


REALS = RealSet((Piece(-mp().inf, False, mp().inf, False),))


def real_set(node: Node) -> RealSet:
    """Return the set of a bracket pair, a set in braces, an inequality in one unknown or a union of
    those; otherwise raise ParseError.

    A list of conditions is their intersection, or their union if joined by "or"; a list of sets is
    their union."""
    if node.op == "rel":
        return _from_relation(node)
    if node.op == "list":
        conditions = all(item.op == "rel" for item in node.args)
        members = [real_set(item) for item in node.args]
        if conditions and node.text != "or":
            members = [member for member in members if member != REALS] or members[:1]
        combined = combine(members, all if conditions and node.text != "or" else any)
        if len(members) > 1 and combined in members:
            raise ParseError("alternatives, of which one is the whole set")
        return combined
    if node.op in ("cup", "cap", "setminus"):
        rules: dict[str, Callable[[list[bool]], bool]] = {
            "cup": any,
            "cap": all,
            "setminus": lambda inside: inside[0] and not inside[1],
        }
        return combine([real_set(arg) for arg in node.args], rules[node.op])
    if node.op == "group" and node.text == r"\{\}":
        return combine([RealSet((Piece(x, True, x, True),)) for x in map(_number, node.args)], any)
    if node.op == "group" and len(node.args) == 2:
        return _interval(
            _number(node.args[0]), node.text[0] == "[", _number(node.args[1]), node.text[1] == "]"
        )
    raise ParseError("not a set of real numbers")


def combine(sets: list[RealSet], member: Callable[[list[bool]], bool]) -> RealSet:
    """Return the numbers x for which `member` holds of [x in set for each set], by testing every
    end and every gap between ends."""
    spend(16 * sum(len(subset.pieces) for subset in sets) ** 2)
    ends = _distinct(
        [end for subset in sets for piece in subset.pieces for end in (piece.low, piece.high)]
        + [-mp().inf, mp().inf]
    )
    atoms: list[tuple[Piece, bool]] = []
    for left, right in zip(ends, [*ends[1:], None], strict=True):
        if not mp().isinf(as_mp(left)):
            atoms.append(
                (
                    Piece(left, True, left, True),
                    member([_contains(subset, left) for subset in sets]),
                )
            )
        if right is not None:
            middle = _between(left, right)
            atoms.append(
                (
                    Piece(left, False, right, False),
                    member([_contains(subset, middle) for subset in sets]),
                )
            )
    merged: list[Piece] = []
    previous_inside = False
    for piece, inside in atoms:
        if inside and previous_inside:
            merged[-1] = Piece(merged[-1].low, merged[-1].low_closed, piece.high, piece.high_closed)
        elif inside:
            merged.append(piece)
        previous_inside = inside
    return RealSet(tuple(merged))


def _from_relation(node: Node) -> RealSet:
    operators = node.text.split()
    if operators == ["in"]:
        return real_set(node.args[1])
    unknowns = [arg for arg in node.args if free_names(arg)]
    if (
        any(operator not in FLIPPED for operator in operators)
        or len({(arg.args[0] if arg.op == "abs" else arg).text for arg in unknowns}) != 1
    ):
        raise ParseError("not an inequality in one unknown")
    halves = []
    for operator, left, right in zip(operators, node.args[:-1], node.args[1:], strict=True):
        if _is_unknown(right) or right.op == "abs":
            left, right, operator = right, left, FLIPPED[operator]
        if left.op == "abs" and _is_unknown(left.args[0]):
            halves.append(_within(operator, _number(right)))
            continue
        if not _is_unknown(left):
            raise ParseError("not an inequality in one unknown")
        halves.append(_half_line(operator, _number(right)))
    return combine(halves, all)


def _within(operator: str, x: Value) -> RealSet:
    """Return the numbers whose size has the relation `operator` to x."""
    if not as_mp(x) > 0:
        raise ParseError("an absolute value needs a positive bound")
    halves = [_half_line(operator, x), _half_line(FLIPPED[operator], scale(x, Fraction(-1)))]
    return combine(halves, all if operator[0] == "<" or operator == "!=" else any)


def _half_line(operator: str, x: Value) -> RealSet:
    below, above = (
        _interval(-mp().inf, False, x, operator == "<="),
        _interval(x, operator == ">=", mp().inf, False),
    )
    if operator == "=":
        return RealSet((Piece(x, True, x, True),))
    return (
        combine([below, above], any) if operator == "!=" else below if operator[0] == "<" else above
    )


def _is_unknown(node: Node) -> bool:
    return node.op in ("name", "apply") and node.text not in ("e", "i")


def _number(node: Node) -> Value:
    if free_names(node) - {"e"}:
        raise ParseError("not a number")
    value = evaluate(node)
    if not is_real(value):
        raise ParseError("not a real number")
    return value if not hasattr(value, "real") else value.real


def _interval(low: Value, low_closed: bool, high: Value, high_closed: bool) -> RealSet:
    order = _compare(low, high)
    if order > 0 or (order == 0 and not (low_closed and high_closed)):
        raise ParseError("the interval's ends are in descending order")
    infinite = [bool(mp().isinf(as_mp(end))) for end in (low, high)]
    return RealSet(
        (Piece(low, low_closed and not infinite[0], high, high_closed and not infinite[1]),)
    )


def _same_piece(a: Piece, b: Piece) -> bool:
    return (
        (a.low_closed, a.high_closed) == (b.low_closed, b.high_closed)
        and close(a.low, b.low)
        and close(a.high, b.high)
    )


def _compare(a: Value, b: Value) -> int:
    return 0 if close(a, b) else (-1 if as_mp(a) < as_mp(b) else 1)


def _distinct(ends: list[Value]) -> list[Value]:
    kept: list[Value] = []
    for end in sorted(ends, key=cmp_to_key(_compare)):
        if not kept or not close(kept[-1], end):
            kept.append(end)
    return kept


def _between(low: Value, high: Value) -> Value:
    a, b = as_mp(low), as_mp(high)
    if mp().isinf(a):
        return b - 1 if not mp().isinf(b) else mp().zero
    return a + 1 if mp().isinf(b) else (a + b) / 2


def _contains(subset: RealSet, x: Value) -> bool:
    def inside(piece: Piece) -> bool:
        low, high = _compare(piece.low, x), _compare(x, piece.high)
        return (low < 0 or (low == 0 and piece.low_closed)) and (
            high < 0 or (high == 0 and piece.high_closed)
        )

    return any(inside(piece) for piece in subset.pieces)
