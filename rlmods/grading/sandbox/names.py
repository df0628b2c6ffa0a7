"""Names in source code: of the standard library, used without an import, and those that unit tests
take from the code."""

import ast
import builtins
import symtable
import sys
from collections.abc import Container, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

MODULES: tuple[str, ...] = (
    "typing",
    "collections",
    "math",
    "itertools",
    "functools",
    "heapq",
    "bisect",
    "dataclasses",
    "enum",
    "abc",
    "copy",
    "re",
)
MODULES += (
    "random",
    "datetime",
    "fractions",
    "decimal",
    "operator",
    "string",
    "json",
    "time",
    "sys",
    "os",
    "io",
    "contextlib",
)
"""Modules of which code may use the public names, and the modules themselves, without importing
them, as prompts often import them for it. An earlier one wins."""
_PACKAGES = """
numpy pandas scipy sympy sklearn torch tensorflow networkx matplotlib seaborn requests bs4 nltk pytest hypothesis parameterized jax xgboost
nose hamcrest testfixtures assertpy deepdiff mock sure expects ddt freezegun toolz cytoolz simplejson six unittest2 codewars_test
statsmodels PIL cv2 yaml regex sortedcontainers more_itertools gmpy2 mpmath numba polars flask django dateutil pytz attr pydantic tqdm lxml
"""
PACKAGES = frozenset(_PACKAGES.split())
"""Packages that unit tests import: never names of the code under test, also where they are not
installed."""
PACKAGE_NAMES = {name: name for name in PACKAGES} | {
    "np": "numpy",
    "pd": "pandas",
    "plt": "matplotlib.pyplot",
    "tf": "tensorflow",
    "nx": "networkx",
    "sp": "scipy",
    "sns": "seaborn",
}
"""Names by which tests use packages that they do not import."""
_WITHOUT_NAMES = ("re", "sys", "os", "io", "time", "json", "string", "random")
_BUILTINS = frozenset(dir(builtins))


@cache
def standard_names() -> dict[str, Any]:
    """Return the public names of `MODULES`, and the modules, by name."""
    found: dict[str, Any] = {}
    for name in MODULES:
        module = import_module(name)
        if name not in _WITHOUT_NAMES:
            public = getattr(module, "__all__", None) or [
                key for key in vars(module) if not key.startswith("_")
            ]
            found = {key: getattr(module, key) for key in public if hasattr(module, key)} | found
    return found | {name: import_module(name) for name in MODULES}


def execute(source: str, filename: str, namespace: dict[str, Any]) -> None:
    """Execute `source`, with the names of the standard library that it uses and does not define.

    They stand beside the builtins, and not in `namespace`: code that calls `add` without defining
    it does not provide `operator.add` to the tests of `add`."""
    tree = ast.parse(source, filename)
    standard = standard_names()
    used = {
        name: standard[name] for name in free_names([tree], among=standard) if name not in _BUILTINS
    }
    namespace.update(__builtins__=builtins, __file__=f"/{filename}")
    if used:
        namespace["__builtins__"] = vars(builtins) | used
    exec(compile(tree, filename, "exec"), namespace)


@cache
def known_names() -> frozenset[str]:
    """Return the names that tests may use without importing them."""
    return frozenset(standard_names()) | sys.stdlib_module_names | frozenset(PACKAGE_NAMES)


def free_names(
    trees: Sequence[ast.AST], *, among: Container[str] | None = None, ignored: Iterable[str] = ()
) -> set[str]:
    """Return the global names that are read and nowhere bound as such: an argument or local name of
    a function binds no global name.

    Args:
        among: only these names.
        ignored: names to leave out.
    """
    read: set[str] = set()
    bound: set[str] = set()
    scopes = False
    for node in (node for tree in trees for node in ast.walk(tree)):
        scopes |= isinstance(node, _SCOPES)
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
    defined = {
        node.name
        for tree in trees
        for node in getattr(tree, "body", ())
        if isinstance(node, _DEFINITIONS)
    }
    read = {name for name in read - defined if among is None or name in among}.difference(ignored)
    free = read - bound
    return free | _global_names(trees) & read if scopes and free != read else free


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SCOPES = (*_DEFINITIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _global_names(trees: Iterable[ast.AST]) -> set[str]:
    """`free_names` by the rules of scopes, which takes longer."""
    read: set[str] = set()
    bound: set[str] = set()
    pending = [symtable.symtable(ast.unparse(tree), "", "exec") for tree in trees]
    while pending:
        table = pending.pop()
        pending += table.get_children()
        for symbol in table.get_symbols():
            if table.get_type() == "module" or symbol.is_global():
                if symbol.is_assigned() or symbol.is_imported():
                    bound.add(symbol.get_name())
                elif symbol.is_referenced():
                    read.add(symbol.get_name())
    return read - bound


def names_under_test(trees: Sequence[ast.AST], entry_point: str | None) -> set[str]:
    """Return the names that tests take from the code. All others keep their meaning, even if the
    code defines them too: the code cannot redefine `set` or `isclose` for its tests. This depends
    on the tests alone.

    They are the names that neither Python nor `MODULES` define, and `entry_point`. Only if there
    are none, the names of `MODULES`, and only if there are none of these, the one builtin function
    that all tests call.

    Raises:
        ValueError: the tests use builtin functions only, and it is unclear which is under test.
    """
    free = free_names(trees, ignored=("candidate",))
    modules = {
        node.value.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    modules &= sys.stdlib_module_names | set(PACKAGE_NAMES)
    unknown = {
        name
        for name in free
        if not (name in _BUILTINS or name in standard_names() or name in modules)
    }
    unknown |= {entry_point} if entry_point is not None else set()
    if unknown:
        return unknown
    if known := free - _BUILTINS - modules:
        return known
    called = [
        {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for tree in trees
    ]
    common = set.intersection(*called) & free if called else set()
    if len(common) > 1:
        names = ", ".join(sorted(common))
        raise ValueError(
            f"unit tests call only builtin functions ({names}): name the one under test in "
            "the column entry_point"
        )
    return common
