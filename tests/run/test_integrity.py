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

from rlmods.run.integrity import MANIFEST, DirectFile, flaw, seal, write_manifest

CONTENT = {"iteration": 3, "loops": {}, "weights": {f"w{i}": torch.randn(50, 20) for i in range(3)}}


def equal(path: Path) -> bool:
    """Whether what is read is what was written."""
    try:
        found = torch.load(path, weights_only=True)
        return found.keys() == CONTENT.keys() and all(torch.equal(found["weights"][k], v) for k, v in CONTENT["weights"].items())
    except Exception:
        return False


class TestFile:
    def test_whole(self, tmp_path: Path) -> None:
        torch.save(CONTENT, tmp_path / "a")
        assert flaw(tmp_path / "a") is None

    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
    def test_truncated(self, tmp_path: Path, share: float) -> None:
        torch.save(CONTENT, tmp_path / "a")
        whole = (tmp_path / "a").read_bytes()
        (tmp_path / "a").write_bytes(whole[: int(share * len(whole))])
        assert flaw(tmp_path / "a")

    def test_no_bit_flips_unnoticed(self, tmp_path: Path) -> None:
        """torch loads a flipped weight without a word; what is passed over here is padding, which nobody reads. (The index at
        the end torch checks itself, nearly all of it.)"""
        torch.save(CONTENT, tmp_path / "a")
        whole = (tmp_path / "a").read_bytes()
        with zipfile.ZipFile(tmp_path / "a") as archive:
            index = archive.start_dir
        draw, silent, refused = random.Random(0), 0, Counter[str]()
        for _ in range(300):
            flipped = bytearray(whole)
            flipped[draw.randrange(index)] ^= 1 << draw.randrange(8)
            (tmp_path / "a").write_bytes(flipped)
            if flaw(tmp_path / "a") is None:
                assert equal(tmp_path / "a")
            else:
                try:
                    torch.load(tmp_path / "a", weights_only=True)
                    silent += 1
                except Exception as error:  # of whatever kind: torch has many
                    refused[type(error).__name__] += 1
        assert sum(refused.values()) > 0, "nothing hit what torch reads"
        assert silent > 100, "otherwise torch would be enough"


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("meta.pt", "__0_0.distcp", ".metadata"):
            (tmp_path / name).write_bytes(name.encode() * 1000)
        write_manifest(tmp_path, [seal(tmp_path, rank, 2) for rank in range(2)])
        return tmp_path

    def test_ranks_share_the_files(self, folder: Path) -> None:
        assert set(json.loads((folder / MANIFEST).read_text())) == {"meta.pt", "__0_0.distcp", ".metadata"}
        assert flaw(folder) is None

    @pytest.mark.parametrize("name", ["meta.pt", "__0_0.distcp", ".metadata"])
    def test_names_what_is_broken(self, folder: Path, name: str) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-1])
        assert flaw(folder) == f"{name} is truncated"
        (folder / name).write_bytes(whole[:-1] + b"x")
        assert flaw(folder) == f"{name} is damaged"
        (folder / name).unlink()
        assert flaw(folder) == f"{name} is missing"

    def test_without_a_manifest_nothing_is_known(self, folder: Path) -> None:
        (folder / MANIFEST).unlink()
        assert flaw(folder) == "it has no manifest.json"
        (folder / MANIFEST).write_text("{")
        assert flaw(folder)


class TestDirectFile:
    def test_writes_what_torch_reads(self, tmp_path: Path) -> None:
        DirectFile().save_checkpoint(CONTENT, tmp_path / "deep/a")
        assert equal(tmp_path / "deep/a")
        assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a"]

    def test_a_full_disk_is_an_os_error(self) -> None:
        with pytest.raises(OSError, match="No space left on device"):
            DirectFile().save_checkpoint(CONTENT, "/dev/full")

    def test_so_is_a_quota(self, tmp_path: Path) -> None:
        """Too late for a short write: torch's own writer is asked to close the archive."""
        code = "import sys, torch; from rlmods.run.integrity import DirectFile\n" \
            "try: DirectFile().save_checkpoint({'w': torch.zeros(10**6)}, sys.argv[1])\n" \
            "except OSError as error: print(error.strerror)"  # fmt: skip
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # noqa: E731
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True, preexec_fn=limit)
        assert (done.stdout, done.stderr) == ("File too large\n", "")
