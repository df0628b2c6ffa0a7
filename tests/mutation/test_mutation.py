"""The operators mutate what their examples say, and every planted bug names code that exists."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray")

from cosmic_ray.mutating import mutate_code

from tests.mutation.__main__ import ROOT, all_mutants, mutants_of, select_tests
from tests.mutation.operators import OWN
from tests.mutation.planted import BUGS


@pytest.mark.parametrize("name", OWN)
def test_examples_of_operators(name: str) -> None:
    operator = OWN[name]
    for example in operator.examples():
        mutated = mutate_code(example.pre_mutation_code, operator(), example.occurrence)
        assert mutated == example.post_mutation_code


def test_mutants_are_named_by_file_function_operator_and_number(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def f(x: int | None = 1) -> int:\n    return x + x.sum()\n")
    names = {mutant.name for mutant in mutants_of(path, "mine.py")}
    assert "mine.py:f:ReplaceBinaryOperator_Add_Sub:0" in names
    assert "mine.py:f:SwapReductions:0" in names
    assert not any("BitOr" in name for name in names), "annotations are left out"


@pytest.mark.slow
def test_every_file_has_tests() -> None:
    files = {mutant.file for mutant in all_mutants(ROOT)}
    assert len(files) > 40
    for file in files:
        assert select_tests(ROOT, file)


@pytest.mark.slow
def test_every_planted_bug_can_be_planted() -> None:
    code = "from tests.mutation.planted import BUGS\nfor bug in BUGS.values(): bug.plant()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    for bug in BUGS.values():
        assert all((ROOT / test).exists() for test in bug.tests)
