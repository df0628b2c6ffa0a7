"""Reading of sharded checkpoints (`torch.distributed.checkpoint`) without executing what they hold.

torch reads `.metadata`, and every value that is not a tensor, with the full pickle, which calls
whatever the file names. Here the metadata may name the classes of this format only, and values are
read with `weights_only=True`."""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as load_state

from rlmods.errors import UserError, in_one_line

CLASSES = {
    Path.__module__: ("Path", "PosixPath", "PurePosixPath"),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
}
"""Names that the metadata may hold, by module, beside the data types of torch."""


def load(state: dict[str, Any], folder: Path) -> None:
    """Read the values of `state` from a sharded checkpoint, in place, on all ranks together.

    Raises:
        UserError: as `read_metadata`, or a rank cannot read its values.
    """
    reader = _Reader(folder, read_metadata(folder))
    try:
        load_state(state, storage_reader=reader, planner=_Planner())
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        raise _unreadable(folder, causes[0] if causes else error) from error


def read_metadata(folder: Path) -> Metadata:
    """Return the metadata of a sharded checkpoint.

    Raises:
        UserError: it is missing, broken or holds anything else than metadata.
    """
    try:
        content = (folder / ".metadata").read_bytes()
        metadata = _Unpickler(io.BytesIO(content)).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"{type(metadata).__name__} is not metadata")
    except Exception as error:  # a broken pickle raises almost any
        raise _unreadable(folder, error) from error
    return metadata


def _unreadable(folder: Path, error: BaseException) -> UserError:
    reason = in_one_line(error, 120)
    return UserError(
        f"{folder}: cannot be read as a checkpoint ({reason}), choose another with resume=PATH"
    )


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(vars(torch).get(name), torch.dtype)
        if is_dtype or name in CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f".metadata names {module}.{name}, which no checkpoint needs")


class _Reader(FileSystemReader):
    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self.metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self.metadata.storage_meta = self.metadata.storage_meta or StorageMeta()
        self.metadata.storage_meta.load_id = self.load_id
        return self.metadata


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        checked = io.BytesIO()
        # raises for anything but plain values
        torch.save(torch.load(value, map_location="cpu", weights_only=True), checked)
        checked.seek(0)
        super().load_bytes(read_item, checked)
