"""Errors that the command line prints without a traceback."""

import os
import subprocess
import sys

import pytest

from rlmods.errors import Parser, UserError, counted, in_one_line, one_line_errors

PROGRAM = "from rlmods.errors import one_line_errors\nwith one_line_errors(): print('a' * {})"


@pytest.mark.parametrize(
    ("error", "message"),
    [(UserError("no such run"), "error: no such run"), (KeyboardInterrupt(), "again")],
)
def test_ends_with_one_line(error: BaseException, message: str) -> None:
    with pytest.raises(SystemExit, match=f"^{message}$"), one_line_errors("again"):
        raise error


def test_other_errors_are_raised() -> None:
    with pytest.raises(KeyError), one_line_errors():
        raise KeyError("x")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ([], "error: the following arguments are required: RUN; type python -m rlmods.see RUN\n"),
        (["a", "--wdith", "3"], "error: --wdith: did you mean --width?\n"),
        (
            ["a", "--width=x"],
            "error: argument --width: invalid int value: 'x'; type python -m rlmods.see RUN\n",
        ),
    ],
)
def test_wrong_arguments_are_answered_by_one_line(
    typed: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser("see", "Usage.")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--width", type=int, default=2)
    with pytest.raises(SystemExit) as error:
        parser.parse_args(typed)
    assert error.value.code == 2
    assert capsys.readouterr().err == message


def test_numbers_have_their_noun() -> None:
    shown = [counted(0, "run"), counted(1, "run"), counted(2, "run"), counted(2, "microbatch")]
    assert shown == ["0 runs", "1 run", "2 runs", "2 microbatches"]


@pytest.mark.parametrize("size", [1, 100_000])
def test_says_nothing_where_the_reader_of_stdout_has_ended(size: int) -> None:
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(size)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=buffered,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (1, "")


def test_in_one_line() -> None:
    assert in_one_line(ValueError("a \n  b\tc")) == "a b c"
    assert in_one_line("a b c", 3) == "a b"
    assert in_one_line(ValueError()) == "ValueError"
    assert in_one_line(" \n ") == ""
