"""Folders for weights: in memory if there is room, and none left by processes that were killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from rlmods.rollout import weight_folder
from rlmods.rollout.weight_folder import PREFIX, WeightFolder, remove_abandoned


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(weight_folder, "MEMORY", tmp_path)
    return tmp_path


def old(path: Path) -> Path:
    os.utime(path, (time.time() - 3600,) * 2)
    return path


class TestPlace:
    def test_is_in_memory_if_there_is_room(self, memory: Path) -> None:
        folder = WeightFolder.create(None, 1000)
        assert folder.path.parent == memory
        (folder.path / "model.safetensors").write_bytes(b"x")
        folder.remove()
        assert not list(memory.iterdir())

    def test_is_the_temporary_folder_if_memory_is_too_small(
        self, memory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(1050))
        folder = WeightFolder.create(None, 1000)
        assert folder.path.parent != memory
        folder.remove()
        assert not folder.path.exists()

    def test_is_the_given_folder(
        self, memory: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        parent = tmp_path_factory.mktemp("given") / "new"
        folder = WeightFolder.create(str(parent), 1000)
        assert folder.path.parent == parent
        folder.remove()


class TestAbandoned:
    @pytest.mark.slow
    def test_folders_of_killed_processes_are_removed(self, memory: Path) -> None:
        code = f"""
import os, signal
from pathlib import Path
from rlmods.rollout import weight_folder
weight_folder.MEMORY = Path({str(memory)!r})
folder = weight_folder.WeightFolder.create(None, 10)
(folder.path / "model.safetensors").write_bytes(b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""
        subprocess.run([sys.executable, "-c", code], check=False)
        [left] = memory.iterdir()
        old(left)
        folder = WeightFolder.create(None, 10)
        assert list(memory.iterdir()) == [folder.path]
        folder.remove()

    def test_folders_in_use_stay(self, memory: Path) -> None:
        folder = WeightFolder.create(None, 10)
        old(folder.path)
        remove_abandoned()
        assert folder.path.exists()
        folder.remove()

    def test_young_folders_links_and_files_stay(
        self, memory: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        (elsewhere / "kept").write_text("x")
        (memory / f"{PREFIX}young").mkdir()
        (memory / f"{PREFIX}link").symlink_to(elsewhere)
        (memory / f"{PREFIX}file").write_text("x")
        old(memory / f"{PREFIX}file")
        old(elsewhere)
        remove_abandoned()
        assert len(list(memory.iterdir())) == 3
        assert (elsewhere / "kept").exists()
