import pickle
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch.distributed.checkpoint.metadata import Metadata

from rlmods.errors import UserError
from rlmods.run.integrity import compute_checksums, write_manifest
from rlmods.run.resume import check_same_run, find_resume, recorded_resume


def checkpoint(path: Path, iteration: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"iteration": iteration, "loops": {}}, path)
    return path


def test_none_does_not_resume(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/iteration_000001.ckpt", 1)
    assert find_resume(tmp_path, None) is None


def test_auto_takes_the_newest_by_iteration(tmp_path: Path) -> None:
    assert find_resume(tmp_path, "auto") is None
    folder = tmp_path / "checkpoints"
    newest = checkpoint(folder / "iteration_1000000.ckpt", 1000000)  # sorts before 999999 as text
    checkpoint(folder / "iteration_999999.ckpt", 999999)
    checkpoint(folder / ".iteration_1000001.ckpt.tmp", 1000001)
    checkpoint(folder / "last.ckpt", 2000000)
    assert find_resume(tmp_path, "auto") == newest


def test_auto_skips_damaged_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    intact, damaged = (checkpoint(folder / f"iteration_00000{n}.ckpt", n) for n in (1, 2))
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.warns(
        UserWarning,
        match=rf"{damaged}: cannot be read .*: resuming from iteration 1, later iterations are "
        r"repeated",
    ):
        assert find_resume(tmp_path, "auto") == intact
    intact.write_bytes(b"")
    with pytest.raises(UserError, match="none of its 2 checkpoints can be read"):
        find_resume(tmp_path, "auto")


def test_path_may_be_a_checkpoint_its_folder_or_a_run(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoints/iteration_000003.ckpt", 3)
    assert {
        find_resume(Path("elsewhere"), str(source)) for source in (path, path.parent, tmp_path)
    } == {path}


def test_recorded_resume_reads_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECEIVED_SECRET", "sk-secret")
    (tmp_path / "config.yaml").write_text("resume: ${oc.env:RECEIVED_SECRET}\n")
    assert recorded_resume(tmp_path) == "${oc.env:RECEIVED_SECRET}"


def test_sharded_checkpoint_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints/iteration_000003.ckpt"
    checkpoint(folder / "meta.pt", 3)
    (folder / ".metadata").write_bytes(
        pickle.dumps(Metadata(state_dict_metadata={}, storage_data={}))
    )
    write_manifest(folder, [compute_checksums(folder)])
    assert find_resume(tmp_path, "auto") == find_resume(tmp_path, str(folder)) == folder


def test_invalid_path_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "text.ckpt").write_text("hello")
    (tmp_path / "empty").mkdir()
    torch.save({"weight": torch.zeros(2)}, tmp_path / "weights.ckpt")
    cases = {
        "missing.ckpt": "no such file or folder",
        "text.ckpt": "cannot be read as a checkpoint",
        "weights.ckpt": "not a checkpoint of a training run",
        "empty": r"no iteration_\*.ckpt in this folder",
    }
    for name, message in cases.items():
        with pytest.raises(UserError, match=message) as error:
            find_resume(tmp_path, str(tmp_path / name))
        assert name in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["trainer: abc", "trainer: [1]", "schedule: 3", "trainer: ${x}"])
def test_settings_of_another_shape_differ(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"was started with .*trainer\.precision=None \(now 32\)"):
        check_same_run(tmp_path / "config.yaml", OmegaConf.create({"trainer": {"precision": 32}}))
