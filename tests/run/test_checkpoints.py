"""Checkpoints on disk: damage is found, and the newest intact one is taken."""

import pickle
import random
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from rlmods.errors import UserError
from rlmods.run.checkpoints import (
    MANIFEST,
    DirectCheckpointIO,
    compute_checksums,
    find_damage,
    find_resume,
    write_manifest,
)
from tests.run.test_directory import checkpoint

CONTENT = {"iteration": 3, "loops": {}, "weights": {f"w{i}": torch.randn(50, 20) for i in range(3)}}
REFUSALS = (
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)
"""Errors of torch.load for a damaged file."""


def is_equal(path: Path) -> bool:
    """Return True if the checkpoint holds `CONTENT`."""
    content = torch.load(path, weights_only=True)
    pairs = zip(content["weights"].values(), CONTENT["weights"].values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


class TestFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        DirectCheckpointIO().save_checkpoint(CONTENT, tmp_path / "deep/a")
        return tmp_path / "deep/a"

    def test_intact(self, file: Path) -> None:
        assert find_damage(file) is None
        assert is_equal(file)
        assert [path.name for path in file.parent.iterdir()] == ["a"]

    @pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.99])
    def test_truncated(self, file: Path, fraction: float) -> None:
        content = file.read_bytes()
        file.write_bytes(content[: int(fraction * len(content))])
        assert find_damage(file)

    def test_flipped_bits_are_detected(self, file: Path) -> None:
        """Flips that are not detected are in padding, which is not read; torch.load alone accepts
        flipped weights. (The index at the end of the file is left out: torch checks nearly all of
        it.)"""
        content = file.read_bytes()
        with zipfile.ZipFile(file) as archive:
            index = archive.start_dir
        rng = random.Random(0)
        accepted = 0
        for _ in range(300):
            flipped = bytearray(content)
            flipped[rng.randrange(index)] ^= 1 << rng.randrange(8)
            file.write_bytes(flipped)
            if find_damage(file) is None:
                assert is_equal(file)
                continue
            try:
                torch.load(file, weights_only=True)
            except REFUSALS:
                continue
            accepted += 1
        assert 100 < accepted < 300, "torch.load accepts flipped weights, and not all flips"

    def test_full_disk_raises_os_error(self) -> None:
        with pytest.raises(OSError, match="No space left on device"):
            DirectCheckpointIO().save_checkpoint(CONTENT, "/dev/full")

    @pytest.mark.slow
    def test_quota_raises_os_error(self, tmp_path: Path) -> None:
        """The write fails only when torch's writer closes the archive."""
        code = (
            "import sys, torch; from rlmods.run.checkpoints import DirectCheckpointIO\n"
            "try: DirectCheckpointIO().save_checkpoint({'w': torch.zeros(10**6)}, sys.argv[1])\n"
            "except OSError as error: print(error.strerror)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "a")],
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        )
        assert (done.stdout, done.stderr) == ("File too large\n", "")


class TestFolder:
    NAMES = ("meta.pt", "__0_0.distcp", ".metadata")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in self.NAMES:
            (tmp_path / name).write_bytes(name.encode() * 1000)
        write_manifest(tmp_path, [compute_checksums(tmp_path, rank, 2) for rank in range(2)])
        return tmp_path

    def test_intact(self, folder: Path) -> None:
        assert find_damage(folder) is None

    @pytest.mark.parametrize("name", NAMES)
    def test_names_the_damaged_file(self, folder: Path, name: str) -> None:
        content = (folder / name).read_bytes()
        for damaged in (content[:-1], content[:-1] + b"x"):
            (folder / name).write_bytes(damaged)
            assert find_damage(folder) == f"{name} is damaged"
        (folder / name).unlink()
        assert find_damage(folder) == f"{name} is missing"

    def test_missing_or_broken_manifest_is_damage(self, folder: Path) -> None:
        (folder / MANIFEST).unlink()
        assert find_damage(folder) == "it has no manifest.json"
        (folder / MANIFEST).write_text("{")
        assert find_damage(folder)


class TestFindResume:
    def test_auto_takes_the_newest_by_iteration(self, tmp_path: Path) -> None:
        assert find_resume(tmp_path, "auto") is None
        folder = tmp_path / "checkpoints"
        newest = checkpoint(folder / "iteration_1000000.ckpt", 1000000)  # before 999999 as text
        checkpoint(folder / "iteration_999999.ckpt", 999999)
        checkpoint(folder / ".iteration_1000001.ckpt.tmp", 1000001)
        checkpoint(folder / "last.ckpt", 2000000)
        assert find_resume(tmp_path, "auto") == newest
        assert find_resume(tmp_path, None) is None

    def test_auto_skips_damaged_checkpoints(self, tmp_path: Path) -> None:
        folder = tmp_path / "checkpoints"
        intact = checkpoint(folder / "iteration_000001.ckpt", 1)
        damaged = checkpoint(folder / "iteration_000002.ckpt", 2)
        damaged.write_bytes(damaged.read_bytes()[:200])
        message = (
            rf"{damaged}: cannot be read .*: resuming from iteration 1, later iterations are "
            "repeated"
        )
        with pytest.warns(UserWarning, match=message):
            assert find_resume(tmp_path, "auto") == intact
        intact.write_bytes(b"")
        with pytest.raises(UserError, match="none of its 2 checkpoints can be read"):
            find_resume(tmp_path, "auto")

    def test_path_may_be_a_checkpoint_its_folder_or_a_run(self, tmp_path: Path) -> None:
        path = checkpoint(tmp_path / "checkpoints/iteration_000003.ckpt", 3)
        for source in (path, path.parent, tmp_path):
            assert find_resume(Path("elsewhere"), str(source)) == path

    def test_sharded_checkpoint_is_a_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "checkpoints/iteration_000003.ckpt"
        checkpoint(folder / "meta.pt", 3)
        metadata = Metadata(state_dict_metadata={}, storage_data={})
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
        write_manifest(folder, [compute_checksums(folder)])
        assert find_resume(tmp_path, "auto") == find_resume(tmp_path, str(folder)) == folder

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("missing.ckpt", "no such file or folder"),
            ("text.ckpt", "cannot be read as a checkpoint"),
            ("weights.ckpt", "not a checkpoint of a training run"),
            ("empty", r"no iteration_\*.ckpt in this folder"),
        ],
    )
    def test_invalid_path_gives_a_one_line_error(
        self, name: str, message: str, tmp_path: Path
    ) -> None:
        (tmp_path / "text.ckpt").write_text("hello")
        (tmp_path / "empty").mkdir()
        torch.save({"weight": torch.zeros(2)}, tmp_path / "weights.ckpt")
        with pytest.raises(UserError, match=rf"{name}.*{message}") as error:
            find_resume(tmp_path, str(tmp_path / name))
        assert "\n" not in str(error.value)
