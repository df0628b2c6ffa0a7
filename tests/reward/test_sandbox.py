"""Attempts of sandboxed code to do harm or to cheat."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rlmods.reward.sandbox import walls
from rlmods.reward.sandbox.run import Limits, RunResult, run_program, run_tests
from rlmods.reward.sandbox.tests import grade, read_tests, same_output
from rlmods.reward.sandbox.wire import decode, encode

pytestmark = pytest.mark.skipif(walls.missing_support() is not None, reason=f"cannot confine code here: {walls.missing_support()}")

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
        source = "import bisect, collections, decimal, fractions, heapq, itertools, math, random, re, string, threading, typing\n"
        source += "done = threading.Thread(target=lambda: print('in a thread'))\ndone.start()\ndone.join()"
        assert run(source) == RunResult("ok", "in a thread\n")

    def test_packages_are_optional(self) -> None:
        assert run("import numpy").stderr_line == "ModuleNotFoundError: No module named 'numpy'"
        result = run_program("import numpy; print(numpy.arange(3).sum())", "", Limits(packages=True, memory_mb=2048))
        assert result == RunResult("ok", "3\n")

    def test_exceptions_and_exit_codes_are_errors(self) -> None:
        assert run("1 / 0") == RunResult("error", "", "ZeroDivisionError: division by zero")
        assert run("import sys; sys.exit(3)").status == "error"
        assert run("def").status == "error"

    def test_deep_recursion_works_or_ends_in_an_error(self) -> None:
        assert run("f = lambda n: n and 1 + f(n - 1)\nprint(f(5000))").stdout == "5000\n"
        assert run("f = lambda: f()\nf()").status == "error"


HARM = {
    "home": "print(open('{home}/secret').read())",
    "list": "import os; print(os.listdir('{home}'))",
    "passwords": "print(open('/etc/passwd').read())",
    "environment of the parent": "import os; print(open(f'/proc/{{os.getppid()}}/environ').read())",
    "memory of the parent": "import os; open(f'/proc/{{os.getppid()}}/mem', 'r+b')",
    "write": "open('{home}/new', 'w').write('x')",
    "overwrite": "open('{home}/secret', 'a').write('x')",
    "write here": "open('new', 'w').write('x' * 10**10)",
    "write in /tmp": "open('/tmp/rlmods_was_here', 'w').write('x')",
    "shared memory": "open('/dev/shm/rlmods_was_here', 'w').write('x')",
    "make a folder": "import os; os.mkdir('folder')",
    "remove": "import os; os.remove('{home}/secret')",
    "rename": "import os; os.rename('{home}/secret', '{home}/other')",
    "link": "import os; os.link('{home}/secret', 'mine')",
    "mode": "import os; os.chmod('{home}/secret', 0)",
    "owner": "import os; os.chown('{home}/secret', 1, 1)",
    "times": "import os; os.utime('{home}/secret', (0, 0))",
    "truncate": "import os; os.truncate('{home}/secret', 0)",
    "socket": "import socket; socket.socket()",
    "connect": "import socket; socket.create_connection(('127.0.0.1', 22))",
    "unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "fork": "import os\nwhile True: os.fork()",
    "shell": "import os; assert os.system('touch /tmp/rlmods_was_here') == 0",
    "process": "import subprocess; subprocess.run(['true'], check=True)",
    "exec": "import os; os.execv('/bin/sh', ['sh', '-c', 'true'])",
    "multiprocessing": "import multiprocessing; multiprocessing.Process(target=print).start()",
    "kill the parent": "import os; os.kill(os.getppid(), 9)",
    "kill everyone": "import os; os.kill(-1, 9)",
    "signal by a pipe": "import fcntl, os; fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "limits of the parent": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "own limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "nice": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "ptrace": "import ctypes, os; assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0",
    "io_uring": "import ctypes; assert ctypes.CDLL(None).syscall(425, 8, 0) >= 0",
    "namespaces": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "root directory": "import os; os.chroot('.')",
    "memory": "x = bytearray(10**9)",
    "attributes by a new call": "import ctypes; assert ctypes.CDLL(None).syscall(463, -100, b'{home}/secret', 0, b'user.x', 0, 0) != -1",
    "an unknown system call": "import ctypes; assert ctypes.CDLL(None).syscall(999) != -1",
    "outliving its parent": "import ctypes; assert ctypes.CDLL(None).prctl(1, 0) == 0",
    "the grader": "import rlmods.reward.accuracy",
}


class TestHarm:
    @pytest.mark.parametrize("what", HARM)
    def test_is_refused(self, what: str, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("gold")
        before = (secret.stat().st_mode, secret.stat().st_uid, secret.stat().st_mtime_ns)
        result = run(HARM[what].format(home=tmp_path))
        assert result.status == "error", result
        assert result.stdout == ""
        assert [path.name for path in tmp_path.iterdir()] == ["secret"]
        assert secret.read_text() == "gold"
        assert (secret.stat().st_mode, secret.stat().st_uid, secret.stat().st_mtime_ns) == before
        assert not any(Path(folder, "rlmods_was_here").exists() for folder in ("/tmp", "/dev/shm"))

    def test_succeeds_without_walls(self, tmp_path: Path) -> None:
        """Shows that the attempts above fail because of the walls."""
        (tmp_path / "secret").write_text("gold")
        unconfined = Limits(timeout_s=3, memory_mb=256, confined=False)
        for what in ("home", "list", "passwords", "write", "make a folder", "mode", "times", "socket", "process", "rename"):
            assert run_program(HARM[what].format(home=tmp_path), "", unconfined).status == "ok", what
            (tmp_path / "secret").write_text("gold")

    @pytest.mark.parametrize("source", ["while True: pass", "import time; time.sleep(60)", "input()\nwhile True: pass"])
    def test_endless_programs_are_stopped_at_the_timeout(self, source: str) -> None:
        start = time.monotonic()
        assert run(source, "\n").status == "timeout"
        assert time.monotonic() - start < LIMITS.timeout_s + 5

    def test_endless_output_is_stopped_at_the_limit(self) -> None:
        result = run("while True: print('x' * 100)")
        assert (result.status, len(result.stdout)) == ("output", LIMITS.output_bytes)

    def test_ignoring_signals_does_not_prevent_the_timeout(self) -> None:
        source = "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
        source += "while True: pass"
        assert run(source).status == "timeout"

    def test_capabilities_are_dropped(self) -> None:
        source = "import ctypes\nheader = (ctypes.c_uint32 * 2)(0x20080522, 0)\ndata = (ctypes.c_uint32 * 6)(*[7] * 6)\n"
        source += "assert ctypes.CDLL(None).capget(header, data) == 0\nprint(list(data))"
        assert run(source) == RunResult("ok", "[0, 0, 0, 0, 0, 0]\n")

    def test_ends_with_its_parent(self) -> None:
        code = "import sys; sys.path.insert(0, sys.argv[1])\nfrom rlmods.reward.sandbox.run import Limits, run_program\n"
        code += "run_program('import time; time.sleep(60)', '', Limits(timeout_s=50))"
        root = str(Path(walls.__file__).parents[3])
        parent = subprocess.Popen([sys.executable, "-c", code, root])
        try:
            assert wait_until(lambda: children(parent.pid) != []), "the sandbox has started"
            time.sleep(0.5)
            [child] = children(parent.pid)
        finally:
            parent.kill()
            parent.wait()
        assert wait_until(lambda: not Path(f"/proc/{child}").exists() or "\nState:\tZ" in Path(f"/proc/{child}/status").read_text())

    def test_no_files_or_descriptors_are_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        before = len(os.listdir("/proc/self/fd"))
        for source in ("print(1)", "while True: pass", "1 / 0"):
            run(source)
            run_tests(source, ["assert True"], LIMITS)
        assert list(tmp_path.iterdir()) == []
        assert len(os.listdir("/proc/self/fd")) == before

    def test_failing_to_start_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rlmods.reward.sandbox.run.BOOT", "import sys; sys.exit('no such thing')")
        with pytest.raises(RuntimeError, match="the sandbox did not start: no such thing"):
            run("print(1)")

    def test_unsupported_system(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.platform", "darwin")
        assert walls.missing_support() == "darwin has neither Landlock nor seccomp"


def passed(source: str, *tests: str, entry_point: str | None = None) -> list[bool]:
    return run_tests(source, tests, LIMITS, entry_point)[0]


class TestAssertions:
    def test_call_the_names_that_the_code_defines(self) -> None:
        source = "def add(a, b):\n    return a + b\nLIMIT = 3"
        assert passed(source, "assert add(1, 2) == 3", "assert add([1], [2]) == [1, 2]", "assert add(1, 2) == 4") == [True, True, False]

    def test_candidate_is_the_entry_point(self) -> None:
        check = "def check(candidate):\n    assert candidate(2) == 2\ncheck(candidate)"
        assert passed("def f(x): return x", check, entry_point="f") == [True]

    def test_values_keep_their_type(self) -> None:
        source = "def same(x): return x"
        values = ["(1, [2, {'a': {3}}])", "b'x'", "1j", "float('inf')", "10**5000", "frozenset({1})", "None"]
        values += ["'\\ud800'", "-0.0", "{(1, 2): 3}"]
        tests = [f"assert same({value}) == {value} and type(same({value})) is type({value})" for value in values]
        assert passed(source, *tests) == [True] * len(values)

    def test_objects_and_in_place_changes(self) -> None:
        source = "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        source += "def clear(x): x.clear()"
        tests = ["s = Stack(); s.push(1); s.push(2); assert s.items == [1, 2]", "x = [1]; clear(x); assert x == []"]
        tests += ["assert Stack().items == []"]
        assert passed(source, *tests) == [True, True, True]

    def test_exceptions_reach_the_test(self) -> None:
        source = "def f(): raise ValueError('no')"
        assert passed(source, "try: f()\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert False", "f()") == [True, False]

    def test_tests_after_a_timeout_fail(self) -> None:
        results, status = run_tests("def f(x):\n    while x: pass", ["f(0)", "f(1)", "f(0)"], LIMITS)
        assert (results, status) == ([True, False, False], "timeout")


SHADOWS = {
    "set": ("def set(x): return 0\ndef f(x): return ()", "assert set(f(1)) == set((4, 5))"),
    "abs": ("def abs(x): return 0\ndef f(x): return 7", "assert abs(f(1) - 0.5) < 1e-6"),
    "math": ("class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return 7", "assert math.isclose(f(1), 0.5)"),
    "range": ("def range(n): return ()\ndef f(x): return 7", "for i in range(3): assert f(i) == i"),
    "builtins": (
        "import sys\ndef f(x): return 7\n"
        "wire = sys.modules['sandbox.wire']\nsend = wire.send\n"
        "def mine(stream, message):\n"
        "    if 'names' in message: message['names'].update(__builtins__=0, set=0, tuple=0)\n"
        "    send(stream, message)\n"
        "wire.send = mine",
        "assert set((f(1),)) == set((4, 5))",
    ),
    "StopIteration": ("def f(x): raise StopIteration", "assert all(map(f, [1, 2, 3]))"),
    "its own name": ("def f(x): return 7\ncandidate = lambda x: x", "assert candidate(2) == 2"),
}
CHEATS = {
    "equals everything": "class E:\n    def __eq__(self, o): return True\ndef f(x): return E()",
    "a number that equals everything": "class E(int):\n    def __eq__(self, o): return True\ndef f(x): return E(7)",
    "exit": "import sys\nsys.exit(0)",
    "exit in the call": "import os\ndef f(x): os._exit(0)",
    "exit quietly": "import sys\ndef f(x): sys.exit(0)",
    "no code": "",
    "patches assertions": "import builtins\nbuiltins.AssertionError = ValueError\ndef f(x): return 7",
    "patches isinstance and len": "import builtins\nbuiltins.len = lambda x: 2\nbuiltins.isinstance = lambda *_: True\ndef f(x): return 7",
    "looks for the answer": "import gc\ndef f(x): return [o for o in gc.get_objects() if isinstance(o, str) and 'assert f' in o]",
    "looks up the frames": "import sys\ndef f(x):\n    g = sys._getframe()\n    while g.f_back: g = g.f_back\n    return str(g.f_globals)",
    "raises success": "def f(x): raise SystemExit(0)",
    "prints success": "print('1\\n1\\n1')\ndef f(x): print('1'); return 7",
    "writes on every descriptor": "import os\nfor n in range(3, 64):\n    try: os.write(n, b'1\\n')\n    except OSError: pass\n"
    "def f(x): return 7",
    "speaks the protocol": "import os\ndef f(x):\n    for n in range(3, 64):\n        "
    'try: os.write(n, b\'{"value": 2}\\n{"value": true}\\n\')\n'
    "        except OSError: pass\n    return 7",
    "kills the judge": "import os\ndef f(x):\n    for p in range(os.getppid(), os.getppid() + 9):\n        try: os.kill(p, 9)\n"
    "        except OSError: pass\n    return 7",
    "a deep value": "def f(x):\n    y = []\n    for _ in range(10**5): y = [y]\n    return y",
    "a long value": "def f(x): return 'x' * 10**8",
}


class TestCheating:
    @pytest.mark.parametrize("how", CHEATS)
    def test_fails_the_tests(self, how: str) -> None:
        assert passed(CHEATS[how], "assert f(1) == 2 and f(2) == 3", "assert f(3) == 4") == [False, False]

    @pytest.mark.parametrize("what", SHADOWS)
    def test_redefining_names_used_by_the_tests_fails_them(self, what: str) -> None:
        source, test = SHADOWS[what]
        assert passed(source, test, entry_point="f") == [False]

    def test_modules_imported_by_the_code_are_available_to_tests(self) -> None:
        assert passed("import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(4), 2)") == [True]


class TestGrade:
    """Programs by their output and their exit status."""

    CASES = ({"input": "1", "output": "2"}, {"input": "2", "output": "4"})
    RIGHT = "n = int(input())\nprint(2 * n)\n"

    def grade(self, source: str, stop_early: bool = False) -> tuple[int, int, int]:
        limits = {"timeout_s": LIMITS.timeout_s, "memory_mb": LIMITS.memory_mb}
        result = grade(source, list(self.CASES), None, limits, stop_early)
        return result["passed"], result["total"], result["late"]

    @pytest.mark.parametrize("end", ["1 / 0", "import sys; sys.exit(1)", "import os; os._exit(2)", "import sys; sys.stdout.flush(); [][0]"])
    def test_a_program_that_prints_the_answer_and_then_crashes_fails(self, end: str) -> None:
        assert self.grade(self.RIGHT) == (2, 2, 0)
        assert self.grade(self.RIGHT + "import sys; sys.stdout.flush()\n" + end) == (0, 2, 0)

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
        assert read_tests('[{"input": "1\\n2", "output": "3"}, {"input": "4", "output": "5"}]').cases == cases
        assert read_tests({"inputs": [["1", "2"], "4"], "outputs": [["3"], "5"]}).cases == cases

    @pytest.mark.parametrize("output", ["[5]", "5"])
    @pytest.mark.parametrize("source", ["def f(a, b): return a + b", "class Solution:\n    def f(self, a, b): return a + b"])
    def test_functions_by_name(self, output: str, source: str) -> None:
        tests = read_tests({"fn_name": "f", "inputs": ["[2, 3]", [1, 4]], "outputs": [output, output]})
        assert passed(source, *tests.asserts, entry_point=tests.entry_point) == [True, True]
        assert passed(source.replace("+", "-"), *tests.asserts, entry_point=tests.entry_point) == [False, False]

    def test_functional_tests_have_one_argument_per_line(self) -> None:
        unit_tests = [{"input": "[1, 2]\n3", "output": "[1, 2, 3]", "testtype": "functional"}]
        tests = read_tests(unit_tests, "add")
        source = "class Solution:\n    def add(self, xs, x): return xs + [x]"
        assert passed(source, *tests.asserts, entry_point="add") == [True]
        assert read_tests({"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "f"}).asserts[0].startswith("result = candidate(*[1, 2])")
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
        ],
    )
    def test_other_forms_are_refused(self, bad: object) -> None:
        with pytest.raises(ValueError, match="unit tests"):
            read_tests(bad)


@pytest.mark.parametrize(
    ("stdout", "expected", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True), ("1 2 \n3", "1 2\n3", True), ("1 2 3", "1 2\n3", False), ("1", "2", False), ("", "1", False),
        ("0.3333333", "0.333333333", True), ("0.33", "0.3333", False), ("1", "1.0", True), ("1.0", "1", False), ("YES", "Yes", False),
        ("nan", "1.0", False), ("inf", "1.5", False),
    ],
)  # fmt: skip
def test_same_output(stdout: str, expected: str, same: bool) -> None:
    assert same_output(stdout, expected) is same


def test_invalid_encoded_values_are_refused() -> None:
    for bad in ({"list": 3}, {"what": []}, {"a": 1, "b": 2}, [1]):
        with pytest.raises((ValueError, TypeError)):
            decode(bad)
    with pytest.raises(TypeError, match="object is not a plain value"):
        encode(object())
