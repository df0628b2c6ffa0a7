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

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from rlmods.grading.grader.evaluate import POINTS, evaluate, free_names, unknowns
from rlmods.grading.grader.literal import without_words
from rlmods.grading.grader.numbers import (
    THREAD,
    Undefined,
    Value,
    as_mp,
    close,
    divide,
    is_real,
    mp,
)
from rlmods.grading.grader.parse import parse
from rlmods.grading.grader.realset import FLIPPED, real_set
from rlmods.grading.grader.rules import STRICT, Rules, has_form, is_number
from rlmods.grading.grader.style import clean_pair
from rlmods.grading.grader.syntax import NEGATIONS, Node, ParseError
from rlmods.grading.grader.units import readings
from rlmods.grading.grader.values import letters, same_plain, same_value

_SKIPPED = re.compile(r"\s+|(?<!\\)\\[ ,;:!]|~")
_SINGLE = re.compile(r"\{([A-Za-z0-9]|(?<=\\triangle\{)[A-Z]{3})\}")
_SAME_NOTATION = (
    (re.compile(r"\\([gl])eq(?![A-Za-z])"), r"\\\1e"),
    (re.compile(r"\\mid(?![A-Za-z])"), "|"),
    (re.compile(r",?\s*&\s*(?:\\text\s*\{\s*(?:if|for|when)\s*\})?"), "&"),
    (
        re.compile(r"\(\s*\\text\s*\{\s*mod\s*\}\s*(\w+)\s*\)|\\[pb]?mod\s*\{?(\w+)\}?"),
        r"\\bmod \1\2",
    ),
    (re.compile(r"\\equiv\s*\{(\w+)\}"), r"\\equiv \1"),
)
"""Ways to write the same in a text outside the grammar."""
_NAME = re.compile(r"\A[A-Za-z](?:\([A-Za-z]\))?(?:=|\\sim)")
_TIME = re.compile(r"(?:[01]?\d|2[0-4]):[0-5]\d")
_SET_OPERATIONS = ("cup", "cap", "setminus")


def same_answer(answer: str, gold: str, rules: Rules = STRICT) -> bool:
    """Return True if the extracted `answer` equals `gold`. Always returns, in bounded time, for any
    text."""
    THREAD.reset()
    verdict = same_plain(answer, gold, rules)
    if verdict is not None:
        return verdict
    comparison = Comparison(rules)
    answer, gold = clean_pair(answer, gold)
    answer = without_words(answer, gold)
    return any(_same(comparison, *reading) for reading in readings(answer, gold))


def _same(comparison: Comparison, answer: str, gold: str) -> bool:
    try:
        gold_node = _parse_gold(gold)
    except ParseError:
        bare = _bare(answer)
        return _bare(gold) in (bare, _NAME.sub("", bare))
    is_list = gold_node.op in ("list", "group")
    for thousands in (True, False) if is_list else (True,):
        try:
            if comparison(gold_node, parse(answer, thousands=thousands)):
                return True
        except (ParseError, RecursionError):
            pass
    return False


