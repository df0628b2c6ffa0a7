"""Rows of JSON Lines files, other files and folders, and data sets on the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rlmods.data.schema import import_extra, type_name
from rlmods.errors import UserError
from rlmods.run.hub import check_hub

Row = dict[str, Any]
"""Values by column."""
Rows = Iterable[Mapping[str, Any]]
LOADERS = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
"""Loader of the `datasets` package by file suffix."""
ADVICE = "data.train=FILE, data.train=FOLDER or data.train=NAME:SPLIT"


class NumberedRow(NamedTuple):
    """A row and where it stands."""

    number: int
    """Line of a JSON Lines file, else the position in the split; from 1 on."""
    location: str
    """File and line, for error messages."""
    values: Row


def read_rows(source: str, split: str, advice: str = ADVICE) -> Iterator[NumberedRow]:
    """Yield the rows of a source: a file, a folder of files, a folder written by `save_to_disk`, or
    a data set on the Hub. The name of a folder or data set may end in `:SPLIT` or `:CONFIG:SPLIT`;
    without it, `split` is read, and "test" for "val".

    Args:
        advice: what to type if the source cannot be read.

    Raises: UserError for a missing package, a source that cannot be read and broken JSON."""
    suffix = Path(source).suffix
    if suffix == ".jsonl" or (Path(source).expanduser().is_file() and suffix not in LOADERS):
        yield from _read_jsonl(source, advice)
        return
    for number, row in enumerate(_load(source, "test" if split == "val" else split, advice), 1):
        yield NumberedRow(number, f"{source} ({split} row {number})", dict(row))


def _read_jsonl(source: str, advice: str) -> Iterator[NumberedRow]:
    """Yield the rows of a JSON Lines file. Blank lines are skipped."""
    try:
        content = Path(source).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror}); type {advice}") from error
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        location = f"{source}:{number}"
        try:
            row = json.loads(line.decode(), parse_constant=_reject_constant)
        except UnicodeDecodeError as error:
            raise UserError(f"{location}: not UTF-8 text ({error.reason})") from error
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{location}: broken JSON ({error}); the file needs one whole object per line"
            ) from error
        if not isinstance(row, dict):
            raise UserError(
                f"{location}: must be one object with named columns per line, found "
                f"{type_name(row)}"
            )
        yield NumberedRow(number, location, row)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _load(source: str, split: str, advice: str) -> Rows:
    """Load rows with the `datasets` package."""
    datasets = import_extra("datasets", "datasets", source)

    def call(loader: Callable[..., Rows], *args: str, **options: str) -> Rows:
        try:
            return loader(*args, **options)
        except Exception as error:
            # the Hub client raises its own exceptions, network errors and built-in ones
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise UserError(f"{source}: cannot be loaded ({reason}); type {advice}") from error

    path = Path(source).expanduser()
    if path.suffix in LOADERS:
        if not path.is_file():
            raise UserError(f"{source}: cannot be read (no such file); type {advice}")
        kind = LOADERS[path.suffix]
        return call(datasets.load_dataset, kind, data_files=str(path), split="train")
    name, *config = [source] if path.is_dir() else source.split(":")
    if config:
        split = config.pop()
    folder = Path(name).expanduser()
    if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
        saved = call(datasets.load_from_disk, str(folder))
        return call(saved.__getitem__, split) if isinstance(saved, dict) else saved
    check_hub(name)
    place = str(folder.resolve()) if folder.is_dir() else name
    return call(datasets.load_dataset, place, *config, split=split)
