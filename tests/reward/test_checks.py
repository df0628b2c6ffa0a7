"""Settings out of range, and machines that cannot confine code."""

import sys
from typing import Any
from unittest.mock import Mock

import pytest

import rlmods.reward
from rlmods.errors import UserError
from rlmods.reward import Isolated

SETTINGS = [
    ("Accuracy", {"timeout_s": 0}),
    ("Code", {"memory_mb": 0}),
    ("Copying", {"size": 0}),
    ("Copying", {"allowed": 1.0}),
    ("Cosine", {"max_length": 0}),
    ("Diversity", {"size": 0}),
    ("JSON", {"timeout_s": 0}),
    ("Length", {"coefficient": -1}),
    ("Overlong", {"cache_length": 5, "max_length": 4}),
    ("Overlong", {"cache_length": -1, "max_length": 4}),
    ("Overlong", {"max_length": 0}),
    ("Regex", {"timeout_s": 0, "pattern": "a"}),
    ("Repetition", {"size": 0}),
    ("TaskScore", {"timeout_s": 0}),
    ("ToolCall", {"timeout_s": 0}),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=str)
def test_settings_out_of_range(name: str, settings: dict[str, Any]) -> None:
    if name == "TaskScore":
        pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    with pytest.raises((UserError, ValueError), match=f"{next(iter(settings))}="):
        getattr(rlmods.reward, name)(**settings)


def test_a_timeout_of_a_term() -> None:
    with pytest.raises(ValueError, match="timeout_s=0: must be above 0"):
        Isolated(lambda responses: [0.0] * len(responses), 0)


@pytest.mark.parametrize("name", ["Code", "TaskScore"])
class TestWalls:
    @pytest.fixture(autouse=True)
    def _extra(self, name: str) -> None:
        if name == "TaskScore":
            pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")

    def test_refused_without(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        reason = "this kernel has no Landlock"
        monkeypatch.setattr("rlmods.reward.code.missing_support", lambda: reason)
        kind = getattr(rlmods.reward, name)
        with pytest.raises(UserError, match=f"{reason}, so .* cannot .* type walls=limits"):
            kind()
        with pytest.raises(ValueError, match="walls=ful: must be one of full, limits"):
            kind(walls="ful")
        kind(walls="limits")

    def test_only_limits_leave_out(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = getattr(rlmods.reward, name)
        monkeypatch.setattr("rlmods.reward.code.missing_support", lambda: None)
        pools = Mock(**{"return_value.map.return_value": []})
        monkeypatch.setattr(sys.modules[kind.__module__], "shared_pool", pools)
        confined = {}
        for walls in ("full", "limits"):
            kind(walls=walls)([])
            confined[walls] = pools.call_args.kwargs["warmup"][-1].confined
        assert confined == {"full": True, "limits": False}
