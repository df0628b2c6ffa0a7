"""Sandboxed code: what it can do, attempts to do harm or to cheat, honest styles, and forms of unit
tests."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rlmods.grading.sandbox import confinement, run as run_module
from rlmods.grading.sandbox.names import free_names
from rlmods.grading.sandbox.run import Limits, RunResult, run_program, run_tests
from rlmods.grading.sandbox.test_runner import FAILED, PASSED
from rlmods.grading.sandbox.tests import grade, packages_used, read_tests, same_output
from rlmods.grading.sandbox.wire import decode, encode, refuse
from tests.grading.escapes import (
    BELIEVED,
    CHEATS,
    HARM,
    SHADOWS,
    STYLES_OF_TESTS,
    escape,
    home,
    rows,
)
from tests.grading.honest_code import STYLES

pytestmark = pytest.mark.skipif(
    confinement.missing_support() is not None,
    reason=f"cannot confine code here: {confinement.missing_support()}",
)

LIMITS = Limits(timeout_s=1.5, memory_mb=256, output_bytes=10_000)


def run(source: str, stdin: str = "") -> RunResult:
    return run_program(source, stdin, LIMITS)


def children(pid: int) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] == str(pid):
                pids.append(int(path.parent.name))
    return pids


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


class TestPrograms:
    def test_read_and_print(self) -> None:
        assert run("print(sum(map(int, input().split())))", "1 2 3") == RunResult("ok", "6\n")

    def test_have_the_standard_library_and_threads(self) -> None:
        source = (
            "import bisect, collections, decimal, fractions, heapq, itertools, math, random, re, "
            "string, threading, typing\n"
            "done = threading.Thread(target=lambda: print('in a "
            "thread'))\ndone.start()\ndone.join()"
        )
        assert run(source) == RunResult("ok", "in a thread\n")

    @pytest.mark.parametrize(("count", "status"), [(8, "ok"), (3000, "error")])
    def test_have_a_limited_number_of_threads(self, count: int, status: str) -> None:
        source = (
            "import _thread, time\n_thread.stack_size(32768)\n"
            f"for _ in range({count}):\n"
            "    _thread.start_new_thread(time.sleep, (0.5,))\n"
            "time.sleep(1)"
        )
        result = run_program(source, "", replace(LIMITS, timeout_s=5.0, memory_mb=4096))
        assert result.status == status
        assert result.stderr_line == ("more than 256 threads" if status == "error" else "")

    def test_packages_are_optional(self) -> None:
        assert run("import numpy").stderr_line == "ModuleNotFoundError: No module named 'numpy'"
        result = run_program(
            "import numpy; print(numpy.arange(3).sum())", "", Limits(packages=True, memory_mb=2048)
        )
        assert result == RunResult("ok", "3\n")

    def test_exceptions_and_exit_codes_are_errors(self) -> None:
        assert run("1 / 0") == RunResult("error", "", "ZeroDivisionError: division by zero")
        assert run("import sys; sys.exit(3)").status == "error"
        assert run("def").status == "error"

    def test_what_they_print_to_stderr_is_read_and_discarded(self) -> None:
        source = """import os, sys
for line in range(40):
    sys.stderr.write(50_000 * "x" + f"{line}\\n")
