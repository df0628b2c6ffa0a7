"""Checkpoints that are on disk when they say so, and that say so when they are broken."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from rlmods.run.files import atomic_write

MANIFEST = "manifest.json"
"""In the folder of a sharded checkpoint: size and CRC32 of each of its files."""
CHUNK = 2**22

Seals = Mapping[str, tuple[int, int]]
"""Size and CRC32 by the file's name."""


class DirectFile(TorchCheckpointIO):
    """Writes a checkpoint where it is told. (Lightning's own builds it in memory and then in the folder for temporary files.)"""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """
        Raises:
            OSError: it cannot be written.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "wb") as file:
                torch.save(checkpoint, file)
        except RuntimeError as error:  # of torch's writer, as it closes after an OSError
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def flaw(path: Path) -> str | None:
    """What is wrong with a checkpoint, None where every byte is as it was written.

    A file is a zip archive with a CRC32 of each entry, a folder has its manifest. Reads everything, at about 3 GB/s from memory.
    """
    try:
        if path.is_dir():
            return _flaw_of_folder(path)
        with zipfile.ZipFile(path) as archive:
            entry = archive.testzip()
        return None if entry is None else f"{entry} is damaged"
    # What zipfile makes of bytes that are no archive any more; NotImplementedError is a compression that a flipped bit has named.
    except (OSError, ValueError, KeyError, NotImplementedError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        return " ".join(str(error).split()) or type(error).__name__


def seal(folder: Path, rank: int = 0, world_size: int = 1) -> Seals:
    """This rank's share of the manifest; its files are on disk when this returns."""
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST)
    return {name: _sealed(folder / name, sync=True) for name in names[rank::world_size]}


def write_manifest(folder: Path, parts: Iterable[Seals]) -> None:
    """What all ranks have sealed."""
    whole = {name: entry for part in parts for name, entry in part.items()}
    atomic_write(folder / MANIFEST, json.dumps(whole, indent=1))
    sync(folder / MANIFEST)


def sync(path: Path) -> None:
    """Return when the file, or the list of what is in the folder, is on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        if path.is_dir():
            with suppress(OSError):  # some file systems sync no folders
                os.fsync(file)
        else:
            os.fsync(file)
    finally:
        os.close(file)


def _flaw_of_folder(folder: Path) -> str | None:
    if not (folder / MANIFEST).is_file():
        return f"it has no {MANIFEST}"
    for name, (size, code) in json.loads((folder / MANIFEST).read_text()).items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (folder / name).stat().st_size != size:
            return f"{name} is truncated"
        if _sealed(folder / name) != (size, code):
            return f"{name} is damaged"
    return None


def _sealed(path: Path, *, sync: bool = False) -> tuple[int, int]:
    size, code = 0, 0
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        while chunk := file.read(CHUNK):
            size, code = size + len(chunk), zlib.crc32(chunk, code)
    return size, code
