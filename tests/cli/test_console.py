"""Errors on the console."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlmods.cli import console
from rlmods.cli.console import OTHER_RANKS_WAIT_S, plain_errors
from rlmods.errors import UserError


@pytest.mark.parametrize(
    ("rank", "waits"), [(None, []), ("0", []), ("", []), ("1", [OTHER_RANKS_WAIT_S])]
)
def test_other_ranks_wait_before_they_print_a_mistake(
    rank: str | None, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(console.time, "sleep", waited.append)
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit, match=r"error: a\\x1bb"), plain_errors():
        raise UserError("a\x1bb")
    assert waited == waits


def test_other_errors_are_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.time, "sleep", pytest.fail)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(KeyError), plain_errors():
        raise KeyError("x")


class TestBrokenPipe:
    PROGRAM = "from rlmods.cli.console import plain_errors\nwith plain_errors(): "

    def run(self, action: str) -> tuple[int, str]:
        """Run an action with a stdout that nothing reads, and return the exit status and stderr."""
        command = [sys.executable, "-c", self.PROGRAM + action]
        buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read()
        return process.returncode, said

    def test_of_stdout_says_nothing(self) -> None:
        assert self.run("print('a' * 100_000)") == (1, "")
        assert self.run("print('a')") == (1, ""), "what is printed as the process ends"

    def test_of_others_is_raised(self) -> None:
        with pytest.raises(BrokenPipeError), plain_errors():
            raise BrokenPipeError("a worker has ended")