print(5)
sys.stdout.flush()
os.close(1)
sys.stderr.write(200_000 * "y" + "\\nlast\\n")
"""
        assert run(source) == RunResult("ok", "5\n", "last")

    def test_deep_recursion_works_or_ends_in_an_error(self) -> None:
        assert run("f = lambda n: n and 1 + f(n - 1)\nprint(f(5000))").stdout == "5000\n"
        assert run("f = lambda: f()\nf()").status == "error"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with home() as folder:
        yield folder


class TestHarm:
    @pytest.mark.parametrize("what", HARM)
    def test_is_refused(self, what: str, folder: Path) -> None:
        assert escape(what, folder, {}) is None

    def test_succeeds_unconfined(self) -> None:
        """Shows that the attempts above fail because of the confinement."""
        harmless = (
            "home",
            "list",
            "passwords",
            "write",
            "make a folder",
            "mode",
            "times",
            "socket",
            "process",
            "own affinity",
            "watch files",
        )
        for what in (
            *harmless,
            "truncate a readable file",
            "truncate by opening",
            "names of installed packages",
            "rename",
        ):
            with home() as folder:
                assert escape(what, folder, {"confined": False, "timeout_s": 3.0}) is not None, what

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "source", ["while True: pass", "import time; time.sleep(60)", "input()\nwhile True: pass"]
    )
    def test_endless_programs_are_stopped_at_the_timeout(self, source: str) -> None:
        start = time.monotonic()
        assert run(source, "\n").status == "timeout"
        assert time.monotonic() - start < LIMITS.timeout_s + 5

    def test_endless_output_is_stopped_at_the_limit(self) -> None:
        result = run("while True: print('x' * 100)")
        assert (result.status, len(result.stdout)) == ("output", LIMITS.output_bytes)

    @pytest.mark.slow
    def test_ignoring_signals_does_not_prevent_the_timeout(self) -> None:
        source = (
            "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n  "
            "  except OSError: pass\n"
            "while True: pass"
        )
        assert run(source).status == "timeout"

    @pytest.mark.parametrize(
        "how",
        [
            "os.pwrite(0, b'1', 0)",
            "os.posix_fallocate(0, 0, 2**28)",
            "libc.fallocate(0, 1, ctypes.c_long(0), ctypes.c_long(2**28)) and 1 / 0",
            "os.pwrite(os.open('/dev/stdin', os.O_RDWR), b'1', 0)",
            "open('/proc/self/fd/0', 'w').write('1')",
        ],
    )
    @pytest.mark.parametrize("size", [1, 70_000])
    def test_the_input_cannot_be_written(self, how: str, size: int) -> None:
        source = f"import ctypes, os\nlibc = ctypes.CDLL(None)\n{how}\nprint('written')"
        result = run(source, "x" * size)
        assert (result.status, result.stdout) == ("error", "")

    def test_capabilities_are_dropped(self) -> None:
        source = (
            "import ctypes\nheader = (ctypes.c_uint32 * 2)(0x20080522, 0)\ndata = "
            "(ctypes.c_uint32 * 6)(*[7] * 6)\n"
            "assert ctypes.CDLL(None).capget(header, data) == 0\nprint(list(data))"
        )
        assert run(source) == RunResult("ok", "[0, 0, 0, 0, 0, 0]\n")

    def test_ends_with_its_parent(self) -> None:
        code = (
            "import sys; sys.path.insert(0, sys.argv[1])\nfrom rlmods.grading.sandbox.run import "
            "Limits, run_program\n"
            "run_program('import time; time.sleep(60)', '', Limits(timeout_s=50))"
        )
        root = str(Path(confinement.__file__).parents[3])
        parent = subprocess.Popen([sys.executable, "-c", code, root])
        try:
            assert wait_until(lambda: children(parent.pid) != []), "the sandbox has started"
            time.sleep(0.5)
            [child] = children(parent.pid)
        finally:
            parent.kill()
            parent.wait()
        assert wait_until(
            lambda: (
                not Path(f"/proc/{child}").exists()
                or "\nState:\tZ" in Path(f"/proc/{child}/status").read_text()
            )
        )

    @pytest.mark.slow
    def test_no_files_or_descriptors_are_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        run("print(1)")
        before = len(os.listdir("/proc/self/fd"))
        for source in ("print(1)", "while True: pass", "1 / 0"):
            run(source)
            run_tests(source, ["assert True"], LIMITS)
        assert list(tmp_path.iterdir()) == []
        assert len(os.listdir("/proc/self/fd")) == before

    def test_unconfined_descendants_are_killed(self) -> None:
        source = "import os, time\nif os.fork() == 0:\n    time.sleep(300)\nprint(os.getpid())"
        result = run_program(source, "", Limits(timeout_s=1.0, confined=False))
        assert wait_until(lambda: children(int(result.stdout)) == [])

    def test_both_processes_of_a_test_are_ended(self) -> None:
        source = "import time\ntime.sleep(60)"
        assert run_tests(source, ["assert f() == 1"], Limits(timeout_s=0.5)) == ([FAILED], True)
        assert children(run_module._server("child", LIMITS).process.pid) == []

    def test_a_server_that_was_killed_is_replaced(self) -> None:
        assert run("print(1)").stdout == "1\n"
        server = run_module._server("child", LIMITS).process
        server.kill()
        server.wait()
        assert run("print(1)").stdout == "1\n"

    def test_failing_to_start_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "rlmods.grading.sandbox.run.BOOT", "import sys; sys.exit('no such thing')"
        )
        monkeypatch.setattr("rlmods.grading.sandbox.run._SERVERS", {})
        with pytest.raises(RuntimeError, match="the sandbox did not start: no such thing"):
            run("print(1)")

    def test_unsupported_system(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.platform", "darwin")
        assert confinement.missing_support() == "darwin has neither Landlock nor seccomp"

    def test_missing_seccomp_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # as a kernel without filters answers: invalid
        monkeypatch.setattr(confinement, "_SECCOMP_MODE_FILTER", 99)
        assert confinement.missing_support() == "this kernel or container has no seccomp filters"

    def test_processes_share_no_state(self) -> None:
        """A forked process inherits nothing of the others' code, tests or random numbers."""
        code = (
            "import random, gc\nfound = ['MARK' + 'ER' in str(o)[:10000] for o in "
            "gc.get_objects() if isinstance(o, (str, list, dict))]\n"
            "print(random.random(), sum(found))"
        )
        run_tests("def f(): return 'MARK' 'ER'", ["assert f() == 'MARK' 'ER'"], LIMITS)
        first, second = run(code).stdout.split(), run(code).stdout.split()
        assert first[0] != second[0]
        assert first[1] == second[1] == "0"


