"""Whether an answer says the same as the gold. The gold decides of what kind the answer must be and how exact.

- A decimal in place of a number that has no finite decimal (1/3, pi) counts if it is that number rounded to at least two places.
- A percentage equals its fraction, and the bare number if the gold is a percentage. A unit may be left out; two that differ do not match.
- `x = 5` matches the gold 5 and the other way round; an equation with more than a name to its left needs an equation.
- Lists and sets are unordered, tuples ordered. `(1, 2)` as the gold is a point; `1 < x < 2` as the gold accepts the interval `(1, 2)`.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from rlmods.reward.grader.evaluate import POINTS, evaluate, free_names, renew_budget
from rlmods.reward.grader.numbers import TooLarge, Undefined, Value, as_mp, close, is_real, mp
from rlmods.reward.grader.parse import parse
from rlmods.reward.grader.realset import real_set
from rlmods.reward.grader.syntax import Node
from rlmods.reward.grader.tokens import ParseError
from rlmods.reward.grader.values import same_plain, same_value

MAX_ITEMS = 60
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


def same_answer(answer: str, gold: str) -> bool:
    """Whether the extracted `answer` is right. Always returns, in bounded time, whatever a model wrote."""
    renew_budget()
    quick = same_plain(answer, gold)
    if quick is not None:
        return quick
    try:
        gold_node = _parsed_gold(gold)
    except ParseError:
        return False
    try:
        if agree(gold_node, parse(answer)):
            return True
    except ParseError:
        pass
    if gold_node.op not in ("list", "group"):
        return False
    try:
        return agree(gold_node, parse(answer, thousands=False))
    except ParseError:
        return False


_parsed_gold = lru_cache(maxsize=4096)(parse)  # a group of answers has one gold


def agree(gold: Node, answer: Node) -> bool:
    """Whether two trees say the same. Raises ParseError where a bound is passed."""
    gold, answer = _unwrap(gold), _unwrap(answer)
    if gold.op != "rel" or answer.op != "rel":
        gold, answer = _side(gold, other=answer), _side(answer, other=gold)
    if _key(gold) == _key(answer):
        return True
    if _is_operation(gold) or (_is_operation(answer) and gold.op in ("group", "rel")):
        return _same_set(gold, answer)
    golds, answers = _items(gold), _items(answer)
    if golds is not None or answers is not None:
        return _same_items([gold] if golds is None else golds, [answer] if answers is None else answers)
    if _is_set(gold):
        return _same_set(gold, answer)
    if gold.op == "rel":
        return _same_relation(gold, answer)
    if answer.op == "rel" or _is_set(answer):
        return False
    if gold.op == "group" or answer.op == "group":
        return _same_sequence(gold, answer) and gold.text == answer.text
    if gold.op == "ratio" and answer.op == "ratio":
        return _same_sequence(gold, answer) or _proportional(gold, answer)
    if gold.op == "matrix" and answer.op == "matrix":
        return len(gold.args) == len(answer.args) and all(map(_same_sequence, gold.args, answer.args))
    return same_value(gold, answer)


def _unwrap(node: Node) -> Node:
    r"""`x \in S` says S."""
    return node.args[1] if node.op == "rel" and node.text == "in" else node


def _side(node: Node, *, other: Node) -> Node:
    """`node`, or what its equation says if the `other` is no equation: the last member, before any rounding of it."""
    operators = node.text.split()
    if node.op != "rel" or other.op == "rel" or not set(operators) <= {"=", "~="}:
        return node
    if not _is_label(node.args[0]) and not _is_true_chain(node):
        return node
    exact = operators.index("~=") if "~=" in operators else len(operators)
    return node.args[max(exact, 1)]


def _is_true_chain(node: Node) -> bool:
    """2 + 3 = 5"""
    return set(node.text.split()) == {"="} and not free_names(node) and all(_agree_or_not(node.args[-1], arg) for arg in node.args[:-1])


def _is_label(node: Node) -> bool:
    """Something that an equation may define: x, x_1, f(x), AB, |AB|, A : B, (p, q)."""
    if node.op == "name":
        return node.text not in ("e", "i") or bool(node.args)
    return node.op in ("abs", "ratio", "group", "*", "apply") and all(map(_is_label, node.args)) and bool(node.args)


def _items(node: Node) -> list[Node] | None:
    """The members of a list, a set in braces or a plus-minus expression; None for a single thing."""
    if node.op == "list" or (node.op == "group" and node.text in (r"\{\}", "[]") and (len(node.args) != 2 or node.text != "[]")):
        members = [member for arg in node.args for member in (None if arg.op == "group" else _items(arg)) or [arg]]
    elif node.op != "rel" and _contains_op(node, "+-"):
        members = [_choose(node, sign) for sign in (1, -1)]
    elif node.op == "rel" and node.text == "=" and _is_label(node.args[0]) and _contains_op(node.args[1], "+-"):
        members = [replace(node, args=(node.args[0], _choose(node.args[1], sign))) for sign in (1, -1)]
    else:
        return None
    if len(members) > MAX_ITEMS:
        raise TooLarge("too many items")
    return members


def _contains_op(node: Node, op: str) -> bool:
    return node.op == op or any(_contains_op(arg, op) for arg in node.args)


def _choose(node: Node, sign: int) -> Node:
    args = tuple(_choose(arg, sign) for arg in node.args)
    if node.op != "+-":
        return replace(node, args=args)
    plus = (node.text == "+-") == (sign > 0)
    return Node("+", (args[0], args[1] if plus else Node("neg", (args[1],))))


def _same_items(golds: list[Node], answers: list[Node]) -> bool:
    """As multisets: each gold finds an answer of its own."""
    if len(golds) != len(answers):
        return False
    left = list(answers)
    for gold in golds:
        match = next((index for index, answer in enumerate(left) if _agree_or_not(gold, answer)), None)
        if match is None:
            return False
        del left[match]
    return True


def _agree_or_not(gold: Node, answer: Node) -> bool:
    try:
        return agree(gold, answer)
    except Undefined:
        return False


def _same_sequence(gold: Node, answer: Node) -> bool:
    return gold.op == answer.op and len(gold.args) == len(answer.args) and all(map(_agree_or_not, gold.args, answer.args))


def _proportional(gold: Node, answer: Node) -> bool:
    if len(gold.args) != len(answer.args):
        return False
    factors = [evaluate(Node("/", pair)) for pair in zip(answer.args, gold.args, strict=True)]
    return all(close(factor, factors[0]) for factor in factors)


def _is_set(node: Node) -> bool:
    """Certainly an interval: a square bracket or an infinite end. (1, 2) may be a point."""
    ends_in_infinity = any(_contains_infinity(arg) for arg in node.args)
    return node.op == "group" and len(node.args) == 2 and (node.text in ("[)", "(]", "[]") or ends_in_infinity)


def _is_operation(node: Node) -> bool:
    return node.op in ("cup", "cap", "setminus")


def _contains_infinity(node: Node) -> bool:
    return (node.op == "constant" and node.text == "infty") or any(_contains_infinity(arg) for arg in node.args)


def _same_set(gold: Node, answer: Node) -> bool:
    try:
        return bool(real_set(gold) == real_set(answer))
    except TooLarge:
        raise
    except ParseError:
        return gold.op == answer.op == "group" and gold.text == answer.text and _same_sequence(gold, answer)


def _same_relation(gold: Node, answer: Node) -> bool:
    if answer.op != "rel":
        is_inequality = set(gold.text.split()) <= {"<", ">", "<=", ">=", "!="}
        return is_inequality and answer.op == "group" and _same_set(gold, answer)
    operators = gold.text.split()
    if gold.text == answer.text and _same_sequence(gold, answer):
        return True
    mirrored = Node("rel", answer.args[::-1], " ".join(_FLIPPED.get(op, op) for op in reversed(answer.text.split())))
    if gold.text == mirrored.text and _same_sequence(gold, mirrored):
        return True
    if set(operators) == {"="} and _is_label(gold.args[0]) and _key(gold.args[0]) == _key(answer.args[0]):
        said = _side(answer, other=Node("text"))
        return said.op != "rel" and agree(gold.args[-1], said)
    if len(operators) == 1 and len(answer.args) == 2:
        return _same_up_to_a_factor(gold, answer)
    unknowns, others = ({_key(arg) for arg in node.args if free_names(arg)} for node in (gold, answer))
    return unknowns == others and _same_set(gold, answer)


def _same_up_to_a_factor(gold: Node, answer: Node) -> bool:
    """l = r and c l = c r are the same for any constant c other than 0; an inequality turns round where c < 0."""
    if free_names(gold) != free_names(answer) or not free_names(gold):
        return False
    factor: Value = None
    for point in range(POINTS):
        ours, theirs = (evaluate(Node("+", (node.args[0], Node("neg", (node.args[1],)))), point) for node in (gold, answer))
        if any(isinstance(value, tuple) or value == 0 or not mp().isfinite(as_mp(value)) for value in (ours, theirs)):
            return False
        ratio = theirs / ours if isinstance(ours, Fraction) and isinstance(theirs, Fraction) else as_mp(theirs) / as_mp(ours)
        if factor is not None and not close(factor, ratio):
            return False
        factor = ratio
    positive = is_real(factor) and as_mp(factor).real > 0
    return gold.text in _FLIPPED and answer.text == (gold.text if positive or gold.text in ("=", "!=") else _FLIPPED[gold.text])


def _key(node: Node) -> object:
    """Equal for trees that differ only in the order of sums and of products, other than those of matrices and permutations."""
    if node.op in ("+", "*"):
        in_order = node.op == "*" and (_contains_op(node, "matrix") or _contains_op(node, "group"))
        return (node.op, tuple(_flat(node, node.op) if in_order else sorted(_flat(node, node.op), key=repr)))
    return (node.op, node.text if node.op != "number" else str(node.value), tuple(_key(arg) for arg in node.args))


def _flat(node: Node, op: str) -> list[object]:
    return [key for arg in node.args for key in _flat(arg, op)] if node.op == op else [_key(node)]
