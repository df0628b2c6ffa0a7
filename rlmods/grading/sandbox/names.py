"""Names in source code: of the standard library, used without an import, and those that unit tests
take from the code."""

import ast
import builtins
import symtable
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

_MODULES = """
typing collections math itertools functools heapq bisect dataclasses enum abc copy re random
datetime fractions decimal operator string json time sys os io contextlib
"""
MODULES = _MODULES.split()
"""Modules of which code may use the public names, and the modules themselves, without importing
them, as prompts often import them for it. An earlier one wins."""
WITHOUT_NAMES = ("re", "sys", "os", "io", "time", "json", "string", "random")
"""Modules of which only the module itself can be used without an import."""
_PACKAGES = """
numpy pandas scipy sympy sklearn torch tensorflow networkx matplotlib seaborn requests bs4 nltk
pytest hypothesis parameterized jax xgboost nose hamcrest testfixtures assertpy deepdiff mock sure
expects ddt freezegun toolz cytoolz simplejson six unittest2 codewars_test statsmodels PIL cv2 yaml
regex sortedcontainers more_itertools gmpy2 mpmath numba polars flask django dateutil pytz attr
pydantic tqdm lxml
"""
PACKAGES = _PACKAGES.split()
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
BUILTINS = frozenset(dir(builtins))


@cache
def standard_names() -> dict[str, Any]:
    """Return the public names of `MODULES`, and the modules, by name."""
    found: dict[str, Any] = {}
    modules = {name: import_module(name) for name in MODULES}
    for name, module in modules.items():
        if name in WITHOUT_NAMES:
            continue
        public = getattr(module, "__all__", None) or dir(module)
        for key in public:
            if not key.startswith("_"):
                found.setdefault(key, getattr(module, key))
    return found | modules


def execute(source: str, filename: str, namespace: dict[str, Any]) -> None:
    """Execute `source`, with the names of the standard library that it uses and does not define.

    They stand beside the builtins, and not in `namespace`: code that calls `add` without defining
    it does not provide `operator.add` to the tests of `add`."""
    code = compile(source, filename, "exec")
    standard = standard_names()
    used = free_names(source) & set(standard) - BUILTINS
    namespace.update(__builtins__=builtins, __file__=f"/{filename}")
    if used:
        namespace["__builtins__"] = vars(builtins) | {name: standard[name] for name in used}
    exec(code, namespace)


def given_names(test: str, tested: set[str]) -> dict[str, Any]:
    """Return what a test uses of the standard library and of packages without an import."""
    found = {}
    standard = standard_names()
    for name in free_names(test) - tested - BUILTINS:
        if name in standard:
            found[name] = standard[name]
        elif name in PACKAGE_NAMES or name in sys.stdlib_module_names:
            found[name] = import_module(PACKAGE_NAMES.get(name, name))
    return found


@cache
def free_names(source: str) -> frozenset[str]:
    """Return the global names that are read and nowhere bound as such: an argument or local name of
    a function binds no global name."""
    read: set[str] = set()
    bound: set[str] = set()
    pending = [symtable.symtable(source, "", "exec")]
    while pending:
        table = pending.pop()
        pending += table.get_children()
        for symbol in table.get_symbols():
            if table.get_type() == "module" or symbol.is_global():
                if symbol.is_assigned() or symbol.is_imported():
                    bound.add(symbol.get_name())
                elif symbol.is_referenced():
                    read.add(symbol.get_name())
    return frozenset(read - bound)


def imported_modules(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def modules_of_the_code(test: str) -> set[str]:
    """Return the modules, with the packages that hold them, that a test imports and that are not
    installed: they are the code under test."""
    found = set()
    for module in imported_modules(ast.parse(test)):
        parts = module.split(".")
        if not is_known(module) and PathFinder.find_spec(parts[0]) is None:
            found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return found


def is_known(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names.union(PACKAGES)


def is_assertion(name: str) -> bool:
    """Return True for the name of a function that asserts, which is never the code under test."""
    return name.lower().startswith("assert") or name == "approx"


def called_names(tree: ast.AST) -> set[str]:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}


def names_with_attributes(tree: ast.AST) -> set[str]:
    """Return the names of which attributes are used."""
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {value.id for value in values if isinstance(value, ast.Name)}


def names_under_test(tests: list[str], entry_point: str | None) -> set[str]:
    """Return the names that tests take from the code. All others keep their meaning, even if the
    code defines them too: the code cannot redefine `set` or `isclose` for its tests. This depends
    on the tests alone.

    They are the names that neither Python nor `MODULES` define, and `entry_point`. Only if there
    are none, the names of `MODULES`, and only if there are none of these, the one builtin function
    that all tests call.

    Raises:
        ValueError: the tests use builtin functions only, and it is unclear which is under test.
    """
    free = frozenset().union(*map(free_names, tests)) - {"candidate"}
    trees = list(map(ast.parse, tests))
    with_attributes = frozenset().union(*map(names_with_attributes, trees))
    modules = with_attributes & (sys.stdlib_module_names | set(PACKAGE_NAMES))
    unknown = set(free - BUILTINS - set(standard_names()) - modules)
    if entry_point is not None:
        unknown.add(entry_point)
    if unknown:
        return unknown
    known = free - BUILTINS - modules
    if known:
        return set(known)
    common = set.intersection(*map(called_names, trees)) & free if trees else set()
    if len(common) > 1:
        names = ", ".join(sorted(common))
        raise ValueError(
            f"unit tests call only builtin functions ({names}): name the one under test in "
            "the column entry_point"
        )
    return common
