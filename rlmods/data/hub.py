"""Hugging Face data sets: local files and folders, or names on the Hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rlmods.data.schema import import_extra
from rlmods.errors import UserError
from rlmods.run.hub import check_hub

Rows = Iterable[Mapping[str, Any]]
SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
"""Loader of the `datasets` package by file suffix."""


def load_rows(source: str, split: str) -> Rows:
    """Load the rows of a file, of a folder (of such files, or written by `save_to_disk`), or of a
    data set on the Hub. `source` may end in `:SPLIT` or `:CONFIG:SPLIT`; without it, `split` of a
    folder or Hub data set is read.

    Raises: UserError for a missing package, and if nothing can be loaded."""
    datasets = import_extra("datasets", "datasets", source)
    advice = "data.train=FILE, data.train=FOLDER or data.train=NAME:SPLIT"
    path = Path(source).expanduser()
    if path.suffix in SUFFIXES:
        if not path.is_file():
            raise UserError(
                f"{source}: cannot be read (No such file or directory); type data.train=FILE "
                "or data.val=FILE"
            )
        return call_loader(
            source,
            advice,
            datasets.load_dataset,
            SUFFIXES[path.suffix],
            data_files=str(path),
            split="train",
        )
    name, *suffixes = [source] if path.is_dir() else source.split(":")
    config, split = suffixes[:-1], (suffixes or [split])[-1]
    folder = Path(name).expanduser()
    if any((folder / marker).is_file() for marker in ("state.json", "dataset_dict.json")):
        saved = call_loader(source, advice, datasets.load_from_disk, str(folder))
        return (
            call_loader(source, advice, saved.__getitem__, split)
            if isinstance(saved, dict)
            else saved
        )
    check_hub(name)
    return call_loader(
        source,
        advice,
        datasets.load_dataset,
        str(folder) if folder.is_dir() else name,
        *config,
        split=split,
    )


def call_loader(
    source: str, advice: str, loader: Callable[..., Rows], *args: Any, **options: Any
) -> Rows:
    """Return `loader(*args, **options)`. Raises: UserError with the first line of any exception,
    and with what to type instead."""
    try:
        return loader(*args, **options)
    except Exception as e:
        # the Hub client raises its own exceptions, network errors and built-in ones
        reason = str(e).strip().split("\n")[0] or type(e).__name__
        raise UserError(f"{source}: cannot be loaded ({reason}); type {advice}") from e
