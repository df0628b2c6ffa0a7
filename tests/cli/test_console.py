"""Errors on the console."""

from __future__ import annotations

import pytest

from rlmods.cli import console
from rlmods.cli.console import OTHER_RANKS_WAIT_S, plain_errors
from rlmods.types import UserError


@pytest.mark.parametrize(("rank", "waits"), [(None, []), ("0", []), ("", []), ("1", [OTHER_RANKS_WAIT_S])])
def test_other_ranks_wait_before_they_print_a_mistake(rank: str | None, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
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
