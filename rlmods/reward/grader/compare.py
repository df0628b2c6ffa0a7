"""Comparison of an answer with the gold answer, which determines the kind and the precision required of the answer.

- A decimal is accepted for a number that has no finite decimal (1/3, pi) if it is that number rounded to at least two places.
- A percentage equals its fraction, and the bare number if the gold is a percentage. A unit may be left out, but not differ.
- `x = 5` matches the gold 5 and vice versa; a gold equation with more than a name on its left requires an equation.
- Lists and sets are unordered, tuples ordered. `(1, 2)` as the gold is a point; the gold `1 < x < 2` accepts the interval `(1, 2)`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from rlmods.reward.grader.evaluate import POINTS, evaluate, free_names, reset_budget
from rlmods.reward.grader.numbers import TooLarge, Undefined, Value, as_mp, close, divide, is_real, mp
from rlmods.reward.grader.parse import parse
from rlmods.reward.grader.realset import FLIPPED, real_set
from rlmods.reward.grader.syntax import Node
from rlmods.reward.grader.tokens import ParseError
from rlmods.reward.grader.values import same_plain, same_value

MAX_ITEMS = 60


def same_answer(answer: str, gold: str) -> bool:
    """Return True if the extracted `answer` equals `gold`. Always returns, in bounded time, for any text."""
    reset_budget()
    plain_verdict = same_plain(answer, gold)
    if plain_verdict is not None:
        return plain_verdict
    try:
        gold_node = _parse_gold(gold)
    except ParseError:
        return False
    try:
        if same_tree(gold_node, parse(answer)):
            return True
    except ParseError:
        pass
    if gold_node.op not in ("list", "group"):
        return False
    try:
        return same_tree(gold_node, parse(answer, thousands=False))
    except ParseError:
        return False


_parse_gold = lru_cache(maxsize=4096)(parse)  # all answers of a group share one gold


def same_tree(gold: Node, answer: Node) -> bool:
    """Return True if two trees are equivalent. Raises ParseError when a size limit is exceeded."""
    gold, answer = _unwrap(gold), _unwrap(answer)
    if gold.op != "rel" or answer.op != "rel":
        gold, answer = _equation_value(gold, other=answer), _equation_value(answer, other=gold)
    if _key(gold) == _key(answer):
        return True
    if _is_set_operation(gold) or (_is_set_operation(answer) and gold.op in ("group", "rel")):
        return _same_set(gold, answer)
    golds, answers = _items(gold), _items(answer)
    if golds is not None or answers is not None:
        return _same_items([gold] if golds is None else golds, [answer] if answers is None else answers)
    if _is_interval(gold):
        return _same_set(gold, answer)
    if gold.op == "rel":
        return _same_relation(gold, answer)
    if answer.op == "rel" or _is_interval(answer):
        return False
    if gold.op == "group" or answer.op == "group":
        return _same_sequence(gold, answer) and gold.text == answer.text
    if gold.op == "ratio" and answer.op == "ratio":
        return _same_sequence(gold, answer) or _proportional(gold, answer)
    if gold.op == "matrix" and answer.op == "matrix":
        return len(gold.args) == len(answer.args) and all(map(_same_sequence, gold.args, answer.args))
    return same_value(gold, answer)


def _unwrap(node: Node) -> Node:
    r"""Return S for `x \in S`, and any other node unchanged."""
    return node.args[1] if node.op == "rel" and node.text == "in" else node


def _equation_value(node: Node, *, other: Node) -> Node:
    """Return the last member, before any rounding of it, of an equation compared with a non-equation; other nodes unchanged."""
    operators = node.text.split()
    if node.op != "rel" or other.op == "rel" or not set(operators) <= {"=", "~="}:
        return node
    if not _is_label(node.args[0]) and not _is_true_chain(node):
        return node
    exact = operators.index("~=") if "~=" in operators else len(operators)
    return node.args[max(exact, 1)]


def _is_true_chain(node: Node) -> bool:
    """Return True for a true numeric equation, such as 2 + 3 = 5."""
    return set(node.text.split()) == {"="} and not free_names(node) and all(_same_item(node.args[-1], arg) for arg in node.args[:-1])


def _is_label(node: Node) -> bool:
    """Return True for an expression that an equation may define: x, x_1, f(x), AB, |AB|, A : B, (p, q)."""
    if node.op == "name":
        return node.text not in ("e", "i") or bool(node.args)
    return node.op in ("abs", "ratio", "group", "*", "apply") and all(map(_is_label, node.args)) and bool(node.args)


def _items(node: Node) -> list[Node] | None:
    """Members of a list, a set in braces or a plus-minus expression; None for a single value."""
    if node.op == "list" or (node.op == "group" and node.text in (r"\{\}", "[]") and (len(node.args) != 2 or node.text != "[]")):
        members = [member for arg in node.args for member in (None if arg.op == "group" else _items(arg)) or [arg]]
    elif node.op != "rel" and _contains_op(node, "+-"):
        members = [_resolve_plus_minus(node, sign) for sign in (1, -1)]
    elif node.op == "rel" and node.text == "=" and _is_label(node.args[0]) and _contains_op(node.args[1], "+-"):
        members = [replace(node, args=(node.args[0], _resolve_plus_minus(node.args[1], sign))) for sign in (1, -1)]
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


def _same_items(golds: list[Node], answers: list[Node]) -> bool:
    """Compare as multisets: match each gold item with a different answer item."""
    if len(golds) != len(answers):
        return False
    remaining = list(answers)
    for gold in golds:
        match = next((index for index, answer in enumerate(remaining) if _same_item(gold, answer)), None)
        if match is None:
            return False
        del remaining[match]
    return True


def _same_item(gold: Node, answer: Node) -> bool:
    """Compare two trees; an undefined value equals nothing."""
    try:
        return same_tree(gold, answer)
    except Undefined:
        return False


def _same_sequence(gold: Node, answer: Node) -> bool:
    return gold.op == answer.op and len(gold.args) == len(answer.args) and all(map(_same_item, gold.args, answer.args))


def _proportional(gold: Node, answer: Node) -> bool:
    if len(gold.args) != len(answer.args):
        return False
    factors = [evaluate(Node("/", pair)) for pair in zip(answer.args, gold.args, strict=True)]
    return all(close(factor, factors[0]) for factor in factors)


def _is_interval(node: Node) -> bool:
    """Return True for a certain interval: a square bracket or an infinite end. (1, 2) may be a point."""
    ends_in_infinity = any(_contains_infinity(arg) for arg in node.args)
    return node.op == "group" and len(node.args) == 2 and (node.text in ("[)", "(]", "[]") or ends_in_infinity)


def _is_set_operation(node: Node) -> bool:
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
    mirrored = Node("rel", answer.args[::-1], " ".join(FLIPPED.get(op, op) for op in reversed(answer.text.split())))
    if gold.text == mirrored.text and _same_sequence(gold, mirrored):
        return True
    if set(operators) == {"="} and _is_label(gold.args[0]) and _key(gold.args[0]) == _key(answer.args[0]):
        value = _equation_value(answer, other=Node("text"))
        return value.op != "rel" and same_tree(gold.args[-1], value)
    if len(operators) == 1 and len(answer.args) == 2:
        return _same_up_to_a_factor(gold, answer)
    gold_unknowns, answer_unknowns = ({_key(arg) for arg in node.args if free_names(arg)} for node in (gold, answer))
    return gold_unknowns == answer_unknowns and _same_set(gold, answer)


def _same_up_to_a_factor(gold: Node, answer: Node) -> bool:
    """Compare relations up to a constant factor c other than 0 (l = r and c l = c r); c < 0 reverses an inequality."""
    if free_names(gold) != free_names(answer) or not free_names(gold):
        return False
    factor: Value = None
    for point in range(POINTS):
        gold_value, answer_value = (evaluate(Node("+", (node.args[0], Node("neg", (node.args[1],)))), point) for node in (gold, answer))
        if any(isinstance(value, tuple) or value == 0 or not mp().isfinite(as_mp(value)) for value in (gold_value, answer_value)):
            return False
        ratio = divide(answer_value, gold_value)
        if factor is not None and not close(factor, ratio):
            return False
        factor = ratio
    positive = is_real(factor) and as_mp(factor).real > 0
    return gold.text in FLIPPED and answer.text == (gold.text if positive or gold.text in ("=", "!=") else FLIPPED[gold.text])


def _key(node: Node) -> object:
    """Return a key that ignores the order of sums and of products, except products of matrices and permutations."""
    if node.op in ("+", "*"):
        ordered = node.op == "*" and (_contains_op(node, "matrix") or _contains_op(node, "group"))
        return (node.op, tuple(_flatten(node, node.op) if ordered else sorted(_flatten(node, node.op), key=repr)))
    return (node.op, node.text if node.op != "number" else str(node.value), tuple(_key(arg) for arg in node.args))


def _flatten(node: Node, op: str) -> list[object]:
    return [key for arg in node.args for key in _flatten(arg, op)] if node.op == op else [_key(node)]
