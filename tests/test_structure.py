"""The layout that a reader relies on: one name for a group everywhere, an option for every part, imports that point downwards."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from rlmods.algo import Learner, PolicyGradient

ROOT = Path(__file__).parents[1]
GROUPS = [
    "adapter", "advantage", "aggregation", "algo", "callbacks", "critic", "data", "judge", "kl", "policy", "preference", "ranking", "ratio",
    "reward", "rollout", "router", "sampling", "schedule",
]  # fmt: skip
OTHERS = {"experiment", "logger", "optimizer", "trainer"}
"""Groups whose options are settings of other people's classes."""
SERVICES = {"cli", "config", "distributed", "memory", "run", "training"}
"""Packages that are not configuration groups."""
NOT_CHOSEN = {
    "algo": {"Batch", "Learner"},
    "callbacks": {"JsonlLogger", "Summary"},
    "data": {"PromptLoader", "PromptModule", "Splits"},
    "policy": {"AdaptedPolicy", "Policy", "ScalarModel"},
    "reward": {"Isolated"},
}
"""Public classes of a group's package that are no parts."""
LONGEST = {"reward/grader/parse.py": 340}
"""A grammar belongs in one place."""
OPTIONS = [path for group in GROUPS for path in sorted((ROOT / "conf" / group).glob("*.yaml"))]
MODULES = sorted((ROOT / "rlmods").rglob("*.py"))


def name(path: Path) -> str:
    return f"{path.parent.name}={path.stem}"


def read(path: Path) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[return-value]


def nodes(x: Any) -> Iterator[dict[str, Any]]:
    """Every mapping with a `_target_`, at any depth."""
    if isinstance(x, dict):
        if "_target_" in x:
            yield x
        for value in x.values():
            yield from nodes(value)


