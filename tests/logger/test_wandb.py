"""Offline runs of Weights & Biases, read back with the record types of its package."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.logger import Wandb
from tests.logger.runs import CELLS, COLUMNS, ROWS, SETTINGS

wandb = pytest.importorskip("wandb")

BLOCK = 32_768
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a `.wandb` file: a header of 7 bytes, then a log of LevelDB, whose
    fragments do not cross blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            yield Record.FromString(parts)
            parts = b""


def history(path: Path) -> list[dict[str, Any]]:
    rows = (
        record.history.item
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    )
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row}
        for row in rows
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of a run and of the process that resumes it."""
    folder, patch = tmp_path_factory.mktemp("run"), pytest.MonkeyPatch()
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "HOME": str(folder),
    }.items():
        patch.setenv(name, value)
    for step in (1, 2):
        logger = Wandb(folder, offline=True)
        logger.log_hyperparams(SETTINGS)
        logger.log_metrics({"val/pass@8": 0.5}, step=step)
        logger.log_samples("iteration", ROWS, step=step)
        logger.finalize("success")
        assert wandb.run is None
    patch.undo()
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_ctime)


@pytest.mark.filterwarnings("ignore")
class TestWandb:
    def test_label_and_settings(self, files: list[Path]) -> None:
        found = list(records(files[0]))
        assert [record.run.display_name for record in found if record.run.display_name][
            -1
        ] == SETTINGS["label"]
        updates = [update for record in found for update in record.config.update]
        settings = {update.key: json.loads(update.value_json) for update in updates}
        assert settings.items() >= SETTINGS.items()

    def test_metrics_by_iteration(self, files: list[Path]) -> None:
        rows = [row for row in history(files[0]) if "val/pass@8" in row]
        assert [(row["val/pass@8"], row["trainer/global_step"]) for row in rows] == [(0.5, 1)]

    def test_tables(self, files: list[Path]) -> None:
        [row] = [row for row in history(files[0]) if "samples/iteration/path" in row]
        table = json.loads((files[0].parent / "files" / row["samples/iteration/path"]).read_text())
        assert (table["columns"], table["data"]) == (COLUMNS, CELLS)

    def test_a_resumed_run_is_the_same(self, files: list[Path]) -> None:
        first, second = ({record.run.run_id for record in records(path)} - {""} for path in files)
        assert first == second
        assert [row["trainer/global_step"] for row in history(files[1]) if "val/pass@8" in row] == [
            2
        ]


@pytest.mark.filterwarnings("ignore")
def test_without_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", init)
    message = (
        r"^logger=wandb: No API key configured\. Use `wandb login` to log in: type "
        r"logger\.wandb\.offline=true, or wandb login in a shell$"
    )
    with pytest.raises(UserError, match=message):
        Wandb(tmp_path).log_hyperparams(SETTINGS)