def passed(source: str, *tests: str, entry_point: str | None = None) -> list[bool]:
    return [result == PASSED for result in run_tests(source, tests, LIMITS, entry_point)[0]]


class TestAssertions:
    def test_call_the_names_that_the_code_defines(self) -> None:
        source = "def add(a, b):\n    return a + b\nLIMIT = 3"
        assert passed(
            source,
            "assert add(1, 2) == 3",
            "assert add([1], [2]) == [1, 2]",
            "assert add(1, 2) == 4",
        ) == [True, True, False]

    def test_candidate_is_the_entry_point(self) -> None:
        check = "def check(candidate):\n    assert candidate(2) == 2\ncheck(candidate)"
        assert passed("def f(x): return x", check, entry_point="f") == [True]

    def test_values_keep_their_type(self) -> None:
        source = "def same(x): return x"
        values = [
            "(1, [2, {'a': {3}}])",
            "b'x'",
            "1j",
            "float('inf')",
            "10**5000",
            "frozenset({1})",
            "None",
            "'\\ud800'",
            "-0.0",
            "{(1, 2): 3}",
        ]
        tests = [
            f"assert same({value}) == {value} and type(same({value})) is type({value})"
            for value in values
        ]
        assert passed(source, *tests) == [True] * len(values)

    def test_objects_and_in_place_changes(self) -> None:
        source = (
            "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): "
            "self.items.append(x)\n"
            "def clear(x): x.clear()"
        )
        tests = [
            "s = Stack(); s.push(1); s.push(2); assert s.items == [1, 2]",
            "x = [1]; clear(x); assert x == []",
            "assert Stack().items == []",
        ]
        assert passed(source, *tests) == [True, True, True]

    def test_exceptions_reach_the_test(self) -> None:
        source = "def f(): raise ValueError('no')"
        assert passed(
            source,
            "try: f()\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert False",
            "f()",
        ) == [True, False]

    @pytest.mark.slow
    def test_tests_after_a_timeout_fail(self) -> None:
        found = run_tests("def f(x):\n    while x: pass", ["f(0)", "f(1)", "f(0)"], LIMITS)
        assert found == ([PASSED, FAILED, FAILED], True)


