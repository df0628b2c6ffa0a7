"""Plant bugs one at a time in a copy of the repository, and run the tests that should notice.

    python -m tests.mutation [--sample 300] [--seed 0] [--jobs 2] [--only TEXT ...] [--list]
                             [--tree CHECKOUT] [--results FILE]

Operators of cosmic-ray and of `tests.mutation.operators` change one place of a file; `planted` has
bugs that no operator makes. A mutant is named by file, function, operator and number within the
function, never by text. `equivalent.txt` lists mutants that change nothing, each with its reason.

Libraries are imported once. Each test run is a fork, which imports the package from its copy."""

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

from tests.mutation.operators import COSMIC_RAY, OWN
from tests.mutation.planted import BUGS

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "advantage",
    "aggregation",
    "correction",
    "tokens",
    "critic",
    "kl",
    "preference",
    "ranking",
    "ratio",
    "sampling",
    "schedule",
    "ops.py",
    "training/buffer.py",
    "training/collate.py",
    "rollout/order.py",
    "training/credit.py",
    "training/meter.py",
    "training/metrics.py",
    "training/adaptive.py",
    "training/scorer.py",
    "training/segments.py",
    "training/train_step.py",
    "training/turns.py",
    "policy/output_layer.py",
    "reward/length.py",
    "reward/weighted_sum.py",
)
"""Folders and files of `rlmods` that hold mathematics. A missing one is left out."""
COMMON_TESTS = (
    "tests/test_part_fields.py",
    "tests/test_loss_invariances.py",
    "tests/test_golden.py",
    "tests/config/test_defaults.py",
)
"""Tests that see bugs of any package, beside those of the package itself."""
MORE_TESTS = {
    "rlmods/ops.py": (
        "tests/kl/test_full.py",
        "tests/advantage/test_group_norm.py",
        "tests/ratio/test_dppo.py",
    ),
    "rlmods/policy/output_layer.py": ("tests/policy/test_base.py",),
    "rlmods/training/credit.py": ("tests/critic/test_pretraining.py",),
    "rlmods/training/collate.py": ("tests/training/test_segments.py",),
    "rlmods/training/turns.py": ("tests/training/test_collate.py",),
    "rlmods/training/metrics.py": ("tests/training/test_turns.py",),
    "rlmods/training/scorer.py": (
        "tests/training/test_segments.py",
        "tests/training/test_expert_routing.py",
    ),
}
"""Tests of a file in the folders of its callers."""
NOT_COPIED = (".*", "runs", "multirun", "outputs", "__pycache__", "*.egg-info", "site")
LIBRARIES = ("pytest", "hypothesis.strategies", "jaxtyping", "beartype", "lightning", "hydra")
OPTIONS = ("-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", "not slow", "-W")
ALREADY_IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"
"""Plugins are imported before pytest rewrites them."""


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    file: str
    definition: str
    """Class and function, or "" at the level of the module."""
    operator: str
    number: int
    """Number of the place among those of this operator in the definition."""
    occurrence: int
    """Number of the place among those of this operator in the file."""
    line: int

    @property
    def name(self) -> str:
        return f"{self.file}:{self.definition}:{self.operator}:{self.number}"


@dataclass(frozen=True)
class Result:
    """Outcome of the tests on one mutant."""

    name: str
    line: int
    seen: bool
    seconds: float
    detail: str


def operator(name: str) -> Any:
    """Return an operator by name."""
    kind = OWN.get(name) or OperatorProvider()[name]
    return kind()


