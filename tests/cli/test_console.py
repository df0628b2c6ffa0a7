"""Errors on the console."""

from __future__ import annotations

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
    with pytest.raises(SystemExit, match="error: a"), plain_errors():
        raise UserError("a")
    assert waited == waits


def test_other_errors_are_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.time, "sleep", pytest.fail)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(KeyError), plain_errors():
        raise KeyError("x")


class TestHint:
    def test_is_printed_below_a_mistake(self) -> None:
        with (
            pytest.raises(SystemExit, match="error: a\nto resume: b"),
            plain_errors(lambda: "to resume: b"),
        ):
            raise UserError("a")

    def test_is_printed_below_a_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        with (
            pytest.raises(SystemExit, match=r"^to resume: b"),
            plain_errors(lambda: "to resume: b"),
        ):
            raise KeyError("x")
        assert "KeyError: 'x'" in capsys.readouterr().err

    def test_may_be_empty(self) -> None:
        with pytest.raises(SystemExit, match=r"^error: a$"), plain_errors(lambda: ""):
            raise UserError("a")
