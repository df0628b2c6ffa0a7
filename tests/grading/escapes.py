"""Attempts of sandboxed code to do harm or to cheat, and tables of how they end.

`python -m tests.grading.escapes` prints one row for each Landlock ABI.
"""

import ctypes
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlmods.grading.sandbox import run
from rlmods.grading.sandbox.run import Limits, run_program, run_tests
from rlmods.grading.sandbox.test_runner import PASSED
from rlmods.grading.sandbox.tests import grade
from tests.grading.honest_code import STYLES

ROOT = Path(__file__).parents[2]
LIMITS: dict[str, Any] = {"timeout_s": 1.5, "memory_mb": 256, "output_bytes": 10_000}
PACKAGES = Path(sysconfig.get_path("purelib"))
PACKAGE = next(PACKAGES.glob("*/__init__.py"))

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
    "kill the group": "import os; os.kill(0, 0)",
    "kill its own group": "import os; os.killpg(os.getpid(), 0)",
    "signal to a thread of the parent": (
        "import ctypes, os; pid = os.getppid()\n"
        "assert ctypes.CDLL(None).syscall(234, pid, pid, 0) == 0"
    ),
    "signal by a pipe": "import fcntl, os; fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "limits of the parent": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "own limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "nice": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "ptrace": "import ctypes, os; assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0",
    "io_uring": "import ctypes; assert ctypes.CDLL(None).syscall(425, 8, 0) >= 0",
    "namespaces": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "root directory": "import os; os.chroot('.')",
    "memory": "x = bytearray(10**9)",
    "attributes by a new call": "import ctypes; assert ctypes.CDLL(None).syscall(463, -100, b'{home}/secret', 0, "
    "b'user.x', 0, 0) != -1",
    "an unknown system call": "import ctypes; assert ctypes.CDLL(None).syscall(999) != -1",
    "outliving its parent": "import ctypes; assert ctypes.CDLL(None).prctl(1, 0) == 0",
    "the grader": "import rlmods.reward.accuracy",
    "truncate by opening": "import os; os.open('{home}/secret', os.O_RDONLY | os.O_TRUNC)",
    "truncate a readable file": "import os; os.open('{readable}', os.O_RDONLY | os.O_TRUNC)",
    "truncate by libc": "import ctypes, os; assert ctypes.CDLL(None).open(b'{readable}', os.O_TRUNC) >= 0",
    "truncate by an old call": "import ctypes, os; assert ctypes.CDLL(None).syscall(2, b'{readable}', os.O_TRUNC, "
    "0) >= 0",
    "truncate by a new call": "import ctypes, struct, os\n"
    "assert ctypes.CDLL(None).syscall(437, -100, b'{readable}', struct.pack('QQQ', "
    "os.O_TRUNC, 0, 0), 24) >= 0",
    "open a readable file for writing": "open('{readable}', 'r+')",
    "create by an old call": "import ctypes; assert ctypes.CDLL(None).creat(b'{home}/new', 0o644) >= 0",
    "affinity of the parent": "import os; os.sched_setaffinity(os.getppid(), {{0}})",
    "own affinity": "import os; os.sched_setaffinity(0, {{0}})",
    "scheduling of the parent": "import os; os.sched_setparam(os.getppid(), os.sched_param(0))",
    "names of installed packages": "import os; print(os.listdir('{packages}'))",
    "a file of an installed package": "print(open('{package}').read() or 'empty')",
    "watch files": "import ctypes; assert ctypes.CDLL(None).syscall(294, 0) >= 0",
    "pair of sockets": "import ctypes; assert ctypes.CDLL(None).socketpair(1, 1, 0, (ctypes.c_int * 2)()) "
    "== 0",
    "a new session and a fork": "import os; os.setsid(); os.fork()",
    "own memory as a file": "open('/proc/self/mem', 'r+b')",
    "descriptors of the parent": "import os\nfor n in range(64):\n    try: "
    "print(os.open(f'/proc/{{os.getppid()}}/fd/{{n}}', os.O_RDONLY | os.O_NONBLOCK))\n"
    "    except OSError: pass\n1 / 0",
    "program of the parent": "import os; print(os.readlink(f'/proc/{{os.getppid()}}/exe'))",
    "be reachable again": "import ctypes; assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0",
    "flags of a file": "import fcntl, os\nfd = os.open('{readable}', os.O_RDONLY)\nprint(fcntl.ioctl(fd, "
    "0x80086601, bytes(8)))",
    "a lease": "import fcntl, os\nfcntl.fcntl(os.open('{readable}', os.O_RDONLY), 1024, "
    "0)\nprint('leased')",
    "a notice of changes": "import fcntl, os\nfcntl.fcntl(os.open(os.path.dirname(os.__file__) + '/json', "
    "os.O_RDONLY), fcntl.F_NOTIFY, 2)\nprint('told')",
    "a lock": "import fcntl, os\nfcntl.flock(os.open('{readable}', os.O_RDONLY), fcntl.LOCK_EX | "
    "fcntl.LOCK_NB)\nprint('locked')",
    "a record lock": "import fcntl, os\nfcntl.lockf(os.open('{readable}', os.O_RDONLY), fcntl.LOCK_SH | "
    "fcntl.LOCK_NB)\nprint('locked')",
    "a record lock that waits": "import fcntl, os\nfcntl.lockf(os.open('{readable}', os.O_RDONLY), "
    "fcntl.LOCK_SH)\nprint('locked')",
    "a lock of an open file": "import fcntl, os, struct\nlock = struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0)\n"
    "print([fcntl.fcntl(os.open('{readable}', os.O_RDONLY), command, lock) for command "
    "in (37, 38)])",
    "sync of a file": "import os\nos.fsync(os.open('{readable}', os.O_RDONLY))\nprint('synced')",
    "pages in memory": "import ctypes, os, struct\nrange, found = struct.pack('QQ', 0, 4096), bytes(40)\n"
    "assert ctypes.CDLL(None).syscall(451, os.open('{readable}', os.O_RDONLY), range, "
    "found, 0) == 0",
    "read attributes": "import ctypes; b = bytes(9); assert ctypes.CDLL(None, "
    "use_errno=True).getxattr(b'{home}/secret', b'user.x', b, 9) >= 0 or "
    "ctypes.get_errno() in (61, 95)",
    "names of attributes": "import os; print(os.listxattr('{home}/secret'))",
    "handle of a file": "import ctypes, struct\nh, m = ctypes.create_string_buffer(struct.pack('Ii', 128, "
    "0), 136), ctypes.c_int()\n"
    "assert ctypes.CDLL(None).name_to_handle_at(-100, b'{home}/secret', h, "
    "ctypes.byref(m), 0) == 0",
    "names of mounts": "import ctypes, struct\nrequest = struct.pack('IIQQ', 24, 0, 2**64 - 1, 0)\nassert "
    "ctypes.CDLL(None).syscall(458, request, (ctypes.c_uint64 * 64)(), 64, 0) > 0",
    "sync": "import os; os.sync(); import ctypes; assert ctypes.CDLL(None, "
    "use_errno=True).syncfs(0) == 0 or ctypes.get_errno() != 1",
    "large pipes": "import fcntl, os; print(fcntl.fcntl(os.pipe()[1], 1031, 2**20))",
    "many timers": "import ctypes\nlibc, timer = ctypes.CDLL(None), ctypes.c_void_p()\nassert "
    "all(libc.timer_create(1, None, ctypes.byref(timer)) == 0 for _ in range(5000))",
}
SHADOWS = {
    "set": ("def set(x): return 0\ndef f(x): return ()", "assert set(f(1)) == set((4, 5))"),
    "abs": ("def abs(x): return 0\ndef f(x): return 7", "assert abs(f(1) - 0.5) < 1e-6"),
    "math": (
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return 7",
        "assert math.isclose(f(1), 0.5)",
    ),
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
    "patches isinstance and len": "import builtins\nbuiltins.len = lambda x: 2\nbuiltins.isinstance = lambda *_: "
    "True\ndef f(x): return 7",
    "looks for the answer": "import gc\ndef f(x): return [o for o in gc.get_objects() if isinstance(o, str) and "
    "'assert f' in o]",
    "looks up the frames": "import sys\ndef f(x):\n    g = sys._getframe()\n    while g.f_back: g = g.f_back\n  "
    "  return str(g.f_globals)",
    "raises success": "def f(x): raise SystemExit(0)",
    "prints success": "print('1\\n1\\n1')\ndef f(x): print('1'); return 7",
    "writes on every descriptor": "import os\nfor n in range(3, 64):\n    try: os.write(n, b'1\\n')\n    except "
    "OSError: pass\n"
    "def f(x): return 7",
    "speaks the protocol": "import os\ndef f(x):\n    for n in range(3, 64):\n        "
    'try: os.write(n, b\'{"value": 2}\\n{"value": true}\\n\')\n'
    "        except OSError: pass\n    return 7",
    "kills the judge": "import os\ndef f(x):\n    for p in range(os.getppid(), os.getppid() + 9):\n        "
    "try: os.kill(p, 9)\n"
    "        except OSError: pass\n    return 7",
    "a deep value": "def f(x):\n    y = []\n    for _ in range(10**5): y = [y]\n    return y",
    "a long value": "def f(x): return 'x' * 10**8",
    "equals everything, hashes as anything": "class E(str):\n    __eq__ = lambda *a: True\n    __hash__ = lambda s: hash(2)\ndef "
    "f(x): return E('a')",
    "a list that contains everything": "class E(list):\n    __contains__ = __eq__ = lambda *a: True\n    __len__ = lambda "
    "s: 1\ndef f(x): return E()",
    "a proxy that claims to be equal": "class E:\n    __lt__ = __gt__ = __le__ = __ge__ = __eq__ = __contains__ = lambda "
    "*a: True\n"
    "    __ne__ = lambda *a: False\n    __float__ = lambda s: 2.0\ndef f(x): return E()",
    "a class instead of a function": "class f:\n    def __init__(self, x): pass\n    __eq__ = __contains__ = lambda *a: "
    "True",
    "raises an assertion": "def f(x): raise AssertionError",
    "skips the test": "import unittest\ndef f(x): raise unittest.SkipTest('no')",
    "exits in a function of exit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): exit(0)",
    "closes its descriptors": "import os\nos.closerange(0, 64)\ndef f(x): return 2",
    "a signal at once": "import signal, os\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ndef f(x):\n    while "
    "True: pass",
    "a thread that outlives": "import threading, os\ndef speak():\n    while True:\n        for n in range(3, "
    "64):\n"
    "            try: os.write(n, b'{\"value\": 2}\\n')\n            except OSError: pass\n"
    "threading.Thread(target=speak).start()\ndef f(x): return 7",
    "patches the server": "import sys\nfor m in list(sys.modules.values()):\n    for k in ('encode', 'decode', "
    "'describe', 'find'):\n"
    "        if hasattr(m, k):\n            try: setattr(m, k, lambda *a, **k: True)\n   "
    "         except Exception: pass\ndef f(x): return 7",
    "writes the results of the tests": """import os
done = False
def f(x):
    global done
    first, done = not done, True
    own = set()
    for n in range(64):
        try: own.add(os.fstat(n).st_ino)
        except OSError: pass
    for p in range(os.getpid() - 3, os.getpid() + 9):
        for n in range(3, 20):
            try:
                end = os.open(f"/proc/{p}/fd/{n}", os.O_WRONLY | os.O_NONBLOCK)
                if os.fstat(end).st_ino not in own and first: os.write(end, b"1\\n" * 50)
            except OSError: pass
""",
    "looks in the heap": "import gc\ndef f(x):\n    seen = [o for o in gc.get_objects() if isinstance(o, "
    "(str, list, dict)) and 'f(1)' + ' ==' in str(o)]\n"
    "    return x + 1 if seen else 7",
    "reads the memory of the tests": "import os\ndef f(x):\n    for p in range(os.getpid() - 5, os.getpid() + 5):\n"
    "        try: return x + 1 if open(f'/proc/{p}/mem', 'rb').read(1) else 7\n        "
    "except OSError: pass\n    return 7",
    "reads the job of the tests": "import os\ndef f(x):\n    for n in range(64):\n        try: text = "
    "os.read(os.open(f'/proc/self/fd/{n}', os.O_RDONLY | os.O_NONBLOCK), 9999)\n"
    "        except OSError: continue\n        if b'assert' in text: return x + 1\n    return 7",
    "many answers": "def f(x):\n    for y in range(100): print(y)\n    return list(range(100))",
    "answers with the question": "def f(x): return x",
    "a generator of answers": "def f(x):\n    while True:\n        for y in range(10): yield y",
}
ANYTHING = """class E:
    def __sub__(self, other): return 0.0
    __rsub__ = __mod__ = __xor__ = __add__ = __radd__ = __rmod__ = __rxor__ = __pow__ = __sub__
    def __getattr__(self, name): return lambda *_: set() if "difference" in name else True
def f(x): return E()
"""
"""An object whose arithmetic and methods give what tests hope for."""
SAYS_STOP = """import sys
wire = sys.modules["sandbox.wire"]
send = wire.send
wire.send = lambda stream, message: send(stream, {"stop": True} if "value" in message and "object" not in str(message) else message)
def f(x): return 7
"""
ITSELF = (
    "class Solution:\n    def g(self, x): return self\n    __contains__ = __lt__ = "
    "__gt__ = __sub__ = lambda *_: True"
)
SELF = """class V:
    def __init__(self, *_): pass
    value = property(lambda self: self)
    __call__ = __getitem__ = __next__ = __iter__ = lambda self, *_: self
    __sub__ = __rsub__ = lambda *_: 0.0
    __contains__ = __lt__ = __gt__ = lambda *_: True
"""
"""Objects that return themselves, and whose arithmetic and comparisons give what tests hope for."""
FIELDS = (
    "from collections import namedtuple\nE = namedtuple('E', 'startswith issubset "
    "equals')\ndef f(x): return E(*[lambda *_: True] * 3)"
)
CONTEXT = """class Context:
    def __enter__(self): return self
    def __exit__(self, *_): return {returned}
    def get(self): raise ValueError
class Maybe:
    asked = 0
    def __bool__(self):
        Maybe.asked += 1
        return Maybe.asked > 1
"""
ASSERTS = "def f(x): return 7\ndef assert_equal(*_): pass\nassertEqual = assert_equal"
BELIEVED = {
    "returns itself, a property": (SELF, "assert abs(V(1).value - 5) < 1e-6"),
    "returns itself, an item": (SELF, "assert 5 in V(1)[0] and abs(V(1)[0] - 5) < 1e-6"),
    "returns itself, an iterator": (SELF, "assert 5 - next(V(1)) == 0"),
    "returns itself, from a call": (SELF, "v = V(1)\nassert v(3) > 5"),
    "returns an object of the tests": (
        SELF + "def f(v): return v",
        "v = V(1)\nassert abs(f(v) - 5) < 1e-6",
    ),
    "methods of texts as fields": (FIELDS, "assert f(1).startswith('abc')"),
    "methods of sets as fields": (
        FIELDS.replace("return", "return 1,"),
        "assert f(1)[1].issubset({1})",
    ),
    "methods of data frames as fields": (FIELDS, "assert f(1).equals(5)"),
    "methods of texts as types": (
        "class E:\n    def __getattr__(self, name): return str\ndef f(x): return E()",
        "assert f(1).startswith('abc')",
    ),
    "methods of texts as functions of the tests": (
        "class E: pass\ndef f(g):\n    e = E()\n    e.startswith = g\n    return e",
        "assert f(lambda _: True).startswith('abc')",
    ),
    "methods of texts of a class": (
        "class E:\n    startswith = lambda *_: True\ndef f(x): return E",
        "assert f(1).startswith('abc')",
    ),
    "leaves a with block": (
        CONTEXT.format(returned=True),
        "with Context() as c:\n    assert c.get() == 5",
    ),
    "leaves a with block before its assertion": (
        CONTEXT.format(returned=1),
        "with Context() as c:\n    x = c.get()\n    assert x == 5",
    ),
    "leaves a function in a with block": (
        CONTEXT.format(returned=True),
        "def check(c):\n    assert c.get() == 5\nwith Context() as c:\n    check(c)",
    ),
    "decides later that it leaves a with block": (
        CONTEXT.format(returned="Maybe()"),
        "with Context() as c:\n    assert c.get() == 5",
    ),
    "another number each time": (
        "class E:\n    n = 0\n    def __float__(self):\n        E.n += 1\n        return "
        "float(E.n)\ndef f(x): return E()",
        "x = f(1)\nassert float(x) != float(x)",
    ),
    "another index each time": (
        "class E:\n    n = 0\n    def __index__(self):\n        E.n += 1\n        return "
        "E.n\ndef f(x): return E()",
        "import operator\nx = f(1)\nassert operator.index(x) == 1 and operator.index(x) == 2",
    ),
    "changes the lists of the tests": (
        "import sys\nwire = sys.modules['sandbox.wire']\nsend = wire.send\n"
        "wire.send = lambda stream, message: send(stream, message | {'args': {'tuple': [0, "
        "{'list': []}]}})\n"
        "class V:\n    __contains__ = lambda *_: False",
        "x = [1, 2]\nassert x not in V()\nassert x == []",
    ),
    "arithmetic with an object": (ANYTHING, "assert abs(f(1) - 2.5) < 1e-6"),
    "arithmetic with an object on the right": (ANYTHING, "assert abs(2.5 - f(1)) < 1e-6"),
    "difference of sets": (ANYTHING, "assert not f(1) ^ {1, 2}"),
    "almost equal": (
        ANYTHING,
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        "
        "self.assertAlmostEqual(f(1), 2.5)",
    ),
    "a list of objects": (
        ANYTHING.replace("E()", "[E()]"),
        "assert all(abs(a - b) < 1e-6 for a, b in zip(f(1), [2.5]))",
    ),
    "methods of texts": (ANYTHING, "assert f(1).startswith('abc') and f(1).isdigit()"),
    "methods of sets": (ANYTHING, "assert f(1).issubset({1}) and not f(1).difference({1})"),
    "returns itself, in": (ITSELF, "assert 5 in Solution().g(1)"),
    "returns itself, below": (ITSELF, "assert 1 < Solution().g(1) < 3"),
    "returns itself, in a variable": (
        ITSELF.replace("Solution", "Other"),
        "s = Other()\nassert 5 in s.g(1)",
    ),
    "ends a loop": (SAYS_STOP, "assert all(map(lambda x: f(x) == x + 1, [1, 2]))"),
    "ends a loop over results": (SAYS_STOP, "for got in map(f, [1, 2]):\n    assert got == 2"),
    "hides a failure in a with block": (
        "class Timer:\n    x = 0\n    def __enter__(self): return self\n    def "
        "__exit__(self, *_): return True",
        "with Timer() as t:\n    assert t.x == 5",
    ),
    "hides a failure in a decorator": (
        "def once(g):\n    def inner(*a):\n        try: g(*a)\n        except Exception: "
        "pass\n    return inner",
        "@once\ndef run(x):\n    assert x == 99\nrun(1)",
    ),
    "a package that is not there": (
        "def f(x): return 7\ndef allclose(*_): return True",
        "import numpy as np\nassert np.allclose(f(1), 2)",
    ),
    "a name of a package that is not there": (
        "def f(x): return 7\ndef assert_allclose(*_): return True",
        "from numpy.testing import assert_allclose\nassert_allclose(f(1), 2)",
    ),
    "asserts for the tests": (
        ASSERTS,
        "from checks.tools import assert_equal as same\nsame(f(1), 2)",
    ),
    "asserts for the tests, in a module": (
        ASSERTS,
        "import checks.tools\nchecks.tools.assert_equal(f(1), 2)",
    ),
    "asserts for the tests, in a renamed module": (
        ASSERTS,
        "import checks as c\nc.assertEqual(f(1), 2)",
    ),
    "a package that nobody imports": (
        "class np:\n    allclose = lambda *_: True\ndef f(x): return 7",
        "assert np.allclose(f(1), 2)",
    ),
}
"""Code, and a test of something that it does not do."""
STYLES_OF_TESTS = {
    "equality": "assert f(1) == 2 and f(2) == 3",
    "reflected": "assert 2 == f(1) and 3 == f(2)",
    "membership": "assert f(1) in (2, 5) and f(2) in {3}",
    "lists": "assert [f(1), f(2)] == [2, 3]",
    "not equal": "assert not f(1) != 2 and not f(2) != 3",
    "isclose": "import math\nassert math.isclose(f(1), 2) and math.isclose(f(2), 3)",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        "
    "self.assertEqual(f(1), 2)\n        self.assertEqual(f(2), 3)",
    "function": "def test_f():\n    assert f(1) == 2\n    assert f(2) == 3",
    "guard": "def main():\n    assert f(1) == 2\n    assert f(2) == 3\nif __name__ == "
    "'__main__':\n    main()",
    "check": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == "
    "3\ncheck(f)",
}
"""Ways to test that f(1) is 2 and f(2) is 3."""


