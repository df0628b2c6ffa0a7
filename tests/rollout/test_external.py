"""Folders for weights on their way to other processes."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from rlmods.rollout import external
from rlmods.rollout.external import weight_folder


@pytest.mark.parametrize(("free", "in_memory"), [(10_000, True), (1050, False)])
def test_is_in_memory_if_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, in_memory: bool
) -> None:
    monkeypatch.setattr(external, "MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(free))
    folder = weight_folder(None, 1000)
    path = Path(folder.name)
    assert (path.parent == tmp_path) == in_memory
    (path / "model.safetensors").write_bytes(b"x")
    folder.cleanup()
    assert not path.exists()


def test_is_in_the_given_folder(tmp_path: Path) -> None:
    folder = weight_folder(str(tmp_path / "new"), 1000)
    assert Path(folder.name).parent == tmp_path / "new"
    folder.cleanup()
