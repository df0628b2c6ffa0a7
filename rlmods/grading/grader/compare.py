"""Comparison of an answer with the gold answer, which determines the kind and the precision
required of the answer.

- A gold that is a plain number requires a number (`Rules.form`): an expression of its value may be
  the question.
- A decimal is accepted for a number that has no finite decimal (1/3, pi) if it is that number
  rounded, with enough digits.
- A percentage equals its fraction, and the bare number if the gold is a percentage. A unit may be
  left out; another one is converted if it measures the same. So may a base and a modulus, which an
  answer may not add.
- `x = 5` matches the gold 5 and vice versa; a gold equation with more than a name on its left
  requires an equation.
- Lists and sets are unordered, tuples ordered. The gold `(1, 2)` is a point, which accepts `1 < x <
  2` too, as it may be an interval; the gold `1 < x < 2` accepts the interval `(1, 2)`.

A computer algebra system would add nothing that is decided here in bounded time: expressions,
integrals and sums are compared by their values to many digits, sets of real numbers exactly. So
nothing but our own parser ever reads an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from rlmods.grading.grader.evaluate import POINTS, evaluate, free_names, reset_budget
from rlmods.grading.grader.literal import has_form, is_number
from rlmods.grading.grader.numbers import (
    TooLarge,
    Undefined,
    Value,
    as_mp,
    close,
    divide,
    is_real,
    mp,
)
from rlmods.grading.grader.parse import parse
from rlmods.grading.grader.quantity import readings
from rlmods.grading.grader.realset import FLIPPED, real_set
from rlmods.grading.grader.rules import STRICT, Rules
from rlmods.grading.grader.style import HALF_DAYS, clean_pair
from rlmods.grading.grader.syntax import Node
from rlmods.grading.grader.tokens import NEGATIONS, ParseError, clean
from rlmods.grading.grader.values import letters, same_plain, same_value

MAX_ITEMS = 60


def same_answer(answer: str, gold: str, rules: Rules = STRICT) -> bool:
    """Return True if the extracted `answer` equals `gold`. Always returns, in bounded time, for any
    text."""
    reset_budget()
    plain_verdict = same_plain(answer, gold, rules)
    if plain_verdict is not None:
        return plain_verdict
    comparison = Comparison(rules)
    return any(_same(comparison, *reading) for reading in readings(*clean_pair(answer, gold)))


def _same(comparison: Comparison, answer: str, gold: str) -> bool:
    """Return True if a clean answer equals a clean gold."""
    try:
        gold_node = _parse_gold(gold)
    except ParseError:
        return False
    try:
        if comparison(gold_node, parse(answer)):
            return True
    except ParseError:
        pass
    if gold_node.op not in ("list", "group"):
        return False
    try:
        return comparison(gold_node, parse(answer, thousands=False))
    except ParseError:
        return False


def same_form(answer: str, gold: str) -> bool:
    """Return True if two texts are the same expression, up to notation and the order of sums and
    products."""
    try:
        return _key(_parse_gold(gold)) == _key(parse(answer))
    except ParseError:
        return clean(answer) == clean(gold)


_parse_gold = lru_cache(maxsize=4096)(parse)  # all answers of a group share one gold


@dataclass(frozen=True, slots=True)
class Comparison:
    """Equivalence of two trees under `rules`. Raises ParseError when a size limit is exceeded."""

    rules: Rules

    def __call__(self, gold: Node, answer: Node) -> bool:
        """Return True if a whole answer equals a whole gold: its value too is as literal as the
        gold requires."""
        if _key(gold) == _key(answer):
            return True
        value = self.equation_value(gold, other=Node("text"))
        if is_number(value, reduced=False):
            given = self.equation_value(answer, other=Node("text"))
            if given.op not in ("rel", "list") and not has_form(given, self.rules.form):
                return False
        return self.same(gold, answer)

    def same(self, gold: Node, answer: Node) -> bool:
        """Return True if two trees are equivalent."""
        gold, answer = _unwrap(gold), _unwrap(answer)
        scaled = self.rules.scaled_times or (gold.op == "rel" and gold.args[0].op == "ratio")
        if gold.op != "rel" or answer.op != "rel":
            gold, answer = (
                self.equation_value(gold, other=answer),
                self.equation_value(answer, other=gold),
            )
        if _key(gold) == _key(answer):
            return True
        if (
            _is_set_operation(gold)
            or (_is_set_operation(answer) and gold.op in ("group", "rel"))
            or _is_condition(gold, answer)
        ):
            return self.same_set(gold, answer)
        if (coordinates := _coordinates(gold, answer)) is not None:
            return self.same_sequence(*coordinates)
        if (times := _times(gold, answer)) is not None:
            return (gold.op != answer.op or gold.text == answer.text) and self.same(*times)
        golds, answers = _items(gold), _items(answer)
        if golds is not None or answers is not None:
            return self.same_items(
                [gold] if golds is None else golds, [answer] if answers is None else answers
            )
        if _is_interval(gold) or (
            gold.op == "group" and gold.text == "()" and _is_inequality(answer)
        ):
            return self.same_set(gold, answer)
        if gold.op == "rel":
            return self.same_relation(gold, answer)
        if answer.op == "rel" or _is_interval(answer):
            return False
        if gold.op == "group" or answer.op == "group":
            return self.same_sequence(gold, answer) and gold.text == answer.text
        if gold.op == "ratio" and _is_time(gold) and not scaled:
            return self.same_sequence(gold, answer)
        if gold.op == "ratio" and answer.op == "ratio":
            return self.same_sequence(gold, answer) or _proportional(gold, answer)
        if gold.op == "matrix" and answer.op == "matrix":
            return len(gold.args) == len(answer.args) and all(
                map(self.same_sequence, gold.args, answer.args)
            )
        return same_value(gold, answer, self.rules)

    def equation_value(self, node: Node, *, other: Node) -> Node:
        """Return the last member, before any rounding of it, of an equation compared with a
        non-equation; other nodes unchanged."""
        operators = node.text.split()
        if node.op != "rel" or other.op == "rel" or not set(operators) <= {"=", "~="}:
            return node
        exact = operators.index("~=") if "~=" in operators else len(operators)
        if exact == 0 and _is_label(node.args[0]):
            exact = 1
        value, members = node.args[exact], node.args[:exact]
        if operators == ["="] and _is_label(value) and not _is_label(node.args[0]):
            value, members = node.args[0], ()
        elif not _is_label(node.args[0]) and free_names(node):
            return node
        if not (self.rules.false_chains and _is_label(node.args[0])):
            numbers = [
                member for member in members if not _is_label(member) and not free_names(member)
            ]
            if not all(self.same_item(value, member) for member in numbers):
                return node
        return value

    def same_items(self, golds: list[Node], answers: list[Node]) -> bool:
        """Compare as multisets: match each gold item with a different answer item. Values of
        different unknowns keep their order."""
        if len(golds) != len(answers):
            return False
        if _unknowns(golds) is not None and all(answer.op != "rel" for answer in answers):
            return all(map(self.same_item, golds, answers))
        remaining = list(answers)
        for gold in golds:
            match = next(
                (index for index, answer in enumerate(remaining) if self.same_item(gold, answer)),
                None,
            )
            if match is None:
                return False
            del remaining[match]
        return True

    def same_item(self, gold: Node, answer: Node) -> bool:
        """Compare two trees; an undefined value equals nothing."""
        try:
            return self.same(gold, answer)
        except Undefined:
            return False

    def same_sequence(self, gold: Node, answer: Node) -> bool:
        return (
            gold.op == answer.op
            and len(gold.args) == len(answer.args)
            and all(map(self.same_item, gold.args, answer.args))
        )

    def same_set(self, gold: Node, answer: Node) -> bool:
        try:
            return bool(real_set(gold) == real_set(answer))
        except TooLarge:
            raise
        except ParseError:
            return (
                gold.op == answer.op == "group"
                and gold.text == answer.text
                and self.same_sequence(gold, answer)
            )

    def same_relation(self, gold: Node, answer: Node) -> bool:
        if answer.op != "rel":
            return _is_inequality(gold) and answer.op == "group" and self.same_set(gold, answer)
        operators = gold.text.split()
        if gold.text == answer.text and self.same_sequence(gold, answer):
            return True
        mirrored = Node(
            "rel",
            answer.args[::-1],
            " ".join(FLIPPED.get(op, op) for op in reversed(answer.text.split())),
        )
        if gold.text == mirrored.text and self.same_sequence(gold, mirrored):
            return True
        if (
            set(operators) == {"="}
            and _is_label(gold.args[0])
            and _key(gold.args[0]) == _key(answer.args[0])
        ):
            value = self.equation_value(answer, other=Node("text"))
            return value.op != "rel" and self.same(gold.args[-1], value)
        if len(operators) == 1 and len(answer.args) == 2:
            return (self.rules.unsolved or not _is_solved(gold)) and _same_up_to_a_factor(
                gold, answer
            )
        gold_unknowns, answer_unknowns = (
            {_key(arg) for arg in node.args if free_names(arg)} for node in (gold, answer)
        )
        return gold_unknowns == answer_unknowns and self.same_set(gold, answer)


def _unwrap(node: Node) -> Node:
    r"""Return S for `x \in S`, the difference of sets for `S - \{1\}`, and any other node
    unchanged."""
    if node.op == "rel" and node.text == "in":
        node = node.args[1]
    if (
        node.op == "+"
        and node.args[0].op == "group"
        and node.args[1].op == "neg"
        and node.args[1].args[0].text == r"\{\}"
    ):
        return Node("setminus", (node.args[0], node.args[1].args[0]))
    return node


def _is_label(node: Node) -> bool:
    r"""Return True for an expression that an equation may define: x, x_1, f(3), AB, |AB|, A : B,
    (p, q), \text{Area}."""
    if node.op == "name":
        return node.text not in ("e", "i") or bool(node.args)
    if node.op == "text":
        return not NEGATIONS.intersection(node.text.casefold().replace("'", "").split())
    if node.op == "apply":
        return True
    return (
        node.op in ("abs", "ratio", "group", "*")
        and all(map(_is_label, node.args))
        and bool(node.args)
    )


def _is_solved(node: Node) -> bool:
    """Return True for an equation of an unknown and a number."""
    return node.text == "=" and any(
        _is_label(left) and not free_names(right) - {"e", "i"}
        for left, right in (node.args, node.args[::-1])
    )


def _unknowns(items: Iterable[Node]) -> list[str] | None:
    """Return the unknowns of equations such as x = 1 and y = 2; None for other items, or for
    several values of one unknown."""
    names = [
        item.args[0].text + repr(item.args[0].args) if item.op == "rel" and item.text == "=" else ""
        for item in items
    ]
    is_distinct = all(names) and len(set(names)) == len(names)
    return names if is_distinct and all(item.args[0].op == "name" for item in items) else None


def _coordinates(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Return two tuples if one node is a tuple and the other a list of values of as many unknowns,
    in alphabetical order."""
    for one, other in ((gold, answer), (answer, gold)):
        if (
            one.op == "group"
            and one.text == "()"
            and other.op == "list"
            and (names := _unknowns(other.args)) is not None
        ):
            values = [
                item.args[1]
                for _, item in sorted(zip(names, other.args, strict=True), key=lambda pair: pair[0])
            ]
            point = Node("group", tuple(values), "()")
            return (one, point) if one is gold else (point, one)
    return None


