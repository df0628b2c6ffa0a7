"""Mutations that cosmic-ray does not make: of gradients, reductions, bounds and masks.

Each is an operator of cosmic-ray, which selects places in the syntax tree and never by the text of
a line."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import parso
from cosmic_ray.operators.operator import Example, Operator

Position = tuple[tuple[int, int], tuple[int, int]]


def parse(code: str) -> Any:
    """Return the node of an expression."""
    return parso.parse(code).children[0]


def is_method(node: Any, name: str) -> bool:
    """Return whether the node is `.name`, as in `x.name(...)`."""
    return node.type == "trailer" and len(node.children) == 2 and node.children[1].value == name


def is_call(node: Any) -> bool:
    """Return whether the node is `(...)` behind a name."""
    return node.type == "trailer" and node.children[0].value == "("


class Rename(Operator):
    """Base class. Replace one attribute or function name by another."""

    names: ClassVar[dict[str, str]]

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        is_attribute = node.type == "name" and node.parent is not None
        if is_attribute and node.value in self.names and node.parent.type == "trailer":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = self.names[node.value]
        return node

    @classmethod
    def examples(cls) -> list[Example]:
        return [Example(f"x.{a}(y)", f"x.{b}(y)") for a, b in cls.names.items()]


class SwapExtremes(Rename):
    """Take the larger for the smaller: the pessimistic bound becomes an optimistic one."""

    names: ClassVar[dict[str, str]] = {
        "minimum": "maximum",
        "maximum": "minimum",
        "amax": "amin",
        "amin": "amax",
        "min": "max",
        "max": "min",
    }


class SwapReductions(Rename):
    """Take a mean for a sum, or a sum for a mean."""

    names: ClassVar[dict[str, str]] = {"sum": "mean", "mean": "sum"}


class SwapBounds(Rename):
    """Take the lower bound for the upper one."""

    names: ClassVar[dict[str, str]] = {"low": "high", "high": "low"}


class SwapTotals(Rename):
    """Divide by sequences instead of tokens."""

    names: ClassVar[dict[str, str]] = {"tokens": "sequences", "sequences": "tokens"}


class DropCall(Operator):
    """Base class. Drop `.name(...)` behind an expression."""

    name: str

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        children = getattr(node, "children", [])
        for method, call in pairwise(children):
            if is_method(method, self.name) and is_call(call):
                yield method.start_pos, call.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        found = -1
        for i, method in enumerate(node.children[:-1]):
            found += is_method(method, self.name) and is_call(node.children[i + 1])
            if found == index:
                self.drop(node, i)
                break
        return node

    def drop(self, node: Any, i: int) -> None:
        """Drop the call whose name is child i."""
        del node.children[i : i + 2]

    @classmethod
    def examples(cls) -> list[Example]:
        return [Example(f"x.{cls.name}().y", "x.y")]


class DropDetach(DropCall):
    """Let a gradient through that should stop."""

    name = "detach"


class DropClamp(DropCall):
    """Do not bound."""

    name = "clamp"


class DropWhere(DropCall):
    """`torch.where(mask, x, other)` becomes `x`: garbage in masked slots counts."""

    name = "where"

    def drop(self, node: Any, i: int) -> None:
        """Replace `torch.where(mask, x, other)` by `(x)`."""
        arguments = node.children[i + 1].children[1]
        values = [x for x in arguments.children if getattr(x, "value", "") != ","]
        value = values[1].get_code() if len(values) == 3 else values[0].get_code()
        replaced = parse(f"({value.strip()})")
        replaced.get_first_leaf().prefix = node.get_first_leaf().prefix
        node.children[: i + 2] = [replaced]

    @classmethod
    def examples(cls) -> list[Example]:
        return [Example("torch.where(m, x, 0.0)", "(x)")]


class FlipReturn(Operator):
    """Return the negative value."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if node.type == "return_stmt" and len(node.children) == 2:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        value = node.children[1].get_code().strip()
        negative = parse(f"-({value})")
        negative.get_first_leaf().prefix = " "
        node.children[1] = negative
        return node

    @classmethod
    def examples(cls) -> list[Example]:
        return [Example("def f(): return x", "def f(): return -(x)")]


OWN = {
    operator.__name__: operator
    for operator in (
        SwapExtremes,
        SwapReductions,
        SwapBounds,
        SwapTotals,
        DropDetach,
        DropClamp,
        DropWhere,
        FlipReturn,
    )
}
"""Operators of this module."""
COSMIC_RAY = (
    "NumberReplacer",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ZeroIterationForLoop",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Mul_Div",
    "ReplaceBinaryOperator_Div_Mul",
    "ReplaceBinaryOperator_Mul_Add",
    "ReplaceBinaryOperator_BitAnd_BitOr",
    "ReplaceBinaryOperator_BitOr_BitAnd",
    "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_Invert",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_Gt_Lt",
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_Lt_Gt",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_IsNot_Is",
)
"""Operators of cosmic-ray that are used. The others replace an operator by one of another type,
which every test sees."""
