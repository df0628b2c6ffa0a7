"""Code reward: responses graded by unit tests."""

import time
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.grading.sandbox.confinement import missing_support
from rlmods.reward import Code, WeightedSum
from rlmods.reward.code import extract_code
from rlmods.types import Response, Scores
from tests.reward.samples import response

pytestmark = pytest.mark.skipif(
    missing_support() is not None, reason=f"cannot confine code here: {missing_support()}"
)

ADD = [
    "assert add(1, 2) == 3",
    "assert add(2, 2) == 4",
    "assert add(0, 0) == 0",
    "assert add(-1, 1) == 0",
]
RIGHT, WRONG, HALF = (
    "def add(a, b): return a + b",
    "def add(a, b): return 9",
    "def add(a, b): return a + b if a * b else 7",
)


def with_code(code: str, tests: Any = ADD, **meta: Any) -> Response:
    return response(
        f"<think>```python\n{RIGHT}\n```</think>Here:\n```python\n{code}\n```\nDone.",
        tests=tests,
        **meta,
    )


def scores(*rows: Response, **settings: Any) -> Scores:
    return Code(**({"timeout_s": 2.0} | settings))(rows)


class TestCode:
    def test_all_or_nothing(self) -> None:
        result = scores(with_code(RIGHT), with_code(WRONG), with_code(HALF))
        assert result.values == [1.0, 0.0, 0.0]
        assert result.correct == [True, False, False]
        assert result.columns["passed"] == ["4/4", "0/4", "3/4"]

    def test_partial_credit(self) -> None:
        result = scores(with_code(RIGHT), with_code(WRONG), with_code(HALF), partial=True)
        assert result.values == [1.0, 0.0, 0.75]
        assert result.correct == [True, False, False]

    def test_programs(self) -> None:
        tests = {"inputs": ["1", "2"], "outputs": ["2", "4"]}
        result = scores(
            with_code("print(2 * int(input()))", tests), with_code("print(2)", tests), partial=True
        )
        assert result.values == [1.0, 0.5]

    @pytest.mark.slow
    def test_failures_score_zero_and_are_counted(self) -> None:
        no_code, no_tests = response("add is a + b", tests=ADD), response("no tests")
        result = scores(
            with_code("while True: pass"), no_code, no_tests, with_code("def"), with_code(RIGHT)
        )
        assert result.values == [0.0, 0.0, None, 0.0, 1.0]
        assert result.counts == {"timeouts": 1, "errors": 0, "not_started": 0, "without_code": 1}

    def test_tests_of_unknown_form_raise(self) -> None:
        with pytest.raises(ValueError, match="unit tests are"):
            scores(with_code(RIGHT, {"in": 1}))

    @pytest.mark.parametrize(
        "tests",
        [
            "def helper():\n    assert add(1, 2) == 3",
            "def check(candidate):\n    pass",
            "try:\n    assert add(1, 2) == 3\nexcept Exception:\n    pass",
            ["assert add(1, 2) == 3", "print('no test')"],
            "if __name__ == 'tests':\n    assert add(1, 2) == 3",
        ],
    )
    def test_tests_that_test_nothing_are_refused(self, tests: Any) -> None:
        with pytest.raises(ValueError, match="the unit tests pass without working code"):
            Code().check_prompt(with_code(RIGHT, tests, entry_point="add").prompt)

    @pytest.mark.parametrize(
        "tests",
        [
            ADD,
            "def test_add():\n    assert add(1, 2) == 3",
            "for n in range(3):\n    assert add(n, n) == 2 * n",
            {"inputs": ["1"], "outputs": ["2"]},
        ],
    )
    def test_tests_that_test_something_are_not(self, tests: Any) -> None:
        Code().check_prompt(with_code(RIGHT, tests).prompt)

    def test_walls_that_fail_at_the_start_end_the_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are not zeros: here the worker cannot start its server."""
        monkeypatch.setattr("rlmods.reward.code.TARGET", "tests.grading.misbehaving:unconfined")
        with pytest.raises(
            UserError,
            match=r"reward code: .* cannot start: RuntimeError: the sandbox did not start",
        ):
            WeightedSum({"code": {"reward": Code(), "weight": 1.0}})([with_code(RIGHT)])

    @pytest.mark.slow
    def test_batch_deadline(self) -> None:
        start = time.monotonic()
        result = scores(*[with_code("while True: pass")] * 8, timeout_s=30.0, batch_timeout_s=2.0)
        assert time.monotonic() - start < 20
        assert (result.counts["timeouts"], result.counts["not_started"]) == (2, 6)
        assert result.values == [0.0] * 2 + [None] * 6
        assert result.correct == [False] * 2 + [None] * 6

    def test_thoughts_that_do_not_end_hold_no_program(self) -> None:
        unclosed = response(f"<think>```python\n{RIGHT}\n```", tests=ADD)
        result = scores(
            unclosed,
            response(f"<think>x</think><think>```python\n{RIGHT}\n```", tests=ADD),
            with_code(RIGHT),
        )
        assert result.values == [0.0, 0.0, 1.0]
        assert result.counts["without_code"] == 2

    def test_setup_of_the_prompt(self) -> None:
        """Helpers that the tests use are not taken from the code, which could define them in its
        favour."""
        tests = ["assert check_sum(add(1, 2)) == 6"]
        cheat = "def add(a, b): return 0\ndef check_sum(x): return 6"
        setup = "def check_sum(x): return 2 * x"
        assert scores(*(with_code(code, tests, setup=setup) for code in (RIGHT, cheat))).values == [
            1.0,
            0.0,
        ]
        assert scores(with_code(RIGHT, tests, helpers=setup), setup="helpers").values == [1.0]
        Code().check_prompt(with_code(RIGHT, tests, setup=setup).prompt)
        with pytest.raises(ValueError, match="not valid Python"):
            Code().check_prompt(with_code(RIGHT, tests, setup="def").prompt)

    @pytest.mark.parametrize(
        "test",
        [
            "import numpy as np\nassert np.allclose(add(1, 2), 3)",
            "assert np.allclose(add(1, 2), 3)",
            "from numpy import allclose\nassert allclose(add(1, 2), 3)",
        ],
    )
    def test_packages_of_the_tests_are_refused_or_installed(self, test: str) -> None:
        with pytest.raises(ValueError, match=r"use the package numpy: type reward.packages=true"):
            Code().check_prompt(with_code(RIGHT, [test]).prompt)
        reward = Code(packages=True, memory_mb=2048)
        reward.check_prompt(with_code(RIGHT, [test]).prompt)
        assert reward(
            [with_code(RIGHT, [test]), with_code("def add(a, b): return 7", [test])]
        ).values == [1.0, 0.0]
        with pytest.raises(
            ValueError, match="package gmpy2, which is not installed: type pip install gmpy2"
        ):
            reward.check_prompt(with_code(RIGHT, ["import gmpy2\nassert add(1, 2) == 3"]).prompt)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```py\na\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```python\na\n```\n```python\nb\n```", "b\n"),
        ("<think>```python\na\n```</think>", None),
        ("a", None),
        ("```python\na", "a"),
        ("```python\n \n```", None),
        ("```bash\nls\n```", None),
        ("```python title=x.py\na\n```", "a\n"),
        ("```Python3 {1,2}\r\na\r\nb\r\n```", "a\nb\n"),
        ("~~~py\na = '```'\n~~~", "a = '```'\n"),
        ("````python\na = '```'\n````", "a = '```'\n"),
        ("``` python\na\n```", "a\n"),
        ("```python\nf()\n```<|im_end|>\n<|im_start|>user\n```python\ng()\n```", "f()\n"),
        ("```python\nf()\n```\nOutput:\n```\n3\n```", "f()\n"),
        ("```\nf()\n```\n```\nsum is 3\n```", "f()\n"),
        ("```python\nf()\n```\nBetter:\n```\ng = 3\n```", "g = 3\n"),
        ("```python\nf()\n```\n```output\nx()\n```", "f()\n"),
    ],
)
def test_extract_code(text: str, code: str | None) -> None:
    assert extract_code(text) == code


@pytest.mark.parametrize(
    "part",
    ["```", "~~~ ", "`", "```a", "a", "~~~\n", "``` \n", "```python\n", "\r\n", "{", "```~~~"],
)
def test_extraction_takes_linear_time(part: str) -> None:
    start = time.process_time()
    extract_code("```" + part * (100_000 // len(part)))
    assert time.process_time() - start < 2.0
