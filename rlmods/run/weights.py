"""Fingerprints of the weights in a checkpoint, read without torch."""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

Fingerprint = tuple[Any, ...]
"""CRC32 of the storage, then type, offset, shape and strides of the tensor."""


class _Call:
    """What a checkpoint would call to build an object, kept instead of being called."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class _Reader(pickle.Unpickler):
    """Read the index of a checkpoint. Nothing that it names is imported or executed."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        return type(name, (_Call,), {})

    def persistent_load(self, storage: Any) -> Any:
        return storage


def read_fingerprints(path: Path) -> dict[str, Fingerprint]:
    """Return a fingerprint of each tensor of `state_dict` in a checkpoint, by name. Equal
    fingerprints mean equal bytes.

    torch writes a zip archive: an index, `data.pkl`, and a file for each storage with its CRC32.
    Only the index is read.

    Raises:
        OSError, ValueError, KeyError, zipfile.BadZipFile, pickle.UnpicklingError: the file is
            damaged or not a checkpoint.
    """
    with zipfile.ZipFile(path) as archive:
        crc = {entry.filename.split("/", 1)[1]: entry.CRC for entry in archive.infolist()}
        [index] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        content = _Reader(io.BytesIO(archive.read(index))).load()
    fingerprints = {}
    for name, tensor in content["state_dict"].items():
        if isinstance(tensor, _Call):
            storage, *layout = tensor.arguments
            _, kind, key, *_ = storage
            fingerprints[name] = (crc[f"data/{key}"], kind.__name__, *layout[:3])
    return fingerprints
