"""Errors on the console."""

import pytest
from omegaconf import OmegaConf

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


def test_tracebacks_of_other_errors_are_printed_at_once_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console.time, "sleep", pytest.fail)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("PLANTED", "hunter2")
    assert OmegaConf.create({"key": "${oc.env:PLANTED}"}).key == "hunter2"
    with pytest.raises(SystemExit) as exit, plain_errors():
        raise KeyError("http://u:hunter2@h?k=hunter2 hunter2")
    assert exit.value.code == 1
    printed = capsys.readouterr().err
    assert "KeyError" in printed
    assert "hunter2" not in printed


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