def _bare(text: str) -> str:
    """Return the text of an answer outside the grammar without spaces and redundant braces, in one
    notation."""
    for notation, replacement in _SAME_NOTATION:
        text = notation.sub(replacement, text)
    return _SINGLE.sub(r"\1", _SKIPPED.sub("", text))


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
        if is_number(self.equation_value(gold), reduced=False):
            given = self.equation_value(answer)
            if given.op not in ("rel", "list") and not has_form(given, self.rules.form):
                return False
        return self.same(gold, answer)

    def same(self, gold: Node, answer: Node) -> bool:
        gold = _unwrap(gold)
        answer = _unwrap(answer)
        labelled = gold.op == "rel" and gold.args[0].op == "ratio"
        if gold.op != "rel" or answer.op != "rel":
            gold = self.equation_value(gold)
            answer = self.equation_value(answer)
        if is_number(gold, reduced=False) and _defines_a_sum(answer):
            answer = self.equation_value(Node("rel", answer.args[1:], answer.text[2:]))
        if _key(gold) == _key(answer):
            return True
        if _are_sets(gold, answer):
            return self.same_set(gold, answer)
        gold = _as_point(gold, answer)
        answer = _as_point(answer, gold)
        golds = _items(gold)
        answers = _items(answer)
        if golds is not None or answers is not None:
            return self.same_items(
                [gold] if golds is None else golds, [answer] if answers is None else answers
            )
        if _is_interval(gold) or (_is_tuple(gold) and _is_inequality(answer)):
            return self.same_set(gold, answer)
        if gold.op == "rel":
            return self.same_relation(gold, answer)
        return self.same_single(gold, answer, labelled)

    def same_single(self, gold: Node, answer: Node, labelled: bool) -> bool:
        """Compare tuples, ratios, matrices and values. A ratio is the same as its multiples, a time
        of day only if it is `labelled` as a ratio."""
        entries = gold.op == answer.op and gold.op in ("matrix", "row")
        if entries or "group" in (gold.op, answer.op):
            return self.same_sequence(gold, answer) and gold.text == answer.text
        if gold.op == "ratio" and _is_time(gold) and not labelled:
            return self.same_sequence(gold, answer)
        if gold.op == answer.op == "ratio":
            return self.same_sequence(gold, answer) or _proportional(gold, answer)
        return same_value(gold, answer, self.rules)

    def equation_value(self, node: Node) -> Node:
        """Return the last member, before any rounding of it, of an equation that is compared with
        something else; other nodes unchanged."""
        operators = node.text.split()
        if node.op != "rel" or not set(operators) <= {"=", "~="}:
            return node
        defines = _is_label(node.args[0])
        exact = operators.index("~=") if "~=" in operators else len(operators)
        if exact == 0 and defines:
            exact = 1
        value = node.args[exact]
        members = list(node.args[:exact])
        if defines or not unknowns(node):
            members = [x for x in members if not _is_label(x) and not unknowns(x)]
        # otherwise the steps of a calculation: (x+1)^2 = x^2+2x+1
        return value if all(self.same_item(value, member) for member in members) else node

    def same_items(self, golds: Sequence[Node], answers: Sequence[Node]) -> bool:
        """Compare as multisets: match each gold item with a different answer item. Values of
        different unknowns keep their order."""
        if len(golds) != len(answers):
            return False
        if _unknowns(golds) is not None and all(answer.op != "rel" for answer in answers):
            return all(map(self.same_item, golds, answers))
        remaining = list(answers)
        for gold in golds:
            alike = [answer for answer in remaining if _is_set(answer) == _is_set(gold)]
            found = next((answer for answer in alike if self.same_item(gold, answer)), None)
            if found is None:
                return False
            remaining.remove(found)
        return True

    def same_item(self, gold: Node, answer: Node) -> bool:
        """Compare two trees; an undefined value equals nothing."""
        try:
            return self.same(gold, answer)
        except Undefined:
            return False

    def same_sequence(self, gold: Node, answer: Node) -> bool:
        same_shape = gold.op == answer.op and len(gold.args) == len(answer.args)
        return same_shape and all(map(self.same_item, gold.args, answer.args))

    def same_set(self, gold: Node, answer: Node) -> bool:
        try:
            return real_set(gold).equals(real_set(answer))
        except ParseError:
            same_brackets = gold.op == "group" and gold.text == answer.text
            return same_brackets and self.same_sequence(gold, answer)

    def same_relation(self, gold: Node, answer: Node) -> bool:
        if answer.op != "rel":
            return _is_inequality(gold) and answer.op == "group" and self.same_set(gold, answer)
        operators = gold.text.split()
        flipped = [FLIPPED.get(operator, operator) for operator in answer.text.split()]
        mirrored = Node("rel", answer.args[::-1], " ".join(reversed(flipped)))
        for other in (answer, mirrored):
            if gold.text == other.text and self.same_sequence(gold, other):
                return True
        label = gold.args[0]
        is_defined = set(operators) == {"="} and _is_label(label)
        if is_defined and _key(label) == _key(answer.args[0]):
            value = self.equation_value(answer)
            return value.op != "rel" and self.same(gold.args[-1], value)
        if len(operators) == 1 and len(answer.args) == 2:
            return not _is_solved(gold) and _same_up_to_a_factor(gold, answer)
        return _unknown_members(gold) == _unknown_members(answer) and self.same_set(gold, answer)


strict = Comparison(STRICT)


def _unwrap(node: Node) -> Node:
    r"""Return S for `x \in S`, the difference of sets for `S - \{1\}`, and any other node
    unchanged."""
    if node.op == "rel" and node.text == "in":
        node = node.args[1]
    if node.op == "+" and node.args[0].op == "group" and node.args[1].op == "neg":
        removed = node.args[1].args[0]
        if removed.text == r"\{\}":
            return Node("setminus", (node.args[0], removed))
    return node


def _is_label(node: Node) -> bool:
    r"""Return True for an expression that an equation may define: x, x_1, f(3), AB, |AB|, A : B,
    (p, q), \text{Area}."""
    if node.op == "name":
        return node.text not in ("e", "i") or bool(node.args)
    if node.op == "text":
        return not NEGATIONS.intersection(node.text.casefold().replace("'", "").split())
    if node.op == "abs" and node.args[0].op == "name":
        return node.args[0].text.isupper()
    if node.op in ("abs", "ratio", "group", "*"):
        return bool(node.args) and all(map(_is_label, node.args))
    if node.op == "^":  # f^{-1}
        base, power = node.args
        return base.op == "name" and base.text in ("f", "g", "h") and power.op == "neg"
    return node.op == "apply"


def _defines_a_sum(node: Node) -> bool:
    """Return True for the value of a sum of letters, as of `m + n = 33` or `m + n = 7 + 26 =
    33`."""
    if node.op != "rel" or set(node.text.split()) != {"="}:
        return False
    left = node.args[0]
    letters_only = left.op == "+" and all(term.op == "name" for term in left.members("+"))
    return letters_only and is_number(node.args[-1], reduced=False)