def _items(node: Node) -> list[Node] | None:
    """Members of a list, a set in braces or a plus-minus expression; None for a single value."""
    if node.op == "list" or (
        node.op == "group"
        and node.text in (r"\{\}", "[]")
        and (len(node.args) != 2 or node.text != "[]")
    ):
        members = [
            member
            for arg in node.args
            for member in (None if arg.op == "group" else _items(arg)) or [arg]
        ]
    elif node.op != "rel" and _contains_op(node, "+-"):
        members = [_resolve_plus_minus(node, sign) for sign in (1, -1)]
    elif (
        node.op == "rel"
        and node.text == "="
        and _is_label(node.args[0])
        and _contains_op(node.args[1], "+-")
    ):
        members = [
            replace(node, args=(node.args[0], _resolve_plus_minus(node.args[1], sign)))
            for sign in (1, -1)
        ]
    else:
        return None
    if len(members) > MAX_ITEMS:
        raise TooLarge("too many items")
    return members


def _contains_op(node: Node, op: str) -> bool:
    return node.op == op or any(_contains_op(arg, op) for arg in node.args)


def _resolve_plus_minus(node: Node, sign: int) -> Node:
    args = tuple(_resolve_plus_minus(arg, sign) for arg in node.args)
    if node.op != "+-":
        return replace(node, args=args)
    plus = (node.text == "+-") == (sign > 0)
    return Node("+", (args[0], args[1] if plus else Node("neg", (args[1],))))


