"""Right code in the styles that models and data sets use, each with unit tests that it must
pass."""

from typing import Any, NamedTuple


class Style(NamedTuple):
    """Code and its tests: a list of assertions, or one text."""

    source: str
    tests: Any
    entry_point: str | None = None


STYLES = {
    "plain function": Style("def add(a, b):\n    return a + b", ["assert add(1, 2) == 3"]),
    "named like a builtin": Style(
        "def sum(xs):\n    t = 0\n    for x in xs: t += x * x\n    return t",
        ["assert sum([1, 2]) == 5", "assert sum([]) == 0"],
    ),
    "named like a builtin, by entry point": Style(
        "def abs(x): return x if x > 0 else -x",
        "def check(candidate):\n    assert candidate(-2) == 2",
        "abs",
    ),
    "named like a module": Style("def string(n): return 'x' * n", ["assert string(3) == 'xxx'"]),
    "named like a function of a module": Style(
        "def gcd(a, b):\n    while b: a, b = b, a % b\n    return a", ["assert gcd(12, 18) == 6"]
    ),
    "helpers of modules in the tests": Style(
        "import math\ndef root(x): return math.sqrt(x)",
        ["assert math.isclose(root(2), 1.41421356, rel_tol=1e-6)"],
    ),
    "imported helper in the tests": Style(
        "def root(x): return x ** 0.5", ["from math import isclose\nassert isclose(root(4), 2)"]
    ),
    "signals to itself": Style(
        "import os, signal\ndef f(x):\n    found = []\n"
        "    signal.signal(signal.SIGUSR1, lambda number, _: found.append(number))\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n    signal.raise_signal(signal.SIGUSR1)\n"
        "    os.kill(os.getpid(), 0)\n    return len(found)",
        ["assert f(1) == 2"],
    ),
    "exit at the end": Style(
        "def f(x): return x + 1\nif f(1) == 2:\n    exit()", ["assert f(1) == 2"]
    ),
    "main guard": Style(
        "def f(x): return x + 1\nif __name__ == '__main__':\n    print(f(int(input())))",
        ["assert f(1) == 2"],
    ),
    "unimported List": Style(
        "def f(xs: List[int]) -> Optional[int]: return max(xs) if xs else None",
        ["assert f([1, 3]) == 3", "assert f([]) is None"],
    ),
    "unimported modules": Style(
        "def f(xs): return dict(Counter(xs)), math.floor(2.5), heapq.nlargest(1, xs)",
        ["assert f([1, 1]) == ({1: 2}, 2, [1])"],
    ),
    "class Solution": Style(
        "class Solution:\n    def twoSum(self, nums: List[int], t: int): return [0, 1]",
        "def check(candidate):\n    assert candidate(nums=[1, 2], t=3) == [0, 1]",
        "twoSum",
    ),
    "Solution().method": Style(
        "class Solution:\n    def f(self, x): return x * 2",
        "def check(candidate):\n    assert candidate(2) == 4",
        "Solution().f",
    ),
    "asyncio in the code": Style(
        "import asyncio\nasync def g(x):\n    await asyncio.sleep(0)\n    return x + 1\ndef "
        "f(x): return asyncio.run(g(x))",
        ["assert f(1) == 2"],
    ),
    "coroutine": Style(
        "async def f(x): return x + 1", ["import asyncio\nassert asyncio.run(f(1)) == 2"]
    ),
    "gathered coroutines": Style(
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x",
        [
            "import asyncio\nasync def run():\n    return await asyncio.gather(f(1), "
            "f(2))\nassert asyncio.run(run()) == [1, 2]"
        ],
    ),
    "Fraction": Style(
        "from fractions import Fraction\ndef f(a, b): return Fraction(a, b)",
        [
            "from fractions import Fraction\nassert f(2, 4) == Fraction(1, 2)",
            "assert f(1, 2) + 1 == 1.5",
        ],
    ),
    "Decimal": Style(
        "from decimal import Decimal\ndef f(x): return Decimal(x) * 2",
        ["from decimal import Decimal\nassert f('1.10') == Decimal('2.20')"],
    ),
    "bytearray": Style(
        "def f(x): return bytearray(reversed(x))",
        ["assert f(b'ab') == bytearray(b'ba') and isinstance(f(b'a'), bytearray)"],
    ),
    "complex": Style("def f(x): return x * 1j", ["assert f(2) == 2j and f(1).imag == 1"]),
    "range": Style(
        "def f(n): return range(n)", ["assert f(3) == range(3) and list(f(2)) == [0, 1]"]
    ),
    "datetime": Style(
        "from datetime import timedelta\ndef f(d, n): return d + timedelta(days=n)",
        [
            "from datetime import date, datetime\nassert f(date(2024, 2, 28), 2) == date(2024, "
            "3, 1)\nassert f(datetime(2024, 1, 1, 5), 1).hour == 5"
        ],
    ),
    "timedelta": Style(
        "def f(a, b): return b - a",
        [
            "from datetime import date, timedelta\nassert f(date(2024, 1, 1), date(2024, 1, 3)) "
            "== timedelta(days=2)"
        ],
    ),
    "returned function": Style("def f(n): return lambda x: x + n", ["assert f(1)(2) == 3"]),
    "generator": Style(
        "def f(n):\n    for i in range(n): yield i",
        [
            "assert list(f(3)) == [0, 1, 2]",
            "g = f(2)\nassert next(g) == 0 and next(g) == 1 and next(g, None) is None",
        ],
    ),
    "endless generator": Style(
        "def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
        ["from itertools import islice\nassert list(islice(f(), 3)) == [0, 1, 2]"],
    ),
    "deque, Counter, defaultdict": Style(
        "from collections import *\ndef f(x): return deque(x), Counter(x), defaultdict(list, "
        "{1: [x]})",
        [
            "from collections import Counter, deque\na, b, c = f('aab')\nassert a == "
            "deque('aab') and b == Counter('aab') and c == {1: ['aab']} and b.most_common(1) == "
            "[('a', 2)]"
        ],
    ),
    "OrderedDict": Style(
        "from collections import OrderedDict\ndef f(): return OrderedDict([(1, 2), (3, 4)])",
        ["assert list(f()) == [1, 3] and f() == {3: 4, 1: 2}"],
    ),
    "namedtuple": Style(
        "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef f(a): "
        "return Point(a, a + 1)",
        ["assert f(1) == Point(1, 2) == (1, 2) and f(1).y == 2"],
    ),
    "enum": Style(
        "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\ndef f(x): "
        "return Color(x)",
        [
            "assert f(1) == Color.RED and f(1) is Color.RED and f(2) != Color.RED and f(2).name "
            "== 'BLUE'"
        ],
    ),
    "custom exception": Style(
        "class TooSmall(ValueError):\n    def __init__(self, x):\n        "
        "super().__init__(f'{x} is too small')\n        self.x = x\ndef f(x):\n    if x < 0: "
        "raise TooSmall(x)\n    return x",
        [
            "try:\n    f(-1)\n    assert False\nexcept TooSmall as e:\n    assert str(e) == '-1 "
            "is too small' and e.x == -1 and isinstance(e, ValueError)",
            "assert f(1) == 1",
        ],
    ),
    "builtin exceptions": Style(
        "def f(d, k): return d[k]",
        [
            "try: f({}, 1)\nexcept KeyError as e: assert e.args == (1,)\nelse: assert False",
            "assert f([1], 0) == 1",
        ],
    ),
    "exception of a module": Style(
        "import json\ndef f(x): return json.loads(x)",
        [
            "import json\ntry: f('{')\nexcept json.JSONDecodeError as e: assert e.pos == "
            "1\nelse: assert False",
            "assert f('[1]') == [1]",
        ],
    ),
    "class with methods": Style(
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): "
        "self.items.append(x)\n    def pop(self): return self.items.pop()\n    def "
        "__len__(self): return len(self.items)",
        [
            "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and len(s) == 1 and s.items "
            "== [1] and bool(s)"
        ],
    ),
    "container class": Style(
        "class Grid:\n    def __init__(self): self.d = {}\n    def __getitem__(self, k): "
        "return self.d[k]\n    def __setitem__(self, k, v): self.d[k] = v\n    def "
        "__contains__(self, k): return k in self.d\n    def __iter__(self): return "
        "iter(self.d)\n    def __delitem__(self, k): del self.d[k]",
        [
            "g = Grid()\ng[1, 2] = 'a'\nassert g[1, 2] == 'a' and (1, 2) in g and (3, 3) not in "
            "g and list(g) == [(1, 2)]\ndel g[1, 2]\nassert list(g) == []"
        ],
    ),
    "callable class": Style(
        "class Adder:\n    def __init__(self, n): self.n = n\n    def __call__(self, x): "
        "return x + self.n",
        ["assert Adder(2)(3) == 5"],
    ),
    "inheritance": Style(
        "class Animal:\n    def speak(self): raise NotImplementedError\nclass Dog(Animal):\n "
        "   def speak(self): return 'wuff'",
        [
            "d = Dog()\nassert d.speak() == 'wuff' and isinstance(d, Animal) and issubclass(Dog, "
            "Animal)\ntry: Animal().speak()\nexcept NotImplementedError: pass\nelse: assert False"
        ],
    ),
    "properties and class methods": Style(
        "class Temp:\n    count = 0\n    def __init__(self, c):\n        self._c = c\n       "
        " Temp.count += 1\n    @property\n    def f(self): return self._c * 9 / 5 + 32\n    "
        "@f.setter\n    def f(self, v): self._c = (v - 32) * 5 / 9\n    @classmethod\n    "
        "def zero(cls): return cls(0)\n    @staticmethod\n    def unit(): return 'C'",
        [
            "t = Temp(100)\nassert t.f == 212\nt.f = 32\nassert t._c == 0 and Temp.zero().f == "
            "32 and Temp.unit() == 'C' and Temp.count == 2"
        ],
    ),
    "changes its argument": Style(
        "def f(xs, d):\n    xs.sort()\n    d['n'] = len(xs)",
        [
            "x, d = [3, 1], {}\nassert f(x, d) is None and x == [1, 3] and d == {'n': 2}",
            "x = [[2, 1]]\nf(xs=x, d={})\nassert x == [[2, 1]]",
        ],
    ),
    "nested change of its argument": Style(
        "def f(grid): grid[0][0] = 9", ["g = [[1, 2], [3, 4]]\nf(g)\nassert g == [[9, 2], [3, 4]]"]
    ),
    "constants": Style(
        "LIMIT = 3\nNAMES = ['a']\ndef f(): return LIMIT",
        ["assert LIMIT == 3 and NAMES == ['a'] and f() == LIMIT"],
    ),
    "global state": Style(
        "count = 0\ndef f():\n    global count\n    count += 1\n    return count",
        ["assert f() == 1\nassert f() == 2"],
    ),
    "recursion with cache": Style(
        "from functools import lru_cache\n@lru_cache(None)\ndef fib(n): return n if n < 2 "
        "else fib(n - 1) + fib(n - 2)",
        ["assert fib(300) % 1000 == 600 and fib.cache_info().hits > 0"],
    ),
    "large and special numbers": Style(
        "def f(x): return x",
        [
            "import math\nassert f(10 ** 5000) == 10 ** 5000 and math.isnan(f(float('nan'))) and "
            "f(-0.0) == 0 and f(float('inf')) > 1"
        ],
    ),
    "views and slices": Style(
        "def f(d): return d.keys()\ndef g(s): return 'abcdef'[s]",
        [
            "assert set(f({1: 2})) == {1} and list(f({1: 2})) == [1]",
            "assert g(slice(1, 3)) == 'bc'",
        ],
    ),
    "types as results": Style("def f(x): return type(x)", ["assert f(1) is int and f('a') == str"]),
    "one object": Style(
        "class Config:\n    one = None\n    def __new__(cls):\n        cls.one = cls.one or "
        "super().__new__(cls)\n        return cls.one",
        [
            "assert Config() is Config() and Config() is not None",
            "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        "
            "self.assertIs(Config(), Config())\n        self.assertIsNot(Config(), 5)",
        ],
    ),
    "identical nodes": Style(
        "class Node:\n    def __init__(self, v, n=None): self.v, self.next = v, n\ndef "
        "last(n):\n    while n.next: n = n.next\n    return n",
        [
            "a = Node(1)\nb = Node(2, a)\nassert b.next is a and b.next is not b and last(b) is "
            "a and b.next == a and last(b) in (a,)"
        ],
    ),
    "the function as an argument": Style(
        "def f(x): return x + 1",
        [
            "def run(f, x): return f(x)\nassert run(f, 1) == 2",
            "assert f(1) == 2 and [f for f in range(2)] == [0, 1]",
            "check = lambda f: f(2) == 3\nassert check(f)",
        ],
    ),
    "a check with the name of the function": Style(
        "def solve(x): return x * 2", "def check(solve):\n    assert solve(2) == 4\ncheck(solve)"
    ),
    "a local name of a module": Style(
        "def g():\n    deque = 5\n    return deque\ndef f(x): return deque(x)",
        ["from collections import deque\nassert f([1]) == deque([1]) and g() == 5"],
    ),
    "iterator class": Style(
        "class Count:\n    def __init__(self): self.i = 0\n    def __iter__(self): return "
        "self\n    def __next__(self):\n        self.i += 1\n        if self.i > 2: raise "
        "StopIteration\n        return self.i",
        [
            "c = Count()\nassert next(c) == 1 and list(c) == [2]\ntry: next(c)\nexcept "
            "StopIteration: pass\nelse: assert False"
        ],
    ),
    "linked list": Style(
        "class Node:\n    def __init__(self, v, n=None): self.v, self.next = v, n\ndef "
        "rev(h):\n    p = None\n    while h: h.next, p, h = p, h, h.next\n    return p",
        ["h = rev(Node(1, Node(2)))\nassert h.v == 2 and h.next.v == 1 and h.next.next is None"],
    ),
    "threads": Style(
        "import threading\nclass Count:\n    def __init__(self): self.n, self.lock = 0, "
        "threading.Lock()\n    def add(self):\n        with self.lock: self.n += 1",
        [
            "import threading\nc = Count()\nts = [threading.Thread(target=c.add) for _ in "
            "range(4)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nassert c.n == 4"
        ],
    ),
    "prints": Style("def f(x):\n    print('debug', x)\n    return x", ["assert f(1) == 1"]),
    "test functions": Style(
        "def f(x): return x + 1",
        "def test_one():\n    assert f(1) == 2\ndef test_two():\n    assert f(2) == 3",
    ),
    "unittest": Style(
        "def f(x):\n    if x < 0: raise ValueError('negative')\n    return x + 1",
        "import unittest\nclass TestF(unittest.TestCase):\n    def test_value(self):\n       "
        " self.assertEqual(f(1), 2)\n    def test_error(self):\n        with "
        "self.assertRaises(ValueError): f(-1)\nif __name__ == '__main__':\n    "
        "unittest.main()",
    ),
    "tests that import the code": Style(
        "def f(x): return x + 1\nK = 2",
        "from solution import f\nimport my_module as m\ndef test():\n    assert f(1) == 2 "
        "and m.f(2) == 3 and m.K == 2",
    ),
    "numbers of input lines": Style(
        "n = int(input())\nprint(sum(map(int, input().split())) * n)\nexit()",
        {"inputs": ["2\n1 2\n"], "outputs": ["6"]},
    ),
    "reads stdin as a file": Style(
        "import sys\ndata = sys.stdin.buffer.read().split()\nprint(*sorted(map(int, data)))",
        {"inputs": ["3 1 2"], "outputs": ["1 2 3"]},
    ),
    "opens stdin by number": Style(
        "print(open(0).read().upper(), end='')", {"inputs": ["ab\n"], "outputs": ["AB"]}
    ),
    "size of the input": Style(
        "import io, os\ninput = io.BytesIO(os.read(0, "
        "os.fstat(0).st_size)).readline\nprint(int(input()) + int(input()))",
        {"inputs": ["1\n2\n"], "outputs": ["3"]},
    ),
    "opens a large stdin by name": Style(
        "print(len(open('/dev/stdin').read()))", {"inputs": ["x" * 70_000], "outputs": ["70000"]}
    ),
    "maps stdin": Style(
        "import mmap\nprint(len(mmap.mmap(0, 0, prot=mmap.PROT_READ)))",
        {"inputs": ["x" * 7], "outputs": ["7"]},
    ),
    "replaced stdout": Style(
        "import io, sys\nsys.stdout = buffer = "
        "io.StringIO()\nprint(5)\nsys.__stdout__.write(buffer.getvalue())",
        {"inputs": [""], "outputs": ["5"]},
    ),
    "closed stdout": Style(
        "import sys\nsys.__stderr__.close()\nprint(5)\nsys.stdout.flush()\nsys.stdout.close()",
        {"inputs": [""], "outputs": ["5"]},
    ),
    "a file of its own for stdout": Style(
        "f = open(1, 'w')\nf.write('5')", {"inputs": [""], "outputs": ["5"]}
    ),
    "a buffer of its own for stdout": Style(
        "import io\nprint(5)\nout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "
        "'w')))\nout.write('6')",
        {"inputs": [""], "outputs": ["5\n6"]},
    ),
    "prints at the end": Style(
        "class A:\n    def __del__(self): print(5)\na = A()", {"inputs": [""], "outputs": ["5"]}
    ),
    "its own file": Style(
        "import os\nprint(os.path.basename(__file__))", {"inputs": [""], "outputs": ["solution.py"]}
    ),
    "opens stdin by name": Style(
        "print(open('/dev/stdin').read().upper(), end='')", {"inputs": ["ab\n"], "outputs": ["AB"]}
    ),
    "main function with threads and recursion": Style(
        "import sys, threading\nsys.setrecursionlimit(10**6)\ndef main():\n    f = lambda n: "
        "0 if n == 0 else 1 + f(n - 1)\n    print(f(5000))\nt = "
        "threading.Thread(target=main)\nt.start()\nt.join()",
        {"inputs": [""], "outputs": ["5000"]},
    ),
    "null device": Style(
        "import contextlib, os\nwith open(os.devnull, 'w') as null, "
        "contextlib.redirect_stdout(null):\n    print('no')\nprint('yes')",
        {"inputs": [""], "outputs": ["yes"]},
    ),
}
"""The null device cannot be written with a Landlock ABI below 3 (Linux before 6.2)."""
