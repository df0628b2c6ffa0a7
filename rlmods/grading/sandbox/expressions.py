"""Evaluation of arithmetic that comes as untrusted text, in place of `eval`.

`evaluate` interprets the syntax tree of a text: numbers, texts, lists, tuples and arithmetic on
them; no names, calls or attributes, so that there is nothing through which a text could reach
Python. `guard_sympy` makes sympy's parser refuse, before it evaluates anything, all but arithmetic
on numbers and symbols and calls of the functions of `FUNCTIONS`.

The length of a text, the depth of its tree and the size of its numbers are bounded.
"""

import ast
import math
import operator
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Any

MAX_CHARACTERS = 20_000
MAX_BITS = 100_000
"""Largest number, in bits, that an expression may need, with 1 bit for a symbol."""

FUNCTIONS = frozenset(
    [
        "Integer",
        "Float",
        "Rational",
        "Symbol",
        "Add",
        "Mul",
        "Pow",
        "Abs",
        "abs",
        "sqrt",
        "cbrt",
        "root",
        "exp",
        "log",
        "ln",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "asin",
        "acos",
        "atan",
        "atan2",
        "acot",
        "asec",
        "acsc",
        "sinh",
        "cosh",
        "tanh",
        "coth",
        "sech",
        "csch",
        "asinh",
        "acosh",
        "atanh",
        "acoth",
        "factorial",
        "binomial",
        "floor",
        "ceiling",
        "Min",
        "Max",
        "sign",
        "gamma",
        "erf",
        "erfc",
    ]
)
"""Functions of sympy that an expression may call: of numbers, and without an effect besides their
result."""
CONSTANTS = frozenset(["pi", "E", "I", "oo"])
# the functions that are called with a text
_MAKE_NUMBERS = ("Integer", "Float", "Rational", "Symbol")

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}


class RefusedError(ValueError):
    """The text is not an expression that may be evaluated."""


def evaluate(text: Any, *_: Any) -> Any:
    """Return the value of a literal or of arithmetic on numbers. Raises RefusedError for anything
    else."""
    return _value(_parse(text).body)


def guard(modules: list[types.ModuleType]) -> None:
    """Make `eval` of the given modules `evaluate`, and their `exec` and `compile` refuse
    everything."""
    for module in modules:
        module.__dict__.update(eval=evaluate, exec=_refuse, compile=_refuse)


def rational(text: Any) -> Fraction | None:
    """Return the value of sums, products and quotients of whole numbers, None for anything else.
    Raises ZeroDivisionError."""
    try:
        return _rational(_parse(text).body)
    except RefusedError:
        return None


def guard_sympy(modules: list[types.ModuleType]) -> None:
    """Make sympy check every text before it evaluates it, and import its names once instead of for
    each text. The `parse_expr` that the given modules have imported, of which they use the number
    only, does not call sympy where `rational` knows the value."""
    import sympy
    from sympy.parsing import sympy_parser

    parse = sympy_parser.eval_expr
    public = {name: getattr(sympy, name) for name in sympy.__all__}

    def execute(code: str, namespace: dict[str, Any]) -> None:
        if code != "from sympy import *":
            raise RefusedError("text is not executed")
        namespace.update(public)

    def checked(code: str, local_dict: dict[str, Any], global_dict: dict[str, Any]) -> Any:
        _bits(_parse(code).body, frozenset(local_dict))
        return parse(code, local_dict, global_dict)

    def parse_expr(text: Any, *args: Any, **kwargs: Any) -> Any:
        value = rational(text)
        return parse_any(text, *args, **kwargs) if value is None else value

    parse_any = sympy_parser.parse_expr
    for module in modules:
        if module.__dict__.get("parse_expr") is parse_any:
            module.__dict__["parse_expr"] = parse_expr
    sympy_parser.eval_expr = checked
    sympy_parser.__dict__.update(exec=execute, compile=_refuse)


def _refuse(*_: Any, **__: Any) -> Any:
    raise RefusedError("text is not executed")


