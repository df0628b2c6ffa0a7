"""Helpers shared by the commands other than `train.py`: errors, the settings of a saved run,
resumable output files and progress."""

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import hydra
import torch
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from rich import progress as bars
from rich.console import Console

from rlmods.cli.console import plain_errors, silence_libraries
from rlmods.config import (
    compose,
    equivalents,
    plugins,
    schema as schema,  # registers settings with Hydra
)
from rlmods.config.instantiate import parse_settings
from rlmods.config.options import CONF
from rlmods.config.overrides import explain_override
from rlmods.config.received import read_received
from rlmods.config.rules import GRADING_RULES, RULES
from rlmods.config.run_spec import RunSpec
from rlmods.distributed.trainer import (
    MIXED,
    PRECISION_ADVICE,
    PRECISIONS,
    choose,
    has_fast_bfloat16,
)
from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.policy.hf import exported
from rlmods.protocols import ChecksPolicy, FitsRun, RunSize
from rlmods.rollout.turns import engine_of
from rlmods.run import (
    dumps,
    name,
    secrets as secrets,  # registers ${oc.env:NAME}
)
from rlmods.run.files import JsonlWriter, read_rows
from rlmods.run.resume import recorded_precision
from rlmods.run.settings import Override, leaves
from rlmods.training.lengths import check_room, longest_row, short_prompts
from rlmods.types import Prompt

S = TypeVar("S")
TRUST = "--trust"
"""Flag among the overrides: use the settings of a saved run unchecked."""
INTERRUPTED = "interrupted: finished rows are saved; run the same command again to continue"
PROGRESS_INTERVAL_S = 10.0
"""Time between two lines of progress where stderr is not a terminal."""


def command(
    action: Callable[[], dict[str, Any] | list[dict[str, Any]] | str],
    indent: int | None = None,
    interrupt_message: str = "interrupted",
) -> None:
    """Run `action` and print its result on stdout: text as it is (nothing if it is empty),
    dictionaries as JSON. A user's mistake or Ctrl-C prints one line and exits with a nonzero
    status."""
    try:
        with plain_errors():
            silence_libraries()
            plugins.register()
            name.register()
            result = action()
            text = result if isinstance(result, str) else dumps(result, indent=indent)
            if text:
                print(text, flush=True)
    except KeyboardInterrupt:
        sys.exit(interrupt_message)


def find_policy(source: str, overrides: Sequence[str] = ()) -> tuple[str | Path, Path | None]:
    """Return the model to load for a run, a directory or a hub name, and the path of the run's
    `config.yaml` (None if it is not a run).

    Raises:
        UserError: the run has not exported its policy, or an override selects another policy.
    """
    for override in overrides:
        if Override.parse(override).top == "policy":
            raise UserError(f"{override}: the policy is {source}; remove one of the two")
    saved = Path(source).expanduser() / "config.yaml"
    return exported(source), saved if saved.is_file() else None


def configuration(
    overrides: Sequence[str],
    *,
    saved: Path | None = None,
    run_keys: Sequence[str] = (),
    settings: type[Any] | None = None,
) -> DictConfig:
    """Return the configuration that the overrides select.

    Args:
        saved: `config.yaml` of a run, which provides the groups and settings in `run_keys` that are
        not among the overrides.
        settings: dataclass whose fields are added as top-level keys.

    Raises:
        UserError: Hydra rejects an override, or the run's configuration is not safe to use
        (`rlmods.config.received`).
    """
    return _composed(overrides, saved, run_keys, settings)[0]


def _composed(
    overrides: Sequence[str],
    saved: Path | None,
    run_keys: Sequence[str],
    settings: type[Any] | None,
) -> tuple[DictConfig, dict[str, str]]:
    """Return the configuration, and the option of each group."""
    extra = [
        f"+{field.name}={'null' if field.default is None else field.default}"
        for field in (fields(settings) if settings else ())
    ]
    trust = TRUST in overrides
    overrides = [text for text in overrides if text != TRUST]
    equivalents.reject_flags(overrides, ())
    overridden = {Override.parse(text).key for text in overrides}
    name = "train"
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            if saved is not None:
                name = "saved_run"
                merged = _config_with_run(saved, set(run_keys) - overridden, overridden, trust)
                ConfigStore.instance().store(name, merged)
            config = hydra.compose(name, [*extra, *overrides], return_hydra_config=True)
    except (HydraException, ValueError) as error:
        user_error = explain_override(error)
        if user_error is None:
            raise
        raise user_error from error
    with open_dict(config):
        choices = config.pop("hydra").runtime.choices
    return config, dict(choices)


