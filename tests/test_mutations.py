"""The list of planted bugs fits the code, and the tool that plants them tells what the tests see."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import mutate
from tests.support.mutate import MUTATIONS, ROOT, Mutation, Result, load, report, verdict

BUGS = load()


@cache
def names(path: Path) -> set[str]:
    """Return the classes and functions of a test file."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef | ast.FunctionDef)}


class TestList:
    def test_every_bug_can_be_planted(self) -> None:
        """In the code as it is, once, in code that still compiles."""
        wrong = []
        for bug in BUGS:
            source = (ROOT / bug.file).read_text()
            mutated = bug.apply(source)
            if mutated is None:
                wrong.append(f"{bug.name}: {bug.file} has {source.count(bug.old)} times {bug.old!r}")
            elif bug.file.endswith(".py"):
                compile(mutated, bug.file, "exec")
        assert not wrong, "\n".join(wrong)

    def test_every_bug_has_tests_that_exist(self) -> None:
        wrong = []
        for bug in BUGS:
            assert bug.tests, bug.name
            for test in bug.tests:
                path, *parts = test.split("[")[0].split("::")
                if not (ROOT / path).is_file() or not set(parts) <= names(ROOT / path):
                    wrong.append(f"{bug.name}: {test}")
        assert not wrong, "\n".join(wrong)

    def test_every_package_has_bugs(self) -> None:
        files = [Path(bug.file).parts for bug in BUGS]
        packages = {path.name for path in (ROOT / "rlmods").iterdir() if (path / "__init__.py").is_file()}
        assert not packages - {parts[1] for parts in files if len(parts) > 2}
        assert len(BUGS) >= 150


BAD = {
    "the sum is a difference": ("a + b", "a - b", "seen"),
    "nobody looks at the doubled value": ("2 * x", "3 * x", "survived"),
    "the text has changed": ("a * b", "a / b", "stale"),
    "the test is gone": ("return x", "return -x", "broken"),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A package with two functions, the first of which is tested."""
    (tmp_path / "mine.py").write_text("def add(a, b):\n    return a + b\n\n\ndef double(x):\n    x = 2 * x\n    return x\n")
    (tmp_path / "test_mine.py").write_text("from mine import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    folder = tmp_path / MUTATIONS
    folder.mkdir(parents=True)
    tests = defaultdict(lambda: "test_mine.py", {"the test is gone": "test_mine.py::test_double"})
    tables = [
        f"[{json.dumps(name)}]\nfile = 'mine.py'\nold = '{old}'\nnew = '{new}'\ntests = ['{tests[name]}']\n"
        for name, (old, new, _) in BAD.items()
    ]
    (folder / "all.toml").write_text("\n".join(tables))
    return tmp_path


class TestTool:
    @pytest.fixture(autouse=True)
    def _without_libraries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mutate, "preload", lambda: None)

    def test_tells_what_the_tests_see(self, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = (repository / "mine.py").read_text()
        found = {result.name: result for result in mutate.run(repository, load(repository), jobs=2)}
        assert {name: result.status for name, result in found.items()} == {name: status for name, (*_, status) in BAD.items()}
        assert found["the sum is a difference"].detail == "test_mine.py::test_add"
        assert (repository / "mine.py").read_text() == before

    def test_goes_on_from_its_results(self, repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        arguments = ["--resume", str(repository / "results.jsonl"), "--only", "sum", "doubled", "--threshold", "0.5"]
        assert mutate.main(arguments, repository) == 0
        assert "1 seen, 1 survived, 0 timeout, 0 stale, 0 broken: 50.0% of 2 seen" in capsys.readouterr().out
        monkeypatch.setattr(mutate.Copy, "start", None)  # nothing is run again
        assert mutate.main(arguments, repository) == 0
        assert mutate.main([*arguments[:-1], "0.6"], repository) == 1
        assert "survived: nobody looks at the doubled value" in capsys.readouterr().out

    def test_lists_and_checks_the_tests_first(self, repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert mutate.main(["--list", "--only", "difference"], repository) == 0
        assert capfd.readouterr().out == "mine.py: the sum is a difference (test_mine.py)\n"
        (repository / "mine.py").write_text("def add(a, b):\n    return 0 * (a + b)\n")
        assert mutate.main(["--baseline", "--only", "difference"], repository) == 1
        assert "FAILED test_mine.py::test_add" in capfd.readouterr().out

    def test_two_bugs_of_one_name_are_an_error(self, repository: Path) -> None:
        (repository / MUTATIONS / "more.toml").write_text((repository / MUTATIONS / "all.toml").read_text())
        with pytest.raises(ValueError, match="two bugs are called"):
            load(repository)


CODES = {"survived": [0], "seen": [1, 2], "broken": [3, 4, 5], "timeout": [-9]}


@pytest.mark.parametrize(("status", "code"), [(status, code) for status, codes in CODES.items() for code in codes])
def test_verdict(status: str, code: int) -> None:
    assert verdict(code, hangs=False) == status
    assert verdict(code, hangs=True) == status.replace("timeout", "seen")


def test_old_text_occurs_once() -> None:
    def bug(**change: Any) -> Mutation:
        return Mutation(**{"name": "", "file": "", "old": "a", "new": "b", "tests": []} | change)

    assert bug().apply("xay") == "xby"
    assert bug().apply("xy") is bug().apply("aa") is bug(new="a").apply("xay") is None


@pytest.mark.parametrize(
    ("others", "status"), [(["survived"] * 3, 0), (["survived", "timeout"] * 2, 1), (["stale"], 1), (["broken"], 1), ([], 0)]
)
def test_report(others: list[str], status: int) -> None:
    results = ["seen"] * (100 - len(others)) + others
    assert report([Result(str(i), each) for i, each in enumerate(results)], 0.97) == status
