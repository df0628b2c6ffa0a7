"""A rank that makes no progress ends, with its stacks."""

from __future__ import annotations

import pytest

from rlmods.callbacks import Watchdog
from tests.support.processes import Process


def run(what: str) -> tuple[int, str]:
    process = Process(["-m", "tests.callbacks.single_rank", what], merge=True)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sleep", "regex"])
def test_a_hanging_rank_ends_with_its_stacks(what: str) -> None:
    status, output = run(what)
    assert status == 1
    assert "Timeout (0:00:01.500000)!" in output
    assert "single_rank.py" in output
    assert "finished" not in output


@pytest.mark.slow
def test_a_rank_that_works_goes_on() -> None:
    """Also after the end of training, when nothing restarts the timer."""
    status, output = run("work")
    assert (status, output.strip()) == (0, "finished")


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_invalid_time(timeout_s: float) -> None:
    with pytest.raises(ValueError, match=r"callbacks\.watchdog\.timeout_s=.*above 0 or null"):
        Watchdog(timeout_s)