def _proportional(gold: Node, answer: Node) -> bool:
    if len(gold.args) != len(answer.args):
        return False
    factors = [evaluate(Node("/", pair)) for pair in zip(answer.args, gold.args, strict=True)]
    return all(close(factor, factors[0]) for factor in factors)


def _times(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Return two times of day without "am" or "pm", if one of them has it; None for other nodes."""
    if not any(
        node.op == "unit" and node.text in HALF_DAYS and node.args[0].op == "ratio"
        for node in (gold, answer)
    ):
        return None
    return (gold.args[0] if gold.op == "unit" else gold), (
        answer.args[0] if answer.op == "unit" else answer
    )


def _is_time(node: Node) -> bool:
    texts = [arg.text for arg in node.args]
    return (
        len(texts) == 2
        and all(map(str.isdecimal, texts))
        and len(texts[1]) == 2
        and int(texts[0]) <= 24
        and int(texts[1]) < 60
    )


def _is_interval(node: Node) -> bool:
    """Return True for a certain interval: a square bracket or an infinite end. (1, 2) may be a
    point."""
    ends_in_infinity = any(_contains_infinity(arg) for arg in node.args)
    return (
        node.op == "group"
        and len(node.args) == 2
        and (node.text in ("[)", "(]", "[]") or ends_in_infinity)
    )


def _is_set_operation(node: Node) -> bool:
    return node.op in ("cup", "cap", "setminus")


def _is_inequality(node: Node) -> bool:
    return node.op == "rel" and set(node.text.split()) <= {"<", ">", "<=", ">=", "!="}


def _is_condition(gold: Node, answer: Node) -> bool:
    """Return True if one node is a list of inequalities, joined by "and" or "or", and the other is
    a set of numbers."""
    return any(
        one.op == "list"
        and all(arg.text == "in" or _is_inequality(arg) for arg in one.args)
        and (other.op == "group" or _is_set_operation(other) or _is_inequality(other))
        for one, other in ((gold, answer), (answer, gold))
    )


def _contains_infinity(node: Node) -> bool:
    return (node.op == "constant" and node.text == "infty") or any(
        _contains_infinity(arg) for arg in node.args
    )


def _same_up_to_a_factor(gold: Node, answer: Node) -> bool:
    """Compare relations up to a constant factor c other than 0 (l = r and c l = c r); c < 0
    reverses an inequality."""
    if free_names(gold) != free_names(answer) or not free_names(gold):
        return False
    factor: Value = None
    for point in range(POINTS):
        gold_value, answer_value = (
            evaluate(Node("+", (node.args[0], Node("neg", (node.args[1],)))), point)
            for node in (gold, answer)
        )
        if any(
            isinstance(value, tuple) or value == 0 or not mp().isfinite(as_mp(value))
            for value in (gold_value, answer_value)
        ):
            return False
        ratio = divide(answer_value, gold_value)
        if factor is not None and not close(factor, ratio):
            return False
        factor = ratio
    positive = is_real(factor) and as_mp(factor).real > 0
    return gold.text in FLIPPED and answer.text == (
        gold.text if positive or gold.text in ("=", "!=") else FLIPPED[gold.text]
    )


def _key(node: Node) -> object:
    """Return a key that ignores the order of sums and of products, except products of matrices,
    permutations and letters."""
    if node.op in ("+", "*"):
        ordered = node.op == "*" and (
            _contains_op(node, "matrix") or _contains_op(node, "group") or letters(node) is not None
        )
        return (
            node.op,
            tuple(
                _flatten(node, node.op) if ordered else sorted(_flatten(node, node.op), key=repr)
            ),
        )
    return (
        node.op,
        node.text if node.op != "number" else str(node.value),
        tuple(_key(arg) for arg in node.args),
    )


def _flatten(node: Node, op: str) -> list[object]:
    return (
        [key for arg in node.args for key in _flatten(arg, op)] if node.op == op else [_key(node)]
    )
