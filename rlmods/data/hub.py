"""Hugging Face data sets: local files and folders, or names on the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rlmods.data.schema import extra
from rlmods.types import UserError

Rows = Iterable[Mapping[str, Any]]
SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
"""Files that `datasets` reads, and by which of its loaders."""


def load(source: str, split: str) -> Rows:
    """The rows of a file, of a folder (of such files, or one that `save_to_disk` wrote), or of a data set on the hub. `source` may end in
    `:SPLIT` or `:CONFIG:SPLIT`; without it, a folder or name is read at `split`.

    Raises: UserError for a missing package, and where nothing can be loaded."""
    datasets = extra("datasets", "datasets", source)
    advice = "data.train=FILE, data.train=FOLDER or data.train=NAME:SPLIT"
    path = Path(source).expanduser()
    if path.suffix in SUFFIXES:
        if not path.is_file():
            raise UserError(f"{source}: cannot be read (No such file or directory); type data.train=FILE or data.val=FILE")
        return attempt(source, advice, datasets.load_dataset, SUFFIXES[path.suffix], data_files=str(path), split="train")
    name, *more = [source] if path.is_dir() else source.split(":")
    config, split = more[:-1], (more or [split])[-1]
    folder = Path(name).expanduser()
    if any((folder / written).is_file() for written in ("state.json", "dataset_dict.json")):
        saved = attempt(source, advice, datasets.load_from_disk, str(folder))
        return attempt(source, advice, saved.__getitem__, split) if isinstance(saved, dict) else saved
    return attempt(source, advice, datasets.load_dataset, str(folder) if folder.is_dir() else name, *config, split=split)


def attempt(source: str, advice: str, read: Callable[..., Rows], *args: Any, **options: Any) -> Rows:
    """What `read` returns. Raises: UserError with the first line of whatever it raises, and what to type instead."""
    try:
        return read(*args, **options)
    except Exception as e:  # the hub client raises its own, the network's and plain ones
        reason = str(e).strip().split("\n")[0] or type(e).__name__
        raise UserError(f"{source}: cannot be loaded ({reason}); type {advice}") from e
