"""Tools that ship with the package, and results as texts."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from rlmods.grading.sandbox.confinement import missing_support
from rlmods.grading.tool_worker import MARK, calculator, python, to_text


class TestCalculator:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1+2", "3"),
            ("6/2", "3"),
            ("1/4", "0.25"),
            ("2**10", "1024"),
            ("-(7 - 10) / +4", "0.75"),
            ("0.1*10", "1"),
            ("4**0.5", "2"),
            ("2**-1", "0.5"),
            ("12345678901234567890 * 9", "111111110111111111010"),
            ("12345*678", "8369910"),
            ("2^10", "1024"),
        ],
    )
    def test_values(self, text: str, value: str) -> None:
        assert calculator(text) == value

    @pytest.mark.parametrize(
        "text",
        [
            *(
                "__import__('os')",
                "x",
                "f(1)",
                "(1).real",
                "[1]",
                "'a'",
                "1j",
                "(-8)**0.5",
                "7 % 3",
            ),
            *(
                "1 < 2",
                "9**9**9**9",
                "(" * 5000,
                "-" * 5000 + "1",
                "1 + " * 10_000 + "1",
                "",
                "1/0",
            ),
        ],
    )
    def test_other_texts_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"\w"):
            calculator(text)


HASHES = subprocess.run(
    [sys.executable, "-c", "print(hash('a'), list({'a', 'b', 'c', 'd', 'e'}))"],
    env={"PYTHONHASHSEED": "0"},
    capture_output=True,
    text=True,
    check=True,
).stdout
"""The same in every process of this interpreter."""


@pytest.mark.skipif(missing_support() is not None, reason="this machine cannot confine code")
class TestPython:
    def test_programs_are_confined(self) -> None:
        assert python("print(sum(range(10)))") == "45\n"
        assert python("print(hash('a'), list({'a', 'b', 'c', 'd', 'e'}))") == HASHES, (
            "the order of a set differs between processes"
        )
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            python("1/0")
        with pytest.raises(RuntimeError, match="PermissionError"):
            python("open('/etc/passwd')")


@given(
    st.one_of(
        st.text(),
        st.binary(),
        st.none(),
        st.lists(st.integers()),
        st.dictionaries(st.text(), st.floats()),
    ),
    st.integers(1, 20),
)
@example("a\ud800b", 5)
def test_every_result_is_a_short_text(result: Any, limit: int) -> None:
    text = to_text(result, limit)
    text.encode()
    assert len(text.removesuffix(MARK)) <= limit
