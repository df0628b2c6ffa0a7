"""What the commands beside `train.py` share: plain errors, the settings of a saved run, and output that goes on where it stopped."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from rich import progress as bars
from rich.console import Console

from rlmods.cli.main import plain_errors, quiet
from rlmods.config import plugins
from rlmods.config.options import CONF
from rlmods.config.overrides import explain_override
from rlmods.policy.hf import exported
from rlmods.run import dumps, name
from rlmods.run.jsonl import JsonlWriter, read_rows
from rlmods.types import UserError

KEPT = "interrupted: what is done is kept, and the same command goes on from there"
PATIENCE_S = 10.0
"""Between two lines of progress, where there is no terminal to draw a bar on."""


def command(
    arguments: Sequence[str],
    manual: str | None,
    action: Callable[[], dict[str, Any] | str],
    indent: int | None = None,
    ended: str = "interrupted",
) -> None:
    """Prints what the action returns on stdout, as JSON if it is no text. A user's mistake and Ctrl-C (`ended`) are one line and a failing
    exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(manual)
        sys.exit(0 if arguments else 2)
    try:
        with plain_errors():
            quiet()
            plugins.register()
            name.register()
            said = action()
            print(said if isinstance(said, str) else dumps(said, indent=indent))
    except KeyboardInterrupt:
        sys.exit(ended)


def find_policy(source: str, overrides: Sequence[str] = ()) -> tuple[str | Path, Path | None]:
    """What to load of a run, a directory or a hub name; and the configuration of the run, if it is one.

    Raises:
        UserError: a run that has not exported its policy, or an override that names another policy.
    """
    for typed in overrides:
        if re.match(r"[+~]*policy\b", typed):
            raise UserError(f"{typed}: the policy is {source}; drop one of the two")
    saved = Path(source).expanduser() / "config.yaml"
    return exported(source), saved if saved.is_file() else None


def configuration(
    overrides: Sequence[str], *, saved: Path | None = None, of_the_run: Sequence[str] = (), settings: type[Any] | None = None
) -> DictConfig:
    """The configuration that the overrides choose. Groups `of_the_run` that are not among them are those of the `saved` one, and the fields
    of `settings` are keys like any other.

    Raises:
        UserError: what Hydra says of an override.
    """
    extra = [f"+{f.name}={'null' if f.default is None else f.default}" for f in fields(settings)] if settings else []
    typed = {override.lstrip("+~").split("=")[0] for override in overrides}
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            if saved is not None:
                ConfigStore.instance().store("of_a_run", _of_a_run(saved, set(of_the_run) - typed))
            config = hydra_compose("train" if saved is None else "of_a_run", [*extra, *overrides])
    except (HydraException, ValueError) as error:
        if (mistake := explain_override(error)) is None:
            raise
        raise mistake from error
    assert isinstance(config, DictConfig)
    return config


def _of_a_run(saved: Path, keys: set[str]) -> dict[str, Any]:
    """The primary configuration, in which these groups and settings are those of a run: overrides then mean what they mean in training."""
    usual, run = (OmegaConf.to_container(OmegaConf.load(path)) for path in (CONF / "train.yaml", saved))
    assert isinstance(usual, dict)
    assert isinstance(run, dict)
    groups = [entry for entry in usual.pop("defaults") if entry != "_self_" and not (isinstance(entry, dict) and keys & entry.keys())]
    return {"defaults": [*groups, "_self_"], **usual, **{key: run[key] for key in keys if key in run}}


class Output:
    """Rows with an `id`, a file of those to keep and beside it, `<file>.dropped.jsonl`, one of those not to: what took work is done once.

    `facts`, what decides the rows, is part of each of them. Raises: UserError where a row is there that began with other facts; nothing is
    written then.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path
        self.facts: dict[str, Any] = json.loads(dumps(facts))
        self._writers = {True: JsonlWriter(path), False: JsonlWriter(dropped_beside(path))}
        self.kept, self.dropped = ({_id(row, path): row for row in read_rows(writer.path)} for writer in self._writers.values())
        for row in [*self.kept.values(), *self.dropped.values()][:1]:
            before, now = (dict(_leaves({key: given.get(key) for key in self.facts})) for given in (row, self.facts))
            differ = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
            if differ:
                changes = [f"{key}={before.get(key)} (now {now.get(key)})" for key in differ]
                raise UserError(f"{path} began with {', '.join(changes[:6])}: type the same to go on with it, or another out=FILE")

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Kept and dropped, by id."""
        return self.dropped | self.kept

    def add(self, row: dict[str, Any], *, keep: bool) -> None:
        whole = row | self.facts
        self._writers[keep].append(whole)
        (self.kept if keep else self.dropped)[row["id"]] = whole


def dropped_beside(path: Path) -> Path:
    """Where the dropped rows are."""
    return path.with_name(f"{path.name}.dropped.jsonl")


def _id(row: Mapping[str, Any], path: Path) -> str:
    if not isinstance(row.get("id"), str):
        raise UserError(f'{path}: a row without an "id", so this command has not made it; choose another out=FILE')
    return str(row["id"])


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Tell it how many of `total` are done. It speaks on stderr: a bar on a terminal, elsewhere a line now and then."""
    console, last = Console(stderr=True), time.monotonic()
    columns = (*bars.Progress.get_default_columns(), bars.MofNCompleteColumn())
    with bars.Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task(what, total=total)

        def tell(done: int) -> None:
            nonlocal last
            shown.update(task, completed=done)
            if not console.is_terminal and time.monotonic() - last > PATIENCE_S:
                last = time.monotonic()
                print(f"{what} {done}/{total}", file=sys.stderr)

        yield tell
