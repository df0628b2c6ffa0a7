"""What code in the sandbox cannot do, tried out."""

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
from rlmods.reward.sandbox.run import Limits, Ran, lacking, run_program, run_tests
from rlmods.reward.sandbox.tests import read_tests, same_output
from rlmods.reward.sandbox.wire import decode, encode

pytestmark = pytest.mark.skipif(lacking() is not None, reason=f"cannot confine code here: {lacking()}")

LIMITS = Limits(timeout_s=1.5, memory_mb=256, output_bytes=10_000)


def run(source: str, stdin: str = "") -> Ran:
    return run_program(source, stdin, LIMITS)


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(path.parent.name))
    return found


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


class TestPrograms:
    def test_read_and_print(self) -> None:
        assert run("print(sum(map(int, input().split())))", "1 2 3") == Ran("ok", "6\n")

    def test_have_the_standard_library_and_threads(self) -> None:
        source = "import bisect, collections, decimal, fractions, heapq, itertools, math, random, re, string, threading, typing\n"
        source += "done = threading.Thread(target=lambda: print('in a thread'))\ndone.start()\ndone.join()"
        assert run(source) == Ran("ok", "in a thread\n")

    def test_packages_can_be_asked_for(self) -> None:
        assert run("import numpy").said == "ModuleNotFoundError: No module named 'numpy'"
        ran = run_program("import numpy; print(numpy.arange(3).sum())", "", Limits(packages=True, memory_mb=2048))
        assert ran == Ran("ok", "3\n")

    def test_an_exception_is_an_error_and_says_so(self) -> None:
        assert run("1 / 0") == Ran("error", "", "ZeroDivisionError: division by zero")
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
    "a call that nobody knows": "import ctypes; assert ctypes.CDLL(None).syscall(999) != -1",
    "outliving its parent": "import ctypes; assert ctypes.CDLL(None).prctl(1, 0) == 0",
    "the grader": "import rlmods.reward.accuracy",
}


