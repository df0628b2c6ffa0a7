"""Folders for weights: in memory if there is room, and none left by processes that were killed."""

import os
import shutil
import time
from collections import namedtuple
from pathlib import Path

import pytest

from rlmods.rollout import vllm_server
from rlmods.rollout.vllm_server import PREFIX, create_folder


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(vllm_server, "MEMORY", tmp_path)
    return tmp_path


def test_is_in_memory_if_there_is_room(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert create_folder(None, 1000).parent == memory
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(1050))
    folder = create_folder(None, 1000)
    assert folder.parent != memory
    folder.rmdir()


def test_is_the_given_folder(memory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    parent = tmp_path_factory.mktemp("given") / "new"
    assert create_folder(str(parent), 1000).parent == parent


def test_old_folders_are_removed_and_nothing_else(
    memory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").write_text("x")
    (memory / f"{PREFIX}link").symlink_to(elsewhere)
    left = memory / f"{PREFIX}left"
    in_use = memory / f"{PREFIX}in use"
    others = memory / "of others"
    for path in (left, in_use, others):
        path.mkdir()
    for path in (left, others, elsewhere):
        os.utime(path, (time.time() - 2 * vllm_server.MAX_AGE_S,) * 2)
    folder = create_folder(None, 10)
    assert not left.exists()
    assert in_use.exists()
    assert others.exists()
    assert (elsewhere / "kept").exists()
    assert folder.parent == memory