class TestCheating:
    @pytest.mark.parametrize("how", CHEATS)
    def test_fails_the_tests(self, how: str) -> None:
        assert not any(passed(CHEATS[how], *STYLES_OF_TESTS.values(), entry_point="f"))

    def test_right_code_passes_them(self) -> None:
        assert all(passed("def f(x): return x + 1", *STYLES_OF_TESTS.values(), entry_point="f"))

    @pytest.mark.parametrize("what", SHADOWS)
    def test_redefining_names_used_by_the_tests_fails_them(self, what: str) -> None:
        source, test = SHADOWS[what]
        assert passed(source, test, entry_point="f") == [False]

    @pytest.mark.slow
    @pytest.mark.parametrize("what", BELIEVED)
    def test_objects_and_replies_are_not_believed(self, what: str) -> None:
        source, test = BELIEVED[what]
        assert passed(source, test, entry_point="g" if "Solution" in source else None) == [False]

    def test_arrays_arrive_as_arrays(self) -> None:
        limits = Limits(packages=True, memory_mb=2048)
        test = "import numpy as np\nx = np.eye(2)\nassert f(x).shape == (2, 2) and (f(x) == x + 1).all()"
        assert run_tests("def f(x): return x + 1", [test], limits)[0] == [PASSED]

    def test_modules_imported_by_the_code_are_available_to_tests(self) -> None:
        assert passed(
            "import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(4), 2)"
        ) == [True]


@pytest.mark.parametrize("name", STYLES)
def test_honest_code_passes(name: str) -> None:
    style = STYLES[name]
    result = grade(style.source, style.tests, style.entry_point, Limits(timeout_s=20.0), False)
    assert result["passed"] == result["total"]


@pytest.mark.nightly
@pytest.mark.parametrize("capabilities", [True, False])
@pytest.mark.parametrize("abi", [1, 2, 3, 4])
def test_table(abi: int, capabilities: bool) -> None:
    """The null device cannot be written with a Landlock ABI below 3."""
    [row] = rows(abis=(abi,), capabilities=(capabilities,))
    assert row["escapes"].startswith("0 of ")
    assert row["cheats paid"].startswith("0 of ")
    assert row["which"] == (["null device"] if row["landlock_abi"] < 3 else [])


class TestObjects:
    """Objects of the code are handles in the tests."""

    ALWAYS = (
        "class Point:\n    def __init__(self, x): self.x = x\n    __eq__ = __lt__ = "
        "__contains__ = lambda *_: True\n    startswith = lambda *_: True\n"
        "def f(x): return Point(0)\n"
    )

    @pytest.mark.parametrize(
        ("test", "passes"),
        [
            ("p = Point(2)\nassert p.x == 2 and p == p and p in [p]", True),
            ("assert Point(2).startswith(1)", True),
            ("assert f(1).startswith(1)", False),
            ("assert f(1) == Point(1)", False),
            ("assert Point(1) == 1", False),
            ("assert Point(1) < 3", False),
            ("assert 5 in Point(1)", False),
            ("assert Point(1) + 1", False),
            ("with Point(1): pass", False),
            ("assert isinstance(f(1), Point)", True),
            ("f(lambda: 1)", False),
        ],
    )
    def test_have_methods_and_no_comparison(self, test: str, passes: bool) -> None:
        assert passed(self.ALWAYS, test) == [passes]


