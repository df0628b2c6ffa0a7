import json
import random
import resource
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from rlmods.run.integrity import (
    MANIFEST,
    DirectCheckpointIO,
    compute_checksums,
    find_damage,
    write_manifest,
)

CONTENT = {"iteration": 3, "loops": {}, "weights": {f"w{i}": torch.randn(50, 20) for i in range(3)}}


def is_equal(path: Path) -> bool:
    """Return True if the checkpoint holds `CONTENT`."""
    try:
        content = torch.load(path, weights_only=True)
        return content.keys() == CONTENT.keys() and all(
            torch.equal(content["weights"][k], v) for k, v in CONTENT["weights"].items()
        )
    except Exception:
        return False


class TestFile:
    def test_intact(self, tmp_path: Path) -> None:
        torch.save(CONTENT, tmp_path / "a")
        assert find_damage(tmp_path / "a") is None

    @pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.99])
    def test_truncated(self, tmp_path: Path, fraction: float) -> None:
        torch.save(CONTENT, tmp_path / "a")
        content = (tmp_path / "a").read_bytes()
        (tmp_path / "a").write_bytes(content[: int(fraction * len(content))])
        assert find_damage(tmp_path / "a")

    def test_flipped_bits_are_detected(self, tmp_path: Path) -> None:
        """Flips that are not detected are in padding, which is not read; torch.load alone accepts
        flipped weights. (The index at the end of the file is left out: torch checks nearly all of
        it.)"""
        torch.save(CONTENT, tmp_path / "a")
        content = (tmp_path / "a").read_bytes()
        with zipfile.ZipFile(tmp_path / "a") as archive:
            index = archive.start_dir
        rng, accepted, rejected = random.Random(0), 0, Counter[str]()
        for _ in range(300):
            flipped = bytearray(content)
            flipped[rng.randrange(index)] ^= 1 << rng.randrange(8)
            (tmp_path / "a").write_bytes(flipped)
            if find_damage(tmp_path / "a") is None:
                assert is_equal(tmp_path / "a")
            else:
                try:
                    torch.load(tmp_path / "a", weights_only=True)
                    accepted += 1
                except Exception as error:  # torch raises many types
                    rejected[type(error).__name__] += 1
        assert sum(rejected.values()) > 0, "no flip hit bytes that torch checks"
        assert accepted > 100, "torch.load accepts flipped weights"


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("meta.pt", "__0_0.distcp", ".metadata"):
            (tmp_path / name).write_bytes(name.encode() * 1000)
        write_manifest(tmp_path, [compute_checksums(tmp_path, rank, 2) for rank in range(2)])
        return tmp_path

    def test_ranks_split_the_files(self, folder: Path) -> None:
        assert set(json.loads((folder / MANIFEST).read_text())) == {
            "meta.pt",
            "__0_0.distcp",
            ".metadata",
        }
        assert find_damage(folder) is None

    @pytest.mark.parametrize("name", ["meta.pt", "__0_0.distcp", ".metadata"])
    def test_names_the_damaged_file(self, folder: Path, name: str) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1])
        assert find_damage(folder) == f"{name} is damaged"
        (folder / name).write_bytes(content[:-1] + b"x")
        assert find_damage(folder) == f"{name} is damaged"
        (folder / name).unlink()
        assert find_damage(folder) == f"{name} is missing"

    def test_missing_or_broken_manifest_is_damage(self, folder: Path) -> None:
        (folder / MANIFEST).unlink()
        assert find_damage(folder) == "it has no manifest.json"
        (folder / MANIFEST).write_text("{")
        assert find_damage(folder)


class TestDirectCheckpointIO:
    def test_torch_reads_the_file(self, tmp_path: Path) -> None:
        DirectCheckpointIO().save_checkpoint(CONTENT, tmp_path / "deep/a")
        assert is_equal(tmp_path / "deep/a")
        assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a"]

    def test_full_disk_raises_os_error(self) -> None:
        with pytest.raises(OSError, match="No space left on device"):
            DirectCheckpointIO().save_checkpoint(CONTENT, "/dev/full")

    @pytest.mark.slow
    def test_quota_raises_os_error(self, tmp_path: Path) -> None:
        """The write fails only when torch's writer closes the archive."""
        code = (
            "import sys, torch; from rlmods.run.integrity import DirectCheckpointIO\n"
            "try: DirectCheckpointIO().save_checkpoint({'w': torch.zeros(10**6)}, sys.argv[1])\n"
            "except OSError as error: print(error.strerror)"
        )
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # noqa: E731
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "a")],
            capture_output=True,
            text=True,
            preexec_fn=limit,
        )
        assert (done.stdout, done.stderr) == ("File too large\n", "")
