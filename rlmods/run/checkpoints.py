"""Checkpoints on disk: synced when written, checked by CRC32 when read, and found by iteration."""

import json
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from rlmods.distributed.sharded_checkpoint import read_metadata
from rlmods.errors import UserError, in_one_line
from rlmods.run.files import atomic_write
from rlmods.run.saved import check_run

CHECKPOINT_NAME = "iteration_{:06d}.ckpt"
ADVICE = ", choose another with resume=PATH"
MANIFEST = "manifest.json"
"""File in the folder of a sharded checkpoint, with the CRC32 of each of its files."""
CHUNK_BYTES = 2**22

Checksums = Mapping[str, int]
"""CRC32 by file name."""


class DirectCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint directly to its path. (Lightning's own builds it in memory, then in the
    folder for temporary files.)"""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """
        Raises:
            OSError: the file cannot be written.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "wb") as file:
                torch.save(checkpoint, file)
        except RuntimeError as error:  # torch's writer raises it on closing after an OSError
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def find_damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, None if every byte is as it was written.

    A file is a zip archive with a CRC32 of each entry, a folder has a manifest. Reads everything,
    at about 3 GB/s from the page cache."""
    try:
        if path.is_dir():
            return _find_folder_damage(path)
        with zipfile.ZipFile(path) as archive:
            entry = archive.testzip()
        return None if entry is None else f"{entry} is damaged"
    # zipfile raises several kinds on damaged archives: a flipped bit gives an unknown compression
    # method (NotImplementedError) or marks an entry as encrypted (RuntimeError)
    except (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        return in_one_line(error)


def compute_checksums(folder: Path, rank: int = 0, world_size: int = 1) -> Checksums:
    """Sync this rank's share of the files to disk and return their checksums."""
    names = sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and file.name != MANIFEST
    )
    own = names[rank::world_size]
    for name in own:
        sync(folder / name)
    return {name: _checksum(folder / name) for name in own}


def write_manifest(folder: Path, parts: Iterable[Checksums]) -> None:
    """Write the checksums of all ranks to the manifest."""
    checksums: dict[str, int] = {}
    for part in parts:
        checksums |= part
    atomic_write(folder / MANIFEST, json.dumps(checksums, indent=1))
    sync(folder / MANIFEST)


def sync(path: Path) -> None:
    """Sync the file, or the folder's list of entries, to disk (fsync)."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError:
        if not path.is_dir():  # some file systems cannot sync folders
            raise
    finally:
        os.close(file)


def _find_folder_damage(folder: Path) -> str | None:
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return f"it has no {MANIFEST}"
    for name, crc in json.loads(manifest.read_bytes()).items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _checksum(folder / name) != crc:
            return f"{name} is damaged"
    return None


def _checksum(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc


def find_resume(run_dir: Path, resume: str | None, *, checks: bool = True) -> Path | None:
    """Return the checkpoint to resume from. `checks=False`: without reading all its bytes, as ranks
    do that then load the checkpoint of the first rank.

    `resume` is None: do not resume; "auto": the newest intact checkpoint of `run_dir`, None if
    there is none yet; otherwise the path of a checkpoint, or of a folder (a run directory or its
    `checkpoints/`), whose newest intact checkpoint is taken.

    Raises:
        UserError: the path does not exist, holds no checkpoint, or cannot be read as one.
    """
    if resume is None:
        return None
    if resume == "auto":
        return _newest(run_dir / "checkpoints", checks)
    path = Path(str(resume)).expanduser().absolute()
    if not path.exists():
        raise UserError(
            f"resume={resume}: no such file or folder, give a checkpoint or resume=auto"
        )
    if path.is_dir() and not (path / "meta.pt").is_file():  # not a sharded checkpoint
        checkpoint = _newest(path, checks) or _newest(path / "checkpoints", checks)
        if checkpoint is None:
            raise UserError(
                f"resume={resume}: no iteration_*.ckpt in this folder: type a run or a checkpoint, "
                "or run_dir=RUN resume=auto"
            )
        return checkpoint
    verify(path, checks)
    return path


def find_fork(fork: str, *, checks: bool = True) -> Path:
    """Return the checkpoint that `fork`, RUN@ITERATION, names. `checks`: as in `find_resume`.

    Raises:
        UserError: another form, no such run, or no such intact checkpoint.
    """
    name, _, iteration = fork.rpartition("@")
    if not name or not iteration.isdecimal():
        raise UserError(
            f"fork={fork}: type a run directory and an iteration, such as fork=runs/a@60"
        )
    run = Path(name).expanduser().absolute()
    check_run(run)
    checkpoints = dict(list_checkpoints(run / "checkpoints"))
    checkpoint = checkpoints.get(int(iteration))
    if checkpoint is None:
        found = ", ".join(map(str, checkpoints)) or "none"
        raise UserError(
            f"fork={fork}: no checkpoint of this iteration, there are: {found}; "
            "callbacks.checkpoint.keep=0 keeps all of a run"
        )
    verify(checkpoint, checks)
    return checkpoint


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in `folder` as (iteration, path), oldest first."""
    found = []
    for path in folder.glob("iteration_*.ckpt"):
        match = re.fullmatch(r"iteration_(\d+)\.ckpt", path.name)
        if match:
            found.append((int(match[1]), path))
    return sorted(found)


def verify(path: Path, checks: bool = True) -> int:
    """Check every byte of a checkpoint, if `checks`, and return its number of completed iterations.

    Raises:
        UserError: truncated, damaged, not a checkpoint of a training run, or a sharded one that
            would execute code.
    """
    reason = find_damage(path) if checks else None
    if reason:
        raise UserError(f"{path}: cannot be read as a checkpoint ({reason}){ADVICE}")
    if path.is_dir():
        read_metadata(path)
    return read_iteration(path)


def read_iteration(path: Path) -> int:
    """Return the number of completed iterations in a checkpoint.

    Raises:
        UserError: unreadable, or not a checkpoint of a training run.
    """
    file = path / "meta.pt" if path.is_dir() else path
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=path.is_file())
    except Exception as error:  # torch raises many kinds
        reason = in_one_line(error, 120)
        raise UserError(f"{path}: cannot be read as a checkpoint ({reason}){ADVICE}") from error
    if not isinstance(content, dict) or not {"iteration", "loops"} <= content.keys():
        raise UserError(f"{path}: not a checkpoint of a training run{ADVICE}")
    return int(content["iteration"])


def _newest(folder: Path, checks: bool) -> Path | None:
    """Return the newest intact checkpoint; warn about newer ones that are damaged."""
    damaged = []
    for _, path in reversed(list_checkpoints(folder)):
        try:
            iteration = verify(path, checks)
        except UserError as error:
            damaged.append(str(error).removesuffix(ADVICE))
            continue
        if damaged:
            warnings.warn(
                f"{'; '.join(damaged)}: resuming from iteration {iteration}, later iterations are "
                "repeated",
                stacklevel=2,
            )
        return path
    if damaged:
        raise UserError(
            f"{folder}: none of its {len(damaged)} checkpoints can be read, start a new run "
            "with another run_dir=..."
        )
    return None
