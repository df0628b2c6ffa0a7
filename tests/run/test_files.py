import json
import math
from pathlib import Path

import pytest
import torch

from rlmods.errors import UserError
from rlmods.run import atomic_write, dumps


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
