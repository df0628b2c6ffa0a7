"""Syntax trees of unit tests: what `judge` changes in them before they run, and what an error has
skipped."""

import ast
import sys
from importlib.machinery import PathFinder
from types import TracebackType
from typing import Any

from . import names

FILENAME = "tests.py"
"""File name of the compiled tests in tracebacks."""
CANONICAL = "_canonical_proxy"
"""Name of the function that tests apply to the operands of `is`."""


def remove_imports_of_the_code(tree: ast.Module) -> dict[str, str | None]:
    """Remove the imports of modules that do not exist and are no packages (`names.PACKAGES`), which
    are of the code under test. Return the names they bind (None: a module)."""
    found: dict[str, str | None] = {}

    class Transformer(ast.NodeTransformer):
        def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
            if _exists(node.module or ""):
                return node
            found.update(
                {
                    alias.asname or alias.name: alias.name
                    for alias in node.names
                    if alias.name != "*"
                }
            )
            return ast.Pass()

        def visit_Import(self, node: ast.Import) -> Any:
            for alias in [alias for alias in node.names if not _exists(alias.name)]:
                node.names.remove(alias)
                found[alias.asname or alias.name] = None
            return node if node.names else ast.Pass()

    Transformer().visit(tree)
    ast.fix_missing_locations(tree)
    return found


def _exists(module: str) -> bool:
    try:
        return (
            module.split(".")[0] in sys.stdlib_module_names | names.PACKAGES
            or PathFinder.find_spec(module.split(".")[0]) is not None
        )
    except (ValueError, ImportError):
        return False


def compare_identities(tree: ast.Module) -> None:
    """Apply `CANONICAL` to the operands of `is` and of `assertIs`: an object of the code may have
    several proxies."""

    class Transformer(ast.NodeTransformer):
        def visit_Compare(self, node: ast.Compare) -> Any:
            self.generic_visit(node)
            operands = [node.left, *node.comparators]
            if all(isinstance(x, ast.Is | ast.IsNot) for x in node.ops) and not any(
                isinstance(x, ast.Constant) for x in operands
            ):
                node.left, *node.comparators = map(_canonical, operands)
            return node

        def visit_Call(self, node: ast.Call) -> Any:
            self.generic_visit(node)
            if isinstance(node.func, ast.Attribute) and node.func.attr in (
                "assertIs",
                "assertIsNot",
            ):
                node.args = list(map(_canonical, node.args))
            return node

    Transformer().visit(tree)
    ast.fix_missing_locations(tree)


def _canonical(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(CANONICAL, ast.Load()), [node], []), node)


def skips_assertions(tree: ast.Module, trace: TracebackType | None) -> bool:
    """Return True if an error that left a `with` block has skipped an assertion of the block, or of
    a function that the block called.

    `assert False` does not count: it marks lines that must not be reached.
    """
    frames = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILENAME:
            frames.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    for node in ast.walk(tree) if frames else ():
        if isinstance(node, ast.With | ast.AsyncWith):
            left = [
                line
                for _, line in frames[:1]
                if node.body[0].lineno <= line <= (node.end_lineno or 0)
            ]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            left = [
                line
                for code, line in frames[1:]
                if (code.co_name, code.co_firstlineno) == (node.name, first)
            ]
        else:
            continue
        ends = [
            getattr(inner, "end_lineno", 0)
            for part in node.body
            for inner in ast.walk(part)
            if _asserts(inner)
        ]
        if any(end >= line for end in ends for line in left):
            return True
    return False


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return not (isinstance(node.test, ast.Constant) and not node.test.value)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("assert")
    )
