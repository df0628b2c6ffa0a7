"""The structure of the repository: one name for a group everywhere, an option for every part,
imports without circles."""

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class
from lightning import LightningModule
from omegaconf import OmegaConf

from rlmods.algo import Learner, PolicyGradient
from rlmods.cli.__main__ import COMMANDS
from rlmods.config.recipe import recipe
from rlmods.config.schema import SETTINGS, defaults
from tests.support.saved_runs import write_run

ROOT = Path(__file__).parents[1]
GROUPS = [
    "adapter",
    "advantage",
    "aggregation",
    "algo",
    "branching",
    "callbacks",
    "correction",
    "critic",
    "data",
    "environment",
    "judge",
    "kl",
    "policy",
    "preference",
    "ranking",
    "ratio",
    "reference",
    "reward",
    "rollout",
    "router",
    "sampling",
    "schedule",
    "teacher",
    "tokens",
]
OTHERS = {"experiment", "logger", "optimizer", "trainer", "variant"}
"""Groups whose options configure, or extend, classes of other libraries."""
SERVICES = {"cli", "config", "distributed", "grading", "lab", "run", "settings", "training"}
"""Packages that are not configuration groups."""
NOT_CHOSEN = {
    "algo": {"Batch", "Learner", "PolicyGradientSettings"},
    "callbacks": {"Summary"},
    "data": {"PromptLoader", "PromptModule", "Splits"},
    "policy": {"AdaptedPolicy", "Policy", "ScalarModel"},
    "reward": {"Isolated"},
    "rollout": {"MultiTurn"},
}
"""Public classes of a group's package that are not options."""
HELPERS = {"Progress", "TokenRollout"}
"""Base classes and helpers of parts."""
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
    def test_have_the_same_names_in_conf_package_and_tests(self) -> None:
        packages = {path.parent.name for path in (ROOT / "rlmods").glob("*/__init__.py")}
        assert {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()} - OTHERS == set(
            GROUPS
        )
        assert packages - SERVICES - OTHERS == set(GROUPS)
        assert {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")} >= set(GROUPS)

    def test_are_all_in_the_primary_configuration(self) -> None:
        entries = [
            entry
            for entry in read(ROOT / "conf" / "train.yaml")["defaults"]
            if isinstance(entry, dict)
        ]
        listed = {
            key
            for entry in entries
            for key in entry
            if not key.startswith("override ") and "@" not in key
        }
        assert listed == set(GROUPS) | OTHERS

    @pytest.mark.parametrize("group", GROUPS)
    def test_every_public_part_has_an_option(self, group: str) -> None:
        package = import_module(f"rlmods.{group}")
        public = {
            n for n in package.__all__ if inspect.isclass(getattr(package, n))
        } - NOT_CHOSEN.get(group, set())
        chosen = {
            node["_target_"].split(".")[-1]
            for path in OPTIONS
            if path.parent.name == group
            for node in nodes(read(path))
        }
        assert chosen == public

    @pytest.mark.parametrize("group", GROUPS)
    def test_every_part_defined_is_public(self, group: str) -> None:
        package = import_module(f"rlmods.{group}")
        for path in (ROOT / "rlmods" / group).glob("*.py"):
            module = (
                import_module(f"rlmods.{group}.{path.stem}") if path.stem != "__init__" else package
            )
            for n, kind in vars(module).items():
                own = (
                    inspect.isclass(kind)
                    and kind.__module__ == module.__name__
                    and not n.startswith("_")
                    and n not in HELPERS
                )
                if (
                    own
                    and is_dataclass(kind)
                    and ("__call__" in vars(kind) or "generate" in vars(kind))
                ):
                    assert n in package.__all__, f"rlmods.{group} does not export {n}"


@pytest.mark.parametrize("path", OPTIONS, ids=name)
class TestOption:
    def test_begins_with_a_description(self, path: Path) -> None:
        lines = [line for line in path.read_text().splitlines() if line != "# @package _global_"]
        assert lines[0].startswith("# ")
        assert lines[0].endswith(".")

    def test_targets_are_in_the_package_of_the_group(self, path: Path) -> None:
        found = list(nodes(read(path)))
        assert found
        for node in found:
            assert node["_target_"].startswith(f"rlmods.{path.parent.name}.")
            homes = (f"rlmods.{path.parent.name}.", "rlmods.grading.")
            assert get_class(node["_target_"]).__module__.startswith(homes)

    def test_keys_are_the_fields_of_the_part(self, path: Path) -> None:
        for node in nodes(read(path)):
            kind = get_class(node["_target_"])
            keys = set(node) - {"_target_", "_convert_"}
            if is_dataclass(kind):
                assert keys == {f.name for f in fields(kind) if f.init}, kind
            elif path.parent.name != "algo":
                assert keys == set(inspect.signature(kind).parameters)


ALGORITHMS = [path for path in OPTIONS if path.parent.name == "algo"]


@pytest.mark.parametrize("path", ALGORITHMS, ids=name)
class TestAlgorithm:
    def test_recipe_names_options_of_groups_that_the_algorithm_uses(self, path: Path) -> None:
        kind = get_class(read(path)["algo"]["_target_"])
        chosen = recipe(path.stem)
        assert set(chosen) <= set(kind.config_groups)
        assert all(
            (ROOT / "conf" / group / f"{option}.yaml").exists() for group, option in chosen.items()
        )
        assert bool(chosen) or not issubclass(kind, PolicyGradient) or kind is PolicyGradient

    def test_settings_are_declared_in_the_dataclass_only(self, path: Path) -> None:
        """The option includes the fields of `settings_type` and repeats only values that differ
        from their defaults."""
        option = read(path)
        kind = get_class(option["algo"]["_target_"])
        assert option["algo"].pop("name") == path.stem
        del option["algo"]["_target_"]
        declared = defaults(kind.settings_type)
        assert all(declared[key] != value for key, value in option["algo"].items())
        included = {**_included(path)}
        assert included == declared

    def test_depth_below_lightning_module(self, path: Path) -> None:
        kind = get_class(read(path)["algo"]["_target_"])
        depth = kind.__mro__.index(LightningModule)
        assert depth <= 3


def _included(path: Path) -> dict[str, Any]:
    """Settings that an option of `conf/algo` includes from the config store (`/NAME@algo`)."""
    settings: dict[str, Any] = {}
    for entry in read(path).get("defaults", []):
        if isinstance(entry, str) and entry.endswith("@algo"):
            settings |= defaults(SETTINGS[entry.strip("/").removesuffix("@algo")])
        elif isinstance(entry, str) and entry != "_self_":
            settings |= _included(path.with_stem(entry))
    return settings


def test_policy_gradient_takes_at_most_21_arguments() -> None:
    taken = {
        name
        for kind in (Learner, PolicyGradient)
        for name in inspect.signature(kind.__init__).parameters
    }
    assert len(taken - {"self", "learner"}) <= 21


def test_the_package_root_holds_at_most_seven_files() -> None:
    assert len([path for path in (ROOT / "rlmods").iterdir() if path.is_file()]) <= 7


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, also inside functions and under
    TYPE_CHECKING."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 or (node.level == 1 and path.parent.name == "sandbox"), (
                "absolute imports, except in the sandbox"
            )
            if node.level == 0:
                names.update(
                    {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
                )
    return {name for name in names if name.startswith("rlmods")}


GRAPH = {module_name(path): imports(path) for path in MODULES}
GRAPH = {
    name: {other for other in others if other in GRAPH and other != name}
    for name, others in GRAPH.items()
}
"""Imported modules by module."""
LAYERS: tuple[set[str], ...] = (
    {"types", "ops", "protocols", "settings"},
    {"distributed", "logger", *GROUPS} - {"algo", "callbacks"},
    {"training"},
    {"algo"},
    {"config", "callbacks"},
    {"cli"},
)
"""Packages from the lowest layer to the highest. `run` (files of a run) is used by parts and by
commands."""
HEAVY = ("torch", "lightning", "transformers", "hydra", "scipy", "sklearn", "tensorboard")
"""Packages that take long to import."""


def circles(graph: Mapping[str, set[str]]) -> list[str]:
    """Nodes that can be reached from themselves."""

    def reachable(start: str) -> set[str]:
        seen, stack = set[str](), list(graph[start])
        while stack:
            if (node := stack.pop()) not in seen:
                seen.add(node)
                stack.extend(graph.get(node, ()))
        return seen

    return [node for node in graph if node in reachable(node)]


def package(module: str) -> str:
    return [*module.split("."), ""][1]


def _crossings(wing: str, allowed: set[str]) -> list[tuple[str, str]]:
    """Imports of a wing from packages other than the allowed ones."""
    return [
        (module, other)
        for module, others in GRAPH.items()
        for other in others
        if package(module) == wing and package(other) not in allowed
    ]


def _heavy_imports(code: str) -> list[str]:
    """Heavy packages that are imported after some code has run in a fresh interpreter."""
    report = f"\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = ast.literal_eval(done.stdout.splitlines()[-1])
    return found


LIGHT = (
    "compare {runs}",
    "compare {runs} --json",
    "diff {runs}/a1 {runs}/b1",
    "show {runs}/a1 0",
    "report {runs}",
    "report {runs} --text",
    "watch {runs} --once",
    "plugin list",
    *(f"{name} --help" for name in COMMANDS),
)
"""Commands that start in a second."""


@pytest.mark.parametrize("command", LIGHT)
def test_light_commands_import_no_heavy_packages(command: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        for ratio in "ab":
            run = write_run(
                tmp_path / f"{ratio}{seed}", [0.1, 0.2], seed=seed, parts={"ratio": ratio}
            )
            row = {"id": "p", "prompt": "1", "response": "2", "tokens": [1], "finish": "stop"}
            path = run / "samples/iteration_000000.jsonl"
            path.write_text(json.dumps(row | {"reward": 1.0}) + "\n")
    name, *arguments = command.format(runs=tmp_path).split()
    code = f"""
import contextlib, runpy, sys
sys.argv = ["rlmods", *{arguments}]
with contextlib.suppress(SystemExit):
    runpy.run_module("rlmods.{name}", run_name="__main__")
"""
    assert not _heavy_imports(code)


class TestImports:
    def test_no_circles_between_modules(self) -> None:
        assert not circles(GRAPH)

    def test_no_circles_between_packages(self) -> None:
        packages: dict[str, set[str]] = {}
        for module, others in GRAPH.items():
            packages.setdefault(package(module), set()).update(
                package(other) for other in others if package(other) != package(module)
            )
        packages.pop("")
        assert not circles({name: others - {""} for name, others in packages.items()})

    def test_modules_import_downwards(self) -> None:
        level = {name: i for i, layer in enumerate(LAYERS) for name in layer}
        upwards = [
            (module, other)
            for module, others in GRAPH.items()
            for other in others
            if package(module) in level
            and package(other) in level
            and level[package(other)] > level[package(module)]
        ]
        assert not upwards

    def test_grading_imports_nothing_else_of_the_package(self) -> None:
        allowed = {"grading", "errors", ""}
        assert not _crossings("grading", allowed)

    def test_lab_imports_readers_of_runs_only(self) -> None:
        assert not _crossings("lab", {"lab", "run", "errors", ""})

    def test_only_commands_import_the_lab(self) -> None:
        importing = {
            package(name)
            for name, others in GRAPH.items()
            if any(package(other) == "lab" for other in others)
        }
        assert importing <= {"lab", "cli"}

    @pytest.mark.slow
    @pytest.mark.parametrize("wing", ["grading", "lab"])
    def test_wings_do_not_import_torch(self, wing: str) -> None:
        """Nor do the modules that they import: all are imported in a fresh interpreter."""
        modules = [name for name in GRAPH if package(name) == wing]
        code = "".join(f"import {name}\n" for name in modules if "__main__" not in name)
        assert not _heavy_imports(code)

    def test_hydra_composes_and_explains_mistakes_without_torch(self) -> None:
        """A typo, `--cfg job` and a flag are answered before the imports that take seconds."""
        code = """
from hydra import compose, initialize_config_dir
from rlmods.cli import console, sweep, task
from rlmods.config.options import CONF

with initialize_config_dir(str(CONF), version_base="1.3"):
    assert compose("train", ["algo=dpo", "algo.dropout=0.5"]).algo.dropout == 0.5
    try:
        compose("train", ["batch.sampels=3"])
    except Exception as error:
        assert "batch.samples?" in str(console.as_user_error(error))
"""
        assert _heavy_imports(code) == ["hydra"]

    def test_a_circle_would_be_found(self) -> None:
        assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT / "rlmods")))
class TestModule:
    def test_sandboxed_process_does_not_import_the_package(self, path: Path) -> None:
        if path.parent.name == "sandbox" and path.stem not in ("run", "tests"):
            assert not imports(path)

    def test_has_a_docstring(self, path: Path) -> None:
        text = path.read_text()
        assert not text or ast.get_docstring(ast.parse(text))