def _parse(text: Any) -> ast.Expression:
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise RefusedError("not a text, or too long")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RefusedError("not an expression") from error


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return (list if isinstance(node, ast.List) else tuple)(map(_value, node.elts))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_number(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number(node.left), _number(node.right)
        growth = {
            ast.Pow: _size(left) * abs(right),
            ast.LShift: _size(left) + right,
            ast.Mult: _size(left) + _size(right),
        }
        if growth.get(type(node.op), 0) > MAX_BITS:
            raise RefusedError("too large a number")
        return _OPERATORS[type(node.op)](left, right)
    raise RefusedError(f"{type(node).__name__} is not evaluated")


def _rational(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _rational(node.operand)
        return value if isinstance(node.op, ast.UAdd) else -value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return _OPERATORS[type(node.op)](_rational(node.left), _rational(node.right))  # type: ignore[no-any-return]
    raise RefusedError(f"{type(node).__name__} is not arithmetic on whole numbers")


def _number(node: ast.expr) -> Any:
    value = _value(node)
    if not isinstance(value, int | float):
        raise RefusedError("arithmetic on what is not a number")
    return value


def _size(number: float) -> int:
    return number.bit_length() if isinstance(number, int) else 64


def _bits(node: ast.expr, symbols: frozenset[str]) -> int:
    """Return a bound for the size of the numbers in an expression. Raises RefusedError if it is not
    arithmetic or too large."""
    bits = _bound(node, symbols)
    if bits > MAX_BITS:
        raise RefusedError("too large a number")
    return bits


def _bound(node: ast.expr, symbols: frozenset[str]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return _size(node.value)
    if isinstance(node, ast.Name) and (node.id in symbols or node.id in CONSTANTS):
        return 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        return _bits(node.operand, symbols)
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
    ):
        left, right = _bits(node.left, symbols), _bits(node.right, symbols)
        if isinstance(node.op, ast.Pow):
            exponent = _constant(node.right)
            return max(left, 1) * (right if exponent is None else math.ceil(abs(exponent)))
        return left + right
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FUNCTIONS
        and not node.keywords
    ):
        name = node.func.id
        if name in _MAKE_NUMBERS:
            return _literal_bits(name, node.args)
        sizes = [_bits(argument, symbols) for argument in node.args]
        if name in ("factorial", "gamma", "binomial", "Pow") and any(
            (_constant(argument) or 0) > 10_000 for argument in node.args
        ):
            raise RefusedError("too large a number")
        return max(1, sum(sizes)) * (
            1000
            if name in ("factorial", "gamma", "binomial", "Pow", "exp", "cosh", "sinh")
            and max(sizes, default=0) > 1
            else 1
        )
    raise RefusedError(f"{ast.unparse(node)[:50]} is not evaluated")


def _literal_bits(name: str, args: list[ast.expr]) -> int:
    """Return the size of `Integer(5)`, `Float('0.5')`, `Symbol('x')`."""
    values = [_literal(argument) for argument in args]
    if len(values) not in (1, 2) or None in values:
        raise RefusedError(f"{name} of what is not a literal")
    if name == "Symbol":
        if (
            len(values) != 1
            or not isinstance(values[0], str)
            or not values[0].isidentifier()
            or values[0].startswith("_")
        ):
            raise RefusedError("not a symbol")
        return 1
    for value in values:
        if isinstance(value, str) and not set(value) <= set("0123456789.eE+-"):
            raise RefusedError("not a number")
        if isinstance(value, str):
            mantissa, _, exponent = value.lower().partition("e")
            if abs(int(exponent or 0)) > 1000 or len(mantissa) > 1000:
                raise RefusedError("too large a number")
    return max(4 * len(value) if isinstance(value, str) else _size(value or 0) for value in values)


def _literal(node: ast.expr) -> int | float | str | None:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    if not isinstance(value, ast.Constant) or not isinstance(value.value, int | float | str):
        return None
    return value.value if not negative else None if isinstance(value.value, str) else -value.value


def _constant(node: ast.expr) -> float | None:
    """Return the value of an expression of plain numbers, None if it has symbols. Raises
    RefusedError if it is too large."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value) if abs(node.value) < 2**53 else math.inf
    if isinstance(node, ast.UnaryOp):
        value = _constant(node.operand)
        return None if value is None else -value
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Integer", "Float", "Rational")
        and node.args
    ):
        argument = node.args[0]
        text = argument.value if isinstance(argument, ast.Constant) else None
        try:
            value = float(text) if isinstance(text, int | float | str) else _constant(argument)
        except (ValueError, OverflowError) as error:
            raise RefusedError("not a number") from error
        divisor = (
            _constant(node.args[1]) if len(node.args) == 2 and node.func.id == "Rational" else 1.0
        )
        return value if value is None or not divisor else value / divisor
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _constant(node.left), _constant(node.right)
        if left is None or right is None:
            return None
        try:
            result = _OPERATORS[type(node.op)](left, right)
            return math.inf if isinstance(result, complex) else float(result)
        except (OverflowError, ZeroDivisionError, TypeError) as error:
            raise RefusedError("too large a number") from error
    return None