@contextmanager
def home() -> Iterator[Path]:
    """Folder with a file `secret`, and a file `readable` that confined code may read."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name in ("secret", "readable"):
            Path(folder, name).write_text(name)
        paths = (*run._readable(), str(Path(folder, "readable")))
        patch.setattr(run, "_readable", lambda: paths)
        patch.setattr(run, "_SERVERS", {})
        yield Path(folder)


def escape(what: str, home: Path, limits: Mapping[str, Any]) -> str | None:
    """Try one of `HARM` on a `home`, and return what it achieved, or None."""
    secret, readable = home / "secret", home / "readable"
    before = [_state(path) for path in (secret, readable)]
    source = HARM[what].format(home=home, readable=readable, packages=PACKAGES, package=PACKAGE)
    result = run_program(source, "", Limits(**{**LIMITS, **limits}))
    if result.status != "error" or result.stdout:
        return f"{result.status}: {result.stdout!r}"
    left = [
        path
        for path in (Path("/tmp/rlmods_was_here"), Path("/dev/shm/rlmods_was_here"))
        if path.exists()
    ]
    if sorted(path.name for path in home.iterdir()) != ["readable", "secret"] or left:
        return f"made or removed files {left}"
    return None if [_state(path) for path in (secret, readable)] == before else "changed a file"


def _state(path: Path) -> tuple[int, ...]:
    """Return what an attempt could have changed of a file."""
    status = path.stat()
    return status.st_mode, status.st_uid, status.st_mtime_ns, status.st_size


def row(abi: int) -> dict[str, Any]:
    """Try everything with at most this version of Landlock, as on an older kernel. Return what was
    tried, and what got through or was wrongly refused."""
    older = (
        "from sandbox import confinement; version = confinement._landlock_abi(); "
        f"confinement._landlock_abi = lambda: min({abi}, version); sys.path.pop()"
    )
    run.BOOT = run.BOOT.replace("sys.path.pop()", older)
    run_limits = Limits(**LIMITS)
    with home() as folder:
        escaped = [what for what in HARM if escape(what, folder, {}) is not None]
    paid = []
    for how, source in CHEATS.items():
        passed = run_tests(source, list(STYLES_OF_TESTS.values()), run_limits, "f")[0]
        paid += [
            f"{how} ({style})"
            for style, result in zip(STYLES_OF_TESTS, passed, strict=True)
            if result == PASSED
        ]
    paid += [
        what
        for what, (source, test) in (SHADOWS | BELIEVED).items()
        if PASSED in run_tests(source, [test], run_limits, "f")[0]
    ]
    refused = []
    for name, style in STYLES.items():
        limits = Limits(timeout_s=5.0)
        result = grade(style.source, style.tests, style.entry_point, limits, False)
        refused += [name] if result["passed"] != result["total"] else []
    return {
        "capabilities": _capabilities(),
        "landlock_abi": abi,
        "escapes": f"{len(escaped)} of {len(HARM)}",
        "cheats paid": f"{len(paid)} of {len(CHEATS) * len(STYLES_OF_TESTS) + len(SHADOWS | BELIEVED)}",
        "honest right": f"{len(STYLES) - len(refused)} of {len(STYLES)}",
        "which": [*escaped, *paid, *refused],
    }


def rows(
    abis: Sequence[int] = (1, 2, 3, 4), capabilities: Sequence[bool] = (True, False)
) -> list[dict[str, Any]]:
    """Return `row` for each Landlock ABI, with the capabilities of this process (of root, all) and
    without any."""
    found = []
    for keep in capabilities:
        for abi in abis:
            command = [
                sys.executable,
                "-m",
                "tests.grading.escapes",
                str(abi),
                "keep" if keep else "drop",
            ]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
            found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def _drop_capabilities() -> None:
    """Give up all capabilities, also those that root gets back with a new program."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())


def _capabilities() -> bool:
    text = Path("/proc/self/status").read_text()
    return int(text.split("CapEff:")[1].split()[0], 16) != 0


if __name__ == "__main__":
    if sys.argv[2:] == ["drop"]:
        _drop_capabilities()
    for found in [row(int(sys.argv[1]))] if len(sys.argv) > 1 else rows():
        print(json.dumps(found), flush=True)