def skipped_ranges(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the positions of annotations and decorators, where a change has no effect."""
    found = list[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            found.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found += node.decorator_list
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            found.append(node.returns)
        if isinstance(node, ast.Raise):
            found.append(node)
    ranges = list[Any]()
    for node in found:
        ranges.append(((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)))  # type: ignore[attr-defined]
    return ranges


def definitions(tree: ast.Module) -> list[tuple[int, int, str]]:
    """Return first line, last line and dotted name of every class and function, outer ones first."""
    found = list[tuple[int, int, str]]()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                found.append((child.lineno, child.end_lineno or child.lineno, name))
                visit(child, f"{name}.")

    visit(tree, "")
    return found


def mutants_of(path: Path, file: str) -> list[Mutant]:
    """Return the mutants of a file."""
    source = path.read_text()
    tree = ast.parse(source)
    skipped = skipped_ranges(tree)
    places = definitions(tree)
    nodes = list(ast_nodes(get_ast(source)))
    mutants = list[Mutant]()
    numbers = Counter[tuple[str, str]]()
    for name in (*COSMIC_RAY, *OWN):
        mutation = operator(name)
        occurrence = -1
        for node in nodes:
            for start, _ in mutation.mutation_positions(node):
                occurrence += 1
                if any(first <= start < last for first, last in skipped):
                    continue
                inside = [place for place in places if place[0] <= start[0] <= place[1]]
                definition = inside[-1][2] if inside else ""
                number = numbers[definition, name]
                numbers[definition, name] += 1
                mutants.append(Mutant(file, definition, name, number, occurrence, start[0]))
    return mutants


def all_mutants(root: Path) -> list[Mutant]:
    """Return the mutants of all packages of mathematics, without those known to change nothing."""
    known = set[str]()
    for line in (ROOT / "tests/mutation/equivalent.txt").read_text().splitlines():
        known.add(line.split(" ")[0])
    mutants = list[Mutant]()
    for package in PACKAGES:
        path = root / "rlmods" / package
        files = sorted(path.glob("*.py")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.name != "__init__.py":
                mutants += mutants_of(file, str(file.relative_to(root)))
    return [mutant for mutant in mutants if mutant.name not in known]


def select_tests(root: Path, file: str) -> list[str]:
    """Return the tests for a file: those of its module first, then its package's."""
    parts = Path(file).with_suffix("").parts[1:]
    folder = Path("tests", *parts[:-1])
    own = folder / f"test_{parts[-1]}.py"
    chosen = [str(own)] if (root / own).is_file() else []
    chosen += MORE_TESTS.get(file, ())
    if parts[0] not in ("training", "policy", "reward") and len(parts) > 1:
        chosen.append(str(folder))
    if parts[0] == "training":
        chosen.append("tests/training/test_metrics.py")
        chosen.append("tests/algo/test_policy_gradient.py")
    chosen += COMMON_TESTS
    return [test for test in chosen if (root / test).exists()]


class Workspace:
    """A copy of the repository in which one mutant at a time is tested."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
        # Checked by content: a mutated file may have the size and the time of the original one.
        compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode"]
        subprocess.run([*compiling, "checked-hash", folder], check=True)

    def test(self, tests: Sequence[str], output: Path, bug: str = "") -> int:
        """Run tests until the first failure in a new process. Return its id."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 3
        try:
            os.setsid()
            os.chdir(self.folder)
            with output.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            os.environ["PYTHONPATH"] = str(self.folder)
            sys.path.insert(0, str(self.folder))
            for name in list(sys.modules):
                if name.partition(".")[0] in ("rlmods", "tests"):
                    del sys.modules[name]
            if bug:
                BUGS[bug].plant()
            import pytest

            status = int(pytest.main([*OPTIONS, ALREADY_IMPORTED, *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def run_one(space: Workspace, tests: Sequence[str], timeout_s: float, bug: str = "") -> Result:
    """Run tests in a workspace."""
    started = time.monotonic()
    output = space.folder / "output.txt"
    pid = space.test(tests, output, bug)
    status = None
    while status is None and time.monotonic() - started < timeout_s:
        time.sleep(0.02)
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(code)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
    lines = output.read_text(errors="replace").strip().splitlines() if output.exists() else []
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    detail = (failed or lines or [""])[-1]
    return Result("", 0, status != 0, time.monotonic() - started, detail[:160])


def run(root: Path, work: Sequence[Mutant | str], jobs: int, timeout_s: float) -> Iterator[Result]:
    """Test mutants, and planted bugs by name, in `jobs` processes."""
    read, write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="mutation_") as folder:
        (Path(folder) / "shared").symlink_to(root.resolve().parent / "shared")
        children = list[int]()
        for job in range(jobs):
            pid = os.fork()
            if pid:
                children.append(pid)
                continue
            os.close(read)
            space = Workspace(root, Path(folder) / str(job))
            with os.fdopen(write, "w") as results:
                for item in work[job::jobs]:
                    result = run_item(space, item, timeout_s)
                    results.write(json.dumps(asdict(result)) + "\n")
                    results.flush()
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as results:
            for line in results:
                yield Result(**json.loads(line))
        for pid in children:
            os.waitpid(pid, 0)


def run_item(space: Workspace, item: Mutant | str, timeout_s: float) -> Result:
    """Plant one bug, run its tests, and restore the file."""
    if isinstance(item, str):
        found = run_one(space, BUGS[item].tests, timeout_s, bug=item)
        return Result(f"planted: {item}", 0, found.seen, found.seconds, found.detail)
    path = space.folder / item.file
    source = path.read_text()
    path.write_text(mutate_code(source, operator(item.operator), item.occurrence) or source)
    found = run_one(space, select_tests(space.folder, item.file), timeout_s)
    path.write_text(source)
    return Result(item.name, item.line, found.seen, found.seconds, found.detail)


def passes(root: Path, work: Sequence[Mutant | str], timeout_s: float) -> bool:
    """Return whether all tests pass without a bug. Print what fails."""
    tests = list[str]()
    for item in work:
        tests += BUGS[item].tests if isinstance(item, str) else select_tests(root, item.file)
    with tempfile.TemporaryDirectory(prefix="mutation_") as folder:
        (Path(folder) / "shared").symlink_to(root.resolve().parent / "shared")
        space = Workspace(root, Path(folder) / "0")
        found = run_one(space, sorted(set(tests)), 10 * timeout_s)
    if found.seen:
        print(f"the tests fail without a bug: {found.detail}")
    return not found.seen


def preload() -> None:
    """Import libraries, which forks then share."""
    import importlib

    for name in LIBRARIES:
        importlib.import_module(name)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--sample", type=int, help="mutants drawn at random; all if left out")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at a time")
    parser.add_argument("--only", nargs="+", default=[], help="texts, one of which a name contains")
    parser.add_argument("--list", action="store_true", help="print the mutants")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to test")
    parser.add_argument("--timeout", type=float, default=180.0, help="longest test run in seconds")
    parser.add_argument("--threshold", type=float, default=0.95, help="least fraction to be seen")
    parser.add_argument(
        "--results", type=Path, help="file to which results are added as JSON lines"
    )
    parser.add_argument("--no-planted", action="store_true", help="leave out the planted bugs")
    given = parser.parse_args(arguments)
    root = given.tree.resolve()
    work: list[Mutant | str] = []
    work += all_mutants(root)
    if given.sample is not None:
        work = random.Random(given.seed).sample(work, min(given.sample, len(work)))
    if not given.no_planted:
        work += BUGS
    if given.only:
        names = [item if isinstance(item, str) else item.name for item in work]
        pairs = zip(work, names, strict=True)
        work = [item for item, name in pairs if any(text in name for text in given.only)]
    if given.list:
        for item in work:
            print(item if isinstance(item, str) else f"{item.name} (line {item.line})")
        print(f"{len(work)} mutants")
        return 0
    preload()
    if not passes(root, work, given.timeout):
        return 2
    results = list[Result]()
    for result in run(root, work, given.jobs, given.timeout):
        results.append(result)
        verdict = "seen" if result.seen else "SURVIVED"
        print(f"{len(results):5}/{len(work)} {verdict:8} {result.seconds:5.1f} s  {result.name}")
        sys.stdout.flush()
        if given.results is not None:
            with given.results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    survivors = [result for result in results if not result.seen]
    print("\nSurvivors:")
    for result in survivors:
        print(f"  {result.name} (line {result.line})")
    fraction = 1 - len(survivors) / max(1, len(results))
    print(f"{len(results) - len(survivors)} of {len(results)} seen: {fraction:.1%}")
    return int(fraction < given.threshold)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