class TestGroups:
    def test_are_the_same_in_conf_package_and_tests(self) -> None:
        packages = {path.parent.name for path in (ROOT / "rlmods").glob("*/__init__.py")}
        assert {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()} - OTHERS == set(GROUPS)
        assert packages - SERVICES == set(GROUPS)
        assert {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")} >= set(GROUPS)

    def test_each_is_in_the_main_configuration(self) -> None:
        entries = [entry for entry in read(ROOT / "conf" / "train.yaml")["defaults"] if isinstance(entry, dict)]
        listed = {key for entry in entries for key in entry if not key.startswith("override ") and "@" not in key}
        assert listed == set(GROUPS) | OTHERS

    @pytest.mark.parametrize("group", GROUPS)
    def test_every_public_part_has_an_option(self, group: str) -> None:
        package = import_module(f"rlmods.{group}")
        public = {n for n in package.__all__ if inspect.isclass(getattr(package, n))} - NOT_CHOSEN.get(group, set())
        chosen = {node["_target_"].split(".")[-1] for path in OPTIONS if path.parent.name == group for node in nodes(read(path))}
        assert chosen == public

    @pytest.mark.parametrize("group", GROUPS)
    def test_every_part_defined_is_public(self, group: str) -> None:
        package = import_module(f"rlmods.{group}")
        for path in (ROOT / "rlmods" / group).glob("*.py"):
            module = import_module(f"rlmods.{group}.{path.stem}") if path.stem != "__init__" else package
            for n, kind in vars(module).items():
                own = inspect.isclass(kind) and kind.__module__ == module.__name__ and not n.startswith("_")
                if own and is_dataclass(kind) and ("__call__" in vars(kind) or "generate" in vars(kind)):
                    assert n in package.__all__, f"rlmods.{group} does not export {n}"


@pytest.mark.parametrize("path", OPTIONS, ids=name)
class TestOption:
    def test_its_first_words_say_what_it_is(self, path: Path) -> None:
        lines = [line for line in path.read_text().splitlines() if line != "# @package _global_"]
        assert lines[0].startswith("# ")
        assert lines[0].endswith(".")

    def test_its_targets_lie_in_its_group(self, path: Path) -> None:
        found = list(nodes(read(path)))
        assert found
        for node in found:
            assert node["_target_"].startswith(f"rlmods.{path.parent.name}.")
            assert get_class(node["_target_"]).__module__.startswith(f"rlmods.{path.parent.name}.")

    def test_its_keys_are_the_fields(self, path: Path) -> None:
        for node in nodes(read(path)):
            kind = get_class(node["_target_"])
            keys = set(node) - {"_target_", "_convert_"}
            if is_dataclass(kind):
                assert keys == {f.name for f in fields(kind) if f.init}, kind
            elif path.parent.name != "algo":
                assert keys == set(inspect.signature(kind).parameters)


@pytest.mark.parametrize("path", [p for p in OPTIONS if p.parent.name == "algo"], ids=name)
class TestAlgorithm:
    def test_its_option_chooses_the_recipe(self, path: Path) -> None:
        option = read(path)
        entries = [entry for entry in option.get("defaults", []) if isinstance(entry, dict)]
        chosen = {k.removeprefix("override /"): v for entry in entries for k, v in entry.items()}
        kind = get_class(option["algo"]["_target_"])
        assert chosen == kind.recipe
        assert set(chosen) <= set(kind.groups)
        assert bool(chosen) or not issubclass(kind, PolicyGradient) or kind is PolicyGradient

    def test_its_settings_are_those_of_the_class(self, path: Path) -> None:
        settings: dict[str, Any] = {}
        for entry in read(path).get("defaults", []):
            settings |= read(path.with_stem(entry))["algo"] if isinstance(entry, str) else {}
        settings |= read(path)["algo"]
        kind = get_class(settings.pop("_target_"))
        assert settings.pop("name") == path.stem
        mine = [c for c in kind.__mro__ if issubclass(c, Learner) and c is not Learner and "__init__" in vars(c)]
        own = [p for c in mine for p in inspect.signature(c.__init__).parameters.values()]
        assert settings.keys() == {p.name for p in own if p.default is not p.empty}
        if kind is PolicyGradient:
            assert settings == {p.name: p.default for p in own if p.default is not p.empty}


def imports(path: Path) -> set[str]:
    """Modules of ours that are imported at run time, also inside functions."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 or (node.level == 1 and path.parent.name == "sandbox"), "absolute, but where rlmods is not there"
            found.update({node.module or "", *(f"{node.module}.{a.name}" for a in node.names)})
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return {module for module in found if module.startswith("rlmods")}


def layer(path: Path) -> str:
    return path.relative_to(ROOT / "rlmods").parts[0].removesuffix(".py")


FORBIDDEN = {
    **{low: {*GROUPS, *SERVICES, "compose", "main", "evaluation", "trainer", "plugins"} for low in ("types", "ops", "protocols")},
    **{part: {"algo", "compose", "main"} for part in (*GROUPS, "evaluation", "metrics", "plugins", "run")},
    "algo": {"compose", "main", "callbacks", "run", "plugins"},
    "trainer": {"compose", "main"},
    "compose": {"main"},
}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT / "rlmods")))
class TestModule:
    def test_imports_downwards(self, path: Path) -> None:
        above = {f"rlmods.{x}" for x in FORBIDDEN.get(layer(path), set())}
        upwards = {m for m in imports(path) if ".".join(m.split(".")[:2]) in above}
        assert not upwards

    def test_the_confined_process_knows_nothing_of_ours(self, path: Path) -> None:
        if path.parent.name == "sandbox" and path.stem not in ("run", "tests"):
            assert not imports(path)

    def test_is_short(self, path: Path) -> None:
        assert len(path.read_text().splitlines()) < LONGEST.get(str(path.relative_to(ROOT / "rlmods")), 260)

    def test_says_what_it_is(self, path: Path) -> None:
        text = path.read_text()
        assert not text or ast.get_docstring(ast.parse(text))
