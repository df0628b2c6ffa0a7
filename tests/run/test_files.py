import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rlmods.errors import UserError
from rlmods.run import atomic_write, dumps, write_summary


def test_atomic_write_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    atomic_write(path, "first, long\n")
    with path.open() as reader:
        atomic_write(path, b"second")
        assert reader.read() == "first, long\n"
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_lone_surrogates_are_written_escaped(tmp_path: Path) -> None:
    atomic_write(tmp_path / "f.json", dumps({"a": "\ud83d"}))
    assert json.loads((tmp_path / "f.json").read_text()) == {"a": "\ud83d"}


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    atomic_write(path, "old")

    def write_half(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(
        UserError, match=r"file: cannot write there \(No space left on device\): make room"
    ):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_dumps_writes_standard_json() -> None:
    tensors = {"tensor": torch.tensor([1.0, math.nan]), "one": torch.tensor(2)}
    value = {"nan": math.nan, "inf": -math.inf, **tensors, 3: (None, True, "é"), "path": Path("x")}
    expected = {
        "nan": None,
        "inf": None,
        "tensor": [1.0, None],
        "one": 2,
        "3": [None, True, "é"],
        "path": "x",
    }
    assert json.loads(dumps(value), parse_constant=pytest.fail) == expected
    assert "\n" not in dumps({"text": "a\nb"})


def summary(path: Path, **changes: Any) -> None:
    fields: dict[str, Any] = {
        "label": "dapo[ratio=symmetric]",
        "algo": "dapo",
        "parts": {"ratio": "symmetric"},
        "iterations": 3,
        "wall_s": 1.5,
        "accuracy": {"first": 0.1, "best": math.nan, "last": None},
        "response_tokens": 100,
        "peak_memory_mb": 2.0,
        "exit": "finished",
    }
    write_summary(path, **{**fields, **changes})


def test_summary_has_the_documented_keys(tmp_path: Path) -> None:
    summary(tmp_path / "summary.json", exit="failed: out of memory")
    content = json.loads((tmp_path / "summary.json").read_text())
    assert list(content) == [
        "label",
        "algo",
        "parts",
        "iterations",
        "val/accuracy",
        "wall_s",
        "response_tokens",
        "peak_memory_mb",
        "exit",
    ]
    assert content["val/accuracy"] == {"first": 0.1, "best": None, "last": None}
    assert content["exit"] == "failed: out of memory"


@pytest.mark.parametrize("changes", [{"exit": "done"}, {"accuracy": {"first": 0.0}}])
def test_invalid_summary_is_rejected(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"accuracy has|exit is"):
        summary(tmp_path / "summary.json", **changes)
    assert not (tmp_path / "summary.json").exists()