class TestForms:
    """Texts of unit tests, run as a test runner would."""

    SOURCE = "def f(x): return x + 1"

    @pytest.mark.parametrize(
        "test",
        [
            "def test_f():\n    assert f(1) == {0}",
            "class TestF:\n    def test_f(self):\n        assert f(1) == {0}",
            "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        "
            "self.assertEqual(f(1), {0})",
            "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        "
            "self.assertEqual(f(1), {0})\n"
            "if __name__ == '__main__':\n    unittest.main()",
            "if __name__ == '__main__':\n    assert f(1) == {0}",
            "def main():\n    assert f(1) == {0}\nif __name__ == '__main__':\n    main()",
            "async def test_f():\n    assert f(1) == {0}",
            "from solution import f as g\nassert g(1) == {0}",
            "import sys\nsys.exit(0 if f(1) == {0} else 1)",
        ],
    )
    def test_run(self, test: str) -> None:
        assert passed(self.SOURCE, test.format(2), test.format(3)) == [True, False]

    @pytest.mark.parametrize(
        "test",
        [
            "pass",
            "def check():\n    assert f(1) == 2",
            "x = 1",
            "assert True",
            "if __name__ == 'tests':\n    assert f(1) == 3",
        ],
    )
    def test_that_do_not_use_the_code_fail(self, test: str) -> None:
        assert passed(self.SOURCE, test) == [False]


class TestGrade:
    """Programs by their output and their exit status."""

    CASES = ({"input": "1", "output": "2"}, {"input": "2", "output": "4"})
    RIGHT = "n = int(input())\nprint(2 * n)\n"

    def grade(self, source: str, stop_early: bool = False) -> tuple[int, int, int]:
        limits = Limits(timeout_s=LIMITS.timeout_s, memory_mb=LIMITS.memory_mb)
        result = grade(source, list(self.CASES), None, limits, stop_early)
        return result["passed"], result["total"], result["late"]

    @pytest.mark.parametrize(
        "end",
        [
            "1 / 0",
            "import sys; sys.exit(1)",
            "import os; os._exit(2)",
            "import sys; sys.stdout.flush(); [][0]",
        ],
    )
    def test_a_program_that_prints_the_answer_and_then_crashes_fails(self, end: str) -> None:
        assert self.grade(self.RIGHT) == (2, 2, 0)
        assert self.grade(self.RIGHT + "import sys; sys.stdout.flush()\n" + end) == (0, 2, 0)

    @pytest.mark.slow
    def test_a_program_that_prints_the_answer_and_does_not_end_is_late(self) -> None:
        assert self.grade("print(2, flush=True)\nwhile True: pass") == (0, 2, 2)
        assert self.grade("print(2, flush=True)\nwhile True: pass", stop_early=True) == (0, 2, 1)

    def test_stops_at_the_first_failure(self) -> None:
        assert self.grade("print(4)") == (1, 2, 0)
        assert self.grade("print(4)", stop_early=True) == (0, 2, 0)