class TestHarm:
    @pytest.mark.parametrize("what", HARM)
    def test_is_refused(self, what: str, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("gold")
        before = (secret.stat().st_mode, secret.stat().st_uid, secret.stat().st_mtime_ns)
        ran = run(HARM[what].format(home=tmp_path))
        assert ran.status == "error", ran
        assert ran.stdout == ""
        assert [path.name for path in tmp_path.iterdir()] == ["secret"]
        assert secret.read_text() == "gold"
        assert (secret.stat().st_mode, secret.stat().st_uid, secret.stat().st_mtime_ns) == before
        assert not any(Path(folder, "rlmods_was_here").exists() for folder in ("/tmp", "/dev/shm"))

    def test_would_be_done_without_walls(self, tmp_path: Path) -> None:
        """The trials above can tell."""
        (tmp_path / "secret").write_text("gold")
        open_door = Limits(timeout_s=3, memory_mb=256, confined=False)
        for what in ("home", "list", "passwords", "write", "make a folder", "mode", "times", "socket", "process", "rename"):
            assert run_program(HARM[what].format(home=tmp_path), "", open_door).status == "ok", what
            (tmp_path / "secret").write_text("gold")

    @pytest.mark.parametrize("source", ["while True: pass", "import time; time.sleep(60)", "input()\nwhile True: pass"])
    def test_of_taking_for_ever_ends_in_time(self, source: str) -> None:
        start = time.monotonic()
        assert run(source, "\n").status == "timeout"
        assert time.monotonic() - start < LIMITS.timeout_s + 5

    def test_of_printing_for_ever_ends_at_the_cap(self) -> None:
        ran = run("while True: print('x' * 100)")
        assert (ran.status, len(ran.stdout)) == ("output", LIMITS.output_bytes)

    def test_of_ignoring_the_end_does_not_help(self) -> None:
        source = "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
        source += "while True: pass"
        assert run(source).status == "timeout"

    def test_root_has_no_powers_left(self) -> None:
        source = "import ctypes\nheader = (ctypes.c_uint32 * 2)(0x20080522, 0)\ndata = (ctypes.c_uint32 * 6)(*[7] * 6)\n"
        source += "assert ctypes.CDLL(None).capget(header, data) == 0\nprint(list(data))"
        assert run(source) == Ran("ok", "[0, 0, 0, 0, 0, 0]\n")

    def test_it_ends_with_its_parent(self) -> None:
        code = "import sys; sys.path.insert(0, sys.argv[1])\nfrom rlmods.reward.sandbox.run import Limits, run_program\n"
        code += "run_program('import time; time.sleep(60)', '', Limits(timeout_s=50))"
        root = str(Path(walls.__file__).parents[3])
        parent = subprocess.Popen([sys.executable, "-c", code, root])
        try:
            assert until(lambda: children(parent.pid) != []), "the sandbox has started"
            time.sleep(0.5)
            [child] = children(parent.pid)
        finally:
            parent.kill()
            parent.wait()
        assert until(lambda: not Path(f"/proc/{child}").exists() or "\nState:\tZ" in Path(f"/proc/{child}/status").read_text())

    def test_nothing_is_left_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        before = len(os.listdir("/proc/self/fd"))
        for source in ("print(1)", "while True: pass", "1 / 0"):
            run(source)
            run_tests(source, ["assert True"], LIMITS)
        assert list(tmp_path.iterdir()) == []
        assert len(os.listdir("/proc/self/fd")) == before

    def test_without_walls_there_is_an_error_and_no_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rlmods.reward.sandbox.run.BOOT", "import sys; sys.exit('no such thing')")
        with pytest.raises(RuntimeError, match="the sandbox did not start: no such thing"):
            run("print(1)")

    def test_other_systems_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.platform", "darwin")
        assert walls.missing() == "darwin has neither Landlock nor seccomp"


def passed(source: str, *tests: str, entry_point: str | None = None) -> list[bool]:
    return run_tests(source, tests, LIMITS, entry_point)[0]


class TestAssertions:
    def test_call_what_the_code_defines(self) -> None:
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

    def test_objects_and_what_is_changed_in_place(self) -> None:
        source = "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        source += "def clear(x): x.clear()"
        tests = ["s = Stack(); s.push(1); s.push(2); assert s.items == [1, 2]", "x = [1]; clear(x); assert x == []"]
        tests += ["assert Stack().items == []"]
        assert passed(source, *tests) == [True, True, True]

    def test_exceptions_arrive(self) -> None:
        source = "def f(): raise ValueError('no')"
        assert passed(source, "try: f()\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert False", "f()") == [True, False]

    def test_an_endless_one_costs_those_after_it(self) -> None:
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
    def test_does_not_pay(self, how: str) -> None:
        """The code under test and what it can reach."""
        assert passed(CHEATS[how], "assert f(1) == 2 and f(2) == 3", "assert f(3) == 4") == [False, False]

    @pytest.mark.parametrize("what", SHADOWS)
    def test_with_names_that_the_test_uses_does_not_pay(self, what: str) -> None:
        source, test = SHADOWS[what]
        assert passed(source, test, entry_point="f") == [False]

    def test_modules_that_a_test_forgets_to_import_are_there(self) -> None:
        assert passed("import math\ndef f(x): return math.sqrt(x)", "assert math.isclose(f(4), 2)") == [True]


class TestReadTests:
    def test_programs(self) -> None:
        want = (("1\n2", "3"), ("4", "5"))
        assert read_tests({"inputs": ["1\n2", "4"], "outputs": ["3", 5]}).cases == want
        assert read_tests('[{"input": "1\\n2", "output": "3"}, {"input": "4", "output": "5"}]').cases == want
        assert read_tests({"inputs": [["1", "2"], "4"], "outputs": [["3"], "5"]}).cases == want

    @pytest.mark.parametrize("output", ["[5]", "5"])
    @pytest.mark.parametrize("source", ["def f(a, b): return a + b", "class Solution:\n    def f(self, a, b): return a + b"])
    def test_functions_by_name(self, output: str, source: str) -> None:
        tests = read_tests({"fn_name": "f", "inputs": ["[2, 3]", [1, 4]], "outputs": [output, output]})
        assert passed(source, *tests.asserts, entry_point=tests.entry_point) == [True, True]
        assert passed(source.replace("+", "-"), *tests.asserts, entry_point=tests.entry_point) == [False, False]

    def test_functional_ones_have_an_argument_a_line(self) -> None:
        given = [{"input": "[1, 2]\n3", "output": "[1, 2, 3]", "testtype": "functional"}]
        tests = read_tests(given, "add")
        source = "class Solution:\n    def add(self, xs, x): return xs + [x]"
        assert passed(source, *tests.asserts, entry_point="add") == [True]
        assert read_tests({"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "f"}).asserts[0].startswith("found = candidate(*[1, 2])")
        with pytest.raises(ValueError, match="functional unit tests need the name of the function"):
            read_tests(given)

    def test_assertions(self) -> None:
        assert read_tests(["assert f(1) == 2"]).asserts == ("assert f(1) == 2",)
        whole = read_tests("def check(candidate):\n    assert candidate(1) == 2", "f")
        assert whole.asserts[0].endswith("\ncheck(candidate)\n")
        assert whole.entry_point == "f"

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
    ("said", "wanted", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True), ("1 2 \n3", "1 2\n3", True), ("1 2 3", "1 2\n3", False), ("1", "2", False), ("", "1", False),
        ("0.3333333", "0.333333333", True), ("0.33", "0.3333", False), ("1", "1.0", True), ("1.0", "1", False), ("YES", "Yes", False),
        ("nan", "1.0", False), ("inf", "1.5", False),
    ],
)  # fmt: skip
def test_same_output(said: str, wanted: str, same: bool) -> None:
    assert same_output(said, wanted) is same


def test_values_that_nobody_encodes_are_refused() -> None:
    for bad in ({"list": 3}, {"what": []}, {"a": 1, "b": 2}, [1]):
        with pytest.raises((ValueError, TypeError)):
            decode(bad)
    with pytest.raises(TypeError, match="object is no plain value"):
        encode(object())