def _is_solved(node: Node) -> bool:
    left, right = node.args
    defines_left = _is_label(left) and not unknowns(right)
    return node.text == "=" and (defines_left or (_is_label(right) and not unknowns(left)))


def _unknowns(items: Sequence[Node]) -> list[str] | None:
    """Return the unknowns of equations such as x = 1 and y = 2; None for other items, or for
    several values of one unknown."""
    names = []
    for item in items:
        if item.op != "rel" or item.text != "=" or item.args[0].op != "name":
            return None
        names.append(item.args[0].text + repr(item.args[0].args))
    return names if len(set(names)) == len(names) else None


def _unknown_members(relation: Node) -> set[object]:
    return set(map(_key, filter(free_names, relation.args)))


def _as_point(node: Node, other: Node) -> Node:
    """Return values of unknowns beside a tuple, such as `x = 1 and y = 2`, as a tuple in
    alphabetical order, and any other node unchanged."""
    names = _unknowns(node.args) if node.op == "list" and _is_tuple(other) else None
    if names is None:
        return node
    values = dict(zip(names, node.args, strict=True))
    return Node("group", tuple(values[name].args[1] for name in sorted(names)), "()")


def _items(node: Node) -> list[Node] | None:
    """Return the members of a list, a set in braces or a plus-minus expression; None for a single
    value."""
    is_set = node.op == "group" and node.text in (r"\{\}", "[]") and not _is_interval(node)
    members: list[Node] = []
    if node.op == "list" or is_set:
        for arg in node.args:
            members += (None if arg.op == "group" else _items(arg)) or [arg]
    elif node.contains("+-") and (node.op != "rel"):
        members = [_resolve_plus_minus(node, sign) for sign in (1, -1)]
    else:
        return None
    return members


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
    return all(_is_factor(factor) and close(factor, factors[0]) for factor in factors)


def _is_factor(value: Value) -> bool:
    """Return True for a finite number other than 0: 0 : 0 is a multiple of every ratio."""
    return not isinstance(value, tuple) and value != 0 and bool(mp().isfinite(as_mp(value)))


def _is_time(node: Node) -> bool:
    return _TIME.fullmatch(":".join(arg.text for arg in node.args)) is not None


def _is_set(node: Node) -> bool:
    return node.op == "group" and node.text == r"\{\}"


def _is_tuple(node: Node) -> bool:
    return node.op == "group" and node.text == "()"


def _is_interval(node: Node) -> bool:
    """Return True for a certain interval: a square bracket or an infinite end. (1, 2) may be a
    point."""
    if node.op != "group" or len(node.args) != 2:
        return False
    return node.text in ("[)", "(]", "[]") or node.contains("constant", "infty")


def _is_inequality(node: Node) -> bool:
    return node.op == "rel" and set(node.text.split()) <= {"<", ">", "<=", ">=", "!="}


def _are_sets(gold: Node, answer: Node) -> bool:
    """Return True if one node is a set operation, or a list of inequalities that are joined by
    "and" or "or" and compared with a set of numbers."""
    if gold.op in _SET_OPERATIONS or (answer.op in _SET_OPERATIONS and gold.op in ("group", "rel")):
        return True
    return _is_condition_on(gold, answer) or _is_condition_on(answer, gold)


def _is_condition_on(node: Node, numbers: Node) -> bool:
    is_set = numbers.op == "group" or numbers.op in _SET_OPERATIONS or _is_inequality(numbers)
    if node.op != "list" or not is_set:
        return False
    return all(item.text == "in" or _is_inequality(item) for item in node.args)


def _same_up_to_a_factor(gold: Node, answer: Node) -> bool:
    """Compare relations up to a constant factor c other than 0 (l = r and c l = c r); c < 0
    reverses an inequality."""
    if free_names(gold) != free_names(answer) or not free_names(gold):
        return False
    factors: list[Value] = []
    for point in range(POINTS):
        differences = [_difference(relation, point) for relation in (answer, gold)]
        if not all(map(_is_factor, differences)):
            return False
        factors.append(divide(*differences))
        if not close(factors[0], factors[-1]):
            return False
    if not (is_real(factors[0]) and as_mp(factors[0]).real > 0):
        return answer.text == FLIPPED.get(gold.text)
    return gold.text in FLIPPED and answer.text == gold.text


def _difference(relation: Node, point: int) -> Value:
    left, right = relation.args
    return evaluate(Node("+", (left, Node("neg", (right,)))), point)


def _key(node: Node) -> object:
    """Return a key that ignores the order of sums and of products, except products of matrices,
    permutations and letters."""
    if node.op not in ("+", "*"):
        text = node.text if node.op != "number" else str(node.value)
        return node.op, text, tuple(map(_key, node.args))
    keys = list(map(_key, node.members(node.op)))
    ordered = node.op == "*" and (
        node.contains("matrix") or node.contains("group") or letters(node) is not None
    )
    return node.op, tuple(keys if ordered else sorted(keys, key=repr))