def take_settings(config: DictConfig, kind: type[S]) -> S:
    """Return a command's own settings, and remove them from the configuration."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    with open_dict(config):
        values = {name: config.pop(name) for name in names}
    return parse_settings(OmegaConf.create(values), "", kind)


def usable_prompts(
    policy: Policy,
    rollout: Any,
    prompts: Sequence[Prompt],
    config: DictConfig,
    validation_tokens: int | None = None,
) -> Sequence[Prompt]:
    """Return the prompts with at most `data.max_prompt_tokens` tokens. `validation_tokens`: limit
    on a response of validation.

    Raises:
        UserError: the rollout cannot sample from the policy, all prompts are too long, or one
        leaves no room for a response.
    """
    if isinstance(rollout, ChecksPolicy):
        rollout.check_policy(policy)
    known = config.data.get("max_prompt_tokens")
    kept = short_prompts(policy, prompts, known)
    filters = "max_prompt_tokens" in config.data
    check_room(
        policy, rollout, kept, filters=filters, validation_tokens=validation_tokens, known=known
    )
    policy.warn_of_control_tokens((), kept)
    policy.warn_of_unknown_characters((), kept)
    return kept


def set_precision(policy: Policy, config: DictConfig, saved: Path | None) -> torch.autocast:
    """Return the context of `trainer.precision` as it was typed. auto: as the run had it that was
    `saved`, else as `choose` finds it. `config` gets its name.

    Raises:
        UserError: there is no such precision.
    """
    typed = str(config.trainer.precision)
    if typed not in ("auto", *PRECISIONS):
        raise UserError(f"trainer.precision={typed}: {PRECISION_ADVICE}")
    device = policy.device.type
    recorded = None if saved is None or typed != "auto" else recorded_precision(saved)
    chosen = choose(policy, device).name if typed == "auto" else typed
    precision = recorded or chosen
    config.trainer.precision = precision
    name = MIXED.get(precision)
    is_fast = has_fast_bfloat16(device)[0] if name == "bfloat16" else device == "cuda"
    if recorded and name and not is_fast:
        warnings.warn(
            f"the run was trained with trainer.precision={precision}, which is slow here: "
            "trainer.precision=32-true is faster",
            stacklevel=2,
        )
    dtype = None if name is None else getattr(torch, name)
    return torch.autocast(device, dtype, enabled=name is not None)


def fit_engine(
    policy: Policy,
    rollout: Any,
    sources: Sequence[Sequence[Prompt]],
    config: DictConfig,
    max_tokens: int = 0,
) -> None:
    """Let an engine with weights of its own choose the settings that are null, for responses to
    these prompts of at most `max_tokens` tokens, or of the rollout's limit if this is more."""
    engine = engine_of(rollout)
    if isinstance(engine, FitsRun):
        longest = longest_row(policy, sources, rollout, max_tokens)
        num_rows = max(map(len, sources)) * max(config.batch.samples, config.validation.samples)
        engine.fit_run(policy, RunSize(config.trainer.precision, num_rows, longest, 0))


def compose_run(
    overrides: Sequence[str], kind: type[S], *, trains: bool = True
) -> tuple[RunSpec, S]:
    """Compose the run that the overrides select, and return it with the command's own settings.

    Args:
        trains: whether the run is to be trained. If not, only data and reward have to fit together,
            and no rows are held out unless the overrides say so.

    Raises:
        UserError: an invalid override, or a run that would not start.
    """
    config, choices = _composed(overrides, None, (), kind)
    settings = take_settings(config, kind)
    own = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    run_overrides = [text for text in overrides if Override.parse(text).key not in own]
    if not trains:
        typed = map(Override.parse, run_overrides)
        compose.hold_out_nothing(config.data, "data", list(typed))
    rules = RULES if trains else GRADING_RULES
    return compose.run_spec(config, choices, run_overrides, rules), settings