class TestReadTests:
    def test_programs(self) -> None:
        cases = (("1\n2", "3"), ("4", "5"))
        assert read_tests({"inputs": ["1\n2", "4"], "outputs": ["3", 5]}).cases == cases
        assert (
            read_tests('[{"input": "1\\n2", "output": "3"}, {"input": "4", "output": "5"}]').cases
            == cases
        )
        assert read_tests({"inputs": [["1", "2"], "4"], "outputs": [["3"], "5"]}).cases == cases

    @pytest.mark.parametrize("output", ["[5]", "5"])
    @pytest.mark.parametrize(
        "source",
        ["def f(a, b): return a + b", "class Solution:\n    def f(self, a, b): return a + b"],
    )
    def test_functions_by_name(self, output: str, source: str) -> None:
        tests = read_tests(
            {"fn_name": "f", "inputs": ["[2, 3]", [1, 4]], "outputs": [output, output]}
        )
        assert passed(source, *tests.asserts, entry_point=tests.entry_point) == [True, True]
        assert passed(source.replace("+", "-"), *tests.asserts, entry_point=tests.entry_point) == [
            False,
            False,
        ]

    def test_functional_tests_have_one_argument_per_line(self) -> None:
        unit_tests = [{"input": "[1, 2]\n3", "output": "[1, 2, 3]", "testtype": "functional"}]
        tests = read_tests(unit_tests, "add")
        source = "class Solution:\n    def add(self, xs, x): return xs + [x]"
        assert passed(source, *tests.asserts, entry_point="add") == [True]
        assert (
            read_tests({"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "f"})
            .asserts[0]
            .startswith("result = candidate(*[1, 2])")
        )
        with pytest.raises(ValueError, match="functional unit tests need the name of the function"):
            read_tests(unit_tests)

    def test_assertions(self) -> None:
        assert read_tests(["assert f(1) == 2"]).asserts == ("assert f(1) == 2",)
        tests = read_tests("def check(candidate):\n    assert candidate(1) == 2", "f")
        assert tests.asserts[0].endswith("\ncheck(candidate)\n")
        assert tests.entry_point == "f"

    @pytest.mark.parametrize(
        "bad",
        [
            [],
            {"inputs": []},
            3,
            [1, 2],
            {"inputs": [], "outputs": []},
            [{"input": "1"}],
            None,
            {"inputs": ["1"], "outputs": []},
            ["assert f(1==2"],
            {"inputs": ["1"], "outputs": [" "]},
            "import pytest\ndef test_f(): assert f(1) == 2  # unit tests",
            ["assert set(abs(1)) == 2"],
            ["assertEqual(f(1), 2)"],
            ["assert f(1) == approx(2)"],
            ["from checks.tools import assert_equal as same\nsame(f(1), 2)"],
            ["import checks.tools\nchecks.tools.assert_equal(f(1), 2)"],
            ["import checks as c\nc.assertEqual(f(1), 2)"],
        ],
    )
    def test_other_forms_are_refused(self, bad: object) -> None:
        with pytest.raises(ValueError, match=r"unit tests|argument 2 is shorter"):
            read_tests(bad)


@pytest.mark.parametrize(
    ("stdout", "expected", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("1 2 \n3", "1 2\n3", True),
        ("1 2 3", "1 2\n3", False),
        ("1", "2", False),
        ("", "1", False),
        ("0.3333333", "0.333333333", True),
        ("0.33", "0.3333", False),
        ("1", "1.0", True),
        ("1.0", "1", False),
        ("YES", "Yes", False),
        ("nan", "1.0", False),
        ("inf", "1.5", False),
        ("0", "0.0000002", False),
        ("0.00000020000001", "0.0000002", True),
    ],
)
def test_same_output(stdout: str, expected: str, same: bool) -> None:
    assert same_output(stdout, expected) is same


@pytest.mark.parametrize(
    "package", ["nose.tools", "hamcrest", "testfixtures", "deepdiff", "simplejson"]
)
def test_packages_are_not_of_the_code(package: str) -> None:
    assert packages_used(read_tests([f"from {package} import same\nassert same(f(1), 2)"])) == {
        package.split(".")[0]
    }


@pytest.mark.parametrize(
    ("source", "free"),
    [
        ("def run(f, x): return f(x)\nrun(f, 1)", {"f"}),
        ("[f for f in g(1)]", {"g"}),
        ("class A:\n    f = f", set()),
        ("def a():\n    global f\n    f = 1\nf()", set()),
        ("def a():\n    x = 1\n    return lambda: x + y", {"y"}),
        ("x: int\nprint(x)", {"int", "print"}),
        ("import a.b as c, d.e\nfrom g import h\nc, d, h, e", {"e"}),
        ("match x:\n    case [y, *z]: y, z", {"x"}),
        ("try: f\nexcept E as e: e", {"f", "E"}),
    ],
)
def test_free_names_follow_scopes(source: str, free: set[str]) -> None:
    assert free_names(source) == free


def test_invalid_encoded_values_are_refused() -> None:
    for bad in ({"list": 3}, {"what": []}, {"a": 1, "b": 2}, [1]):
        with pytest.raises((ValueError, TypeError)):
            decode(bad, refuse)
    with pytest.raises(TypeError, match="object is not a plain value"):
        encode(object(), refuse)
