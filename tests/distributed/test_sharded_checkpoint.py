"""Sharded checkpoints: torch's own writer is read back, and nothing that they hold is executed."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from rlmods.distributed.sharded_checkpoint import load, read_metadata
from rlmods.errors import UserError
from rlmods.run.checkpoints import compute_checksums, find_resume, write_manifest

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed is (unavailable|disabled).*")
STATE = {
    "w": torch.arange(6.0).view(2, 3),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "rest": {"lr": 0.1, "betas": (0.9, None), "n": [1, "x"]},
}


class Executed:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def saved(folder: Path, **more: Any) -> Path:
    dcp.save({**STATE, **more}, checkpoint_id=folder)
    torch.save({"iteration": 3, "loops": {}}, folder / "meta.pt")
    write_manifest(folder, [compute_checksums(folder)])
    return folder


def replace_metadata(folder: Path, content: bytes) -> None:
    (folder / ".metadata").write_bytes(content)
    write_manifest(folder, [compute_checksums(folder)])


def blank() -> dict[str, Any]:
    return {
        "w": torch.zeros(2, 3),
        "half": torch.zeros(2, dtype=torch.bfloat16),
        "rest": {"lr": 0.0, "betas": None, "n": None},
    }


def test_reads_what_torch_writes(tmp_path: Path) -> None:
    folder = saved(tmp_path / "iteration_000003.ckpt")
    state = blank()
    load(state, folder)
    assert torch.equal(state["w"], STATE["w"])
    assert torch.equal(state["half"], STATE["half"])
    assert state["rest"] == STATE["rest"]
    assert find_resume(tmp_path, str(folder)) == folder


@pytest.mark.parametrize("how", ["alone", "in a field", "beside"])
def test_metadata_executes_nothing(how: str, tmp_path: Path) -> None:
    folder, executed = saved(tmp_path / "iteration_000003.ckpt"), Executed(tmp_path / "executed")
    metadata: Any = {
        "alone": executed,
        "in a field": Metadata(state_dict_metadata={}, planner_data=executed, storage_data={}),
        "beside": (executed, Metadata(state_dict_metadata={}, storage_data={})),
    }[how]
    replace_metadata(folder, pickle.dumps(metadata))
    for read in (
        lambda: find_resume(tmp_path, str(folder)),
        lambda: read_metadata(folder),
        lambda: load(blank(), folder),
    ):
        with pytest.raises(
            UserError,
            match=r"\.metadata names .*, which no checkpoint needs.*choose another with resume=PATH",
        ) as error:
            read()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "executed").exists()


def test_values_execute_nothing(tmp_path: Path) -> None:
    folder = saved(tmp_path / "iteration_000003.ckpt", value=Executed(tmp_path / "executed"))
    with pytest.raises(
        UserError, match=r"cannot be read as a checkpoint \(Weights only load failed"
    ) as error:
        load({"value": None}, folder)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        pickle.dumps(5),
        pickle.dumps({"a": 1}),
        pickle.dumps(Metadata({}))[:-9],
        b"(" * 100_000,
    ],
)
def test_broken_metadata_is_a_one_line_error(content: bytes, tmp_path: Path) -> None:
    folder = saved(tmp_path / "iteration_000003.ckpt")
    replace_metadata(folder, content)
    with pytest.raises(UserError, match="cannot be read as a checkpoint") as error:
        find_resume(tmp_path, str(folder))
    assert "\n" not in str(error.value)