def silent_refusal(overrides: Sequence[str]) -> str:
    """Return why the run that the overrides select would not start, "" if it would."""
    silence_libraries()
    plugins.register()
    name.register()
    try:
        config, choices = _composed(overrides, None, (), None)
        compose.run_spec(config, choices, overrides)
    except UserError as error:
        return str(error)
    return ""


def _config_with_run(saved: Path, keys: set[str], typed: set[str], trust: bool) -> dict[str, Any]:
    """Return the primary configuration with the groups and settings in `keys` from a run, so that
    overrides apply to the run's values."""
    run = read_received(saved, sorted(keys), typed, trust=trust)
    primary = OmegaConf.to_container(OmegaConf.load(CONF / "train.yaml"))
    assert isinstance(primary, dict)
    validation = run.get("validation")
    if isinstance(validation, dict) and (
        validation.get("reward") is None or "validation.reward" in typed
    ):
        validation.pop("reward", None)  # it would take the place of an option that is typed
    keys = keys & run.keys()
    defaults = []
    for entry in primary.pop("defaults"):
        is_replaced = isinstance(entry, dict) and keys & entry.keys()
        if entry != "_self_" and not is_replaced:
            defaults.append(entry)
    return {"defaults": [*defaults, "_self_"], **primary, **run}


INPUT = ("id", "prompt", "answer", "candidates")
"""Columns of an input row that determine its output."""


class Output:
    """Resumable output: rows with an `id` in the file `path`, and dropped rows in
    `<path>.dropped.jsonl`. Existing rows are read back.

    `provenance`, the settings that determine the rows, is part of every row. Raises: UserError if
    an existing row has another provenance; nothing is written then."""

    def __init__(self, path: Path, provenance: Mapping[str, Any]) -> None:
        self.path = path
        self.provenance: dict[str, Any] = json.loads(dumps(provenance))
        self._writers = {True: JsonlWriter(path), False: JsonlWriter(dropped_path(path))}
        self.kept = _read_by_id(path)
        self.dropped = _read_by_id(dropped_path(path))
        now = dict(leaves(self.provenance))
        for row in self.rows.values():
            before = dict(leaves({key: row.get(key) for key in self.provenance}))
            changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
            if changed:
                changes = [f"{key}={before.get(key)} (now {now.get(key)})" for key in changed[:6]]
                raise UserError(
                    f"{path} was written with {', '.join(changes)}: type the old settings, or "
                    "another out=FILE"
                )

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Kept and dropped rows by id."""
        return self.dropped | self.kept

    def missing(self, inputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return the ids of the inputs that have no row yet. A row repeats the columns `INPUT` of
        its input.

        Raises:
            UserError: an input has changed since its row was written.
        """
        done = self.rows
        for key, given in inputs.items():
            now = {name: given[name] for name in INPUT if name in given}
            before = {name: done.get(key, given).get(name) for name in now}
            if dumps(before) != dumps(now):
                raise UserError(
                    f"{self.path}: the input of row {key} has changed since it was written: type "
                    "another out=FILE"
                )
        return [key for key in inputs if key not in done]

    def add(self, row: dict[str, Any], *, keep: bool) -> None:
        """Write a row to the file of kept or of dropped rows."""
        row = row | self.provenance
        self._writers[keep].append(row)
        (self.kept if keep else self.dropped)[row["id"]] = row


def dropped_path(path: Path) -> Path:
    """Return the path of the file of dropped rows."""
    return path.with_name(f"{path.name}.dropped.jsonl")


def _read_by_id(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by their id."""
    rows = {}
    for row in read_rows(path):
        if not isinstance(row.get("id"), str):
            raise UserError(
                f'{path}: a row has no "id", so this command did not write the file; choose '
                "another out=FILE"
            )
        rows[row["id"]] = row
    return rows


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr, as a bar on a terminal and as occasional lines elsewhere. Yields a
    function that takes the number done."""
    console = Console(stderr=True)
    last_print = time.monotonic()
    columns = (*bars.Progress.get_default_columns(), bars.MofNCompleteColumn())
    with bars.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)

        def update(num_done: int) -> None:
            nonlocal last_print
            bar.update(task, completed=num_done)
            if not console.is_terminal and time.monotonic() - last_print > PROGRESS_INTERVAL_S:
                last_print = time.monotonic()
                print(f"{description} {num_done}/{total}", file=sys.stderr)

        yield update
