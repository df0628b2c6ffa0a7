"""Logs of other trainers and trackers, as metrics by step and responses.

A format is a file name, a reader, and a table of metric names. Files are parsed as data: pickles,
such as `training_args.bin`, are not opened."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, TypeAlias

from rlmods.errors import UserError, in_one_line
from rlmods.run.files import message_text, read_rows
from rlmods.run.saved import is_value

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Metrics:
    """Numbers of a step, by their names there. `wall_s`: seconds, from any start."""

    step: int
    values: Mapping[str, float]

    @classmethod
    def of(cls, step: Any, logged: Mapping[str, Any]) -> Metrics:
        """Return the numbers among what was logged."""
        return cls(int(step), {name: x for name, x in logged.items() if is_value(x)})


@dataclass(frozen=True)
class Responses:
    """Responses of a step, as rows of a sample log without `id`, `tokens` and `finish`."""

    step: int
    rows: Sequence[Row]
    kind: str = "iteration"
    """Or `validation`."""


Reader: TypeAlias = Callable[[Path], Iterator[Metrics | Responses]]

TRL = {
    "train/rewards/(.+?)/mean": r"train/reward/\1",
    "train/reward_std": "train/batch_reward_std",  # of all responses; ours: within groups
    "train/frac_reward_zero_std": "train/flat_group_fraction",
    "train/completions/mean_length": "train/response_tokens",
    "train/completions/clipped_ratio": "train/truncated_fraction",
    "train/clip_ratio/low_mean": "train/clip_fraction/low",
    "train/clip_ratio/high_mean": "train/clip_fraction/high",
    "train/kl": "train/kl_ref",
    "train/learning_rate": "train/lr",
    "train/sampling/sampling_logp_difference/mean": "train/sampler_logprob_gap",
    "train/step_time": "time/iteration_s",
    "eval/reward": "val/reward",
    "eval/rewards/(.+?)/mean": r"val/reward/\1",
    "eval/completions/mean_length": "val/response_tokens",
    "eval/completions/clipped_ratio": "val/truncated_fraction",
}
VERL = {
    "critic/score/mean": "train/reward",
    "critic/vf_loss": "train/value_loss",
    "critic/vf_explained_var": "train/explained_variance",
    "actor/pg_loss": "train/loss",
    "actor/entropy": "train/entropy",
    "actor/kl_loss": "train/kl_ref",
    "actor/ppo_kl": "train/kl_old",
    "actor/grad_norm": "train/grad_norm",
    "actor/lr": "train/lr",
    "response_length/mean": "train/response_tokens",
    "response_length/clip_ratio": "train/truncated_fraction",
    "val-core/.+?/mean@([0-9]+)": r"val/mean@\1",
    "timing_s/gen": "time/rollout_s",
    "timing_s/old_log_prob": "time/score_s",
    "timing_s/reward": "time/reward_s",
    "timing_s/step": "time/iteration_s",
    "timing_s/update_actor": "time/update_s",
}
PRIME_RL = {
    "train/agg/effective/.+?/reward/mean": "train/reward",
    "train/agg/effective/.+?/is_truncated/mean": "train/truncated_fraction",
    "train/agg/effective/num_output_tokens/mean": "train/response_tokens",
    "entropy/all/mean": "train/entropy",
    "loss/mean": "train/loss",
    "optim/grad_norm": "train/grad_norm",
    "optim/lr": "train/lr",
    "eval/.+?/effective/.+?/avg@([0-9]+)": r"val/mean@\1",
    "eval/.+?/effective/.+?/pass@([0-9]+)": r"val/pass@\1",
    "time/step": "time/iteration_s",
}
NEMO_RL = {
    "train/approx_entropy": "train/entropy",
    "train/kl_penalty": "train/kl_ref",
    "train/mean_gen_tokens_per_sample": "train/response_tokens",
    "train/probs_ratio_max": "train/ratio_max",
    "validation/accuracy": "val/accuracy",
    "validation/avg_length": "val/response_tokens",
    "timing/train/generation": "time/rollout_s",
    "timing/train/reward_calculation": "time/reward_s",
    "timing/train/policy_and_reference_logprobs": "time/score_s",
    "timing/train/policy_training": "time/update_s",
    "timing/train/total_step_time": "time/iteration_s",
}
NAMES = TRL | VERL | PRIME_RL | NEMO_RL
"""Their name, a regular expression, and ours. Trackers log names of any trainer."""
STEPS = ("train/global_step", "global_step", "step", "_step", "Step")
"""Columns of a table that count steps, the first that it has."""


def our_name(theirs: str, slash: str = "/") -> str:
    """Return our name of a metric. Unknown ones keep theirs, below `train/` without a slash.
    `slash`: pattern of the slashes in `theirs`."""
    for pattern, ours in NAMES.items():
        match = re.fullmatch(pattern.replace("/", slash), theirs)
        if match is not None:
            return match.expand(ours)
    return theirs if "/" in theirs or theirs == "wall_s" else f"train/{theirs}"


def trl_state(path: Path) -> Iterator[Metrics]:
    """Read `trainer_state.json` of a Hugging Face `Trainer`, with the names it logs to trackers."""
    for entry in json.loads(path.read_text())["log_history"]:
        step = entry.pop("step")
        values = {}
        for name, value in entry.items():
            phase = "eval" if name.startswith("eval_") else "train"
            values[f"{phase}/{name.removeprefix('eval_')}"] = value
        yield Metrics.of(step, values)


def trl_completions(path: Path) -> Iterator[Responses]:
    """Read `completions_*.parquet` of TRL (`log_completions=True`). Columns of numbers are
    rewards."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{path}: needs pyarrow, type pip install pyarrow") from error
    rows = []
    step = 0
    for entry in parquet.ParquetFile(path).read().to_pylist():
        step = int(entry.pop("step"))
        row: Row = {"prompt": message_text(entry.pop("prompt"))}
        row["advantage"] = entry.pop("advantage")
        row["response"] = _text(entry.pop("completion"))
        terms = []
        for name, value in entry.items():
            if is_value(value):
                terms.append(value)
            row[f"{'reward' if is_value(value) else 'trl'}/{name}"] = value
        if len(terms) == 1:  # the weights of several are not logged
            row["reward"] = terms[0]
        rows.append(row)
    yield Responses(step, rows)


def verl_metrics(path: Path) -> Iterator[Metrics]:
    """Read the file of verl's `trainer.logger=file`."""
    for row in read_rows(path):
        yield Metrics.of(row["step"], row["data"])


def verl_responses(path: Path) -> Iterator[Responses]:
    """Read a file of verl's `trainer.rollout_data_dir` or `trainer.validation_data_dir`. They have
    the same columns; the latter's folder has `val` in its name."""
    kind = "validation" if "val" in path.parent.name else "iteration"
    rows = []
    for entry in read_rows(path):
        row = {"prompt": entry["input"], "response": entry["output"], "reward": entry["score"]}
        row["answer"] = entry.get("gts")
        if "acc" in entry:
            row["correct"] = bool(entry["acc"])
        rows.append(row)
    yield Responses(int(path.stem), rows, kind)


def prime_rl_metrics(path: Path) -> Iterator[Metrics]:
    """Read `metrics.jsonl` of prime-rl's trainer or orchestrator."""
    for row in read_rows(path):
        values = {name: value for name, value in row.items() if name not in ("step", "time")}
        yield Metrics.of(row["step"], values | {"wall_s": row["time"]})


def nemo_rl_responses(path: Path) -> Iterator[Responses]:
    """Read `train_data_step*.jsonl` or `val_data_step*.jsonl` of NeMo RL. Each column has a list
    with the value of one response."""
    rows = []
    for entry in read_rows(path):
        *prompt, response = entry["content"][0]
        row: Row = {"prompt": "\n".join(map(_text, prompt)), "response": _text(response)}
        row["reward"] = entry["rewards"][0]
        if "token_loss_mask" in entry:
            trained = entry["token_loss_mask"][0]
            row["tokens"] = list(compress(entry["token_ids"][0], trained))
            row["advantage"] = next(compress(entry["advantages"][0], trained), None)
        rows.append(row)
    kind = "validation" if path.name.startswith("val") else "iteration"
    yield Responses(int(path.stem.rpartition("step")[2]), rows, kind)


def wandb_csv(path: Path) -> Iterator[Metrics]:
    """Read a table of Weights & Biases: the history of a run, `run.scan_history()` as CSV, or a
    chart of one run, whose columns are `RUN - METRIC`, `RUN - METRIC__MIN` and `__MAX`."""
    rows = _csv_rows(path)
    columns = list(rows[0]) if rows else []
    step = next((name for name in STEPS if name in columns), "Step")
    runs = {name.rpartition(" - ")[0] for name in columns if " - " in name}
    if len(runs) > 1:
        raise UserError(f"{path}: has {len(runs)} runs, {', '.join(sorted(runs))}: export one")
    for row in rows:
        values = {}
        for name, text in row.items():
            if name not in STEPS and not name.endswith(("__MIN", "__MAX")):
                values[name.rpartition(" - ")[2]] = _number(text)
        values["wall_s"] = values.pop("_runtime", None)
        values.pop("_timestamp", None)
        if row[step]:
            yield Metrics.of(float(row[step]), values)


def tensorboard_csv(path: Path) -> Iterator[Metrics]:
    """Read a curve of TensorBoard, `run-RUN-tag-TAG.csv`. Browsers save the slashes of the tag as
    underscores."""
    tag = re.sub("^(train|val)_", r"\1/", path.stem.rpartition("-tag-")[2])
    name = our_name(tag, "[/_]")
    for row in _csv_rows(path):
        values = {name: _number(row["Value"]), "wall_s": _number(row["Wall time"])}
        yield Metrics.of(row["Step"], values)


def tensorboard_events(path: Path) -> Iterator[Metrics]:
    """Read the scalars of an event file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            yield Metrics.of(event.step, {tag: event.value, "wall_s": event.wall_time})


FORMATS: tuple[tuple[str, str, Reader], ...] = (
    ("trl", "trainer_state.json", trl_state),
    ("trl", "checkpoint-*/trainer_state.json", trl_state),
    ("trl", "completions/completions_*.parquet", trl_completions),
    ("prime-rl", "metrics.jsonl", prime_rl_metrics),
    ("nemo-rl", "train_data_step*.jsonl", nemo_rl_responses),
    ("nemo-rl", "val_data_step*.jsonl", nemo_rl_responses),
    ("verl", "[0-9]*.jsonl", verl_responses),
    ("verl", "*.jsonl", verl_metrics),
    ("tensorboard", "run-*-tag-*.csv", tensorboard_csv),
    ("wandb", "*.csv", wandb_csv),
    ("nemo-rl", "tensorboard/events.out.tfevents.*", tensorboard_events),
    ("tensorboard", "events.out.tfevents.*", tensorboard_events),
)
"""What wrote a file, its path in a folder that is given, and its reader. The first that fits reads
it."""


def find(source: Path) -> dict[Path, tuple[str, Reader]]:
    """Return the files of a folder (or the file) that have a format, with the name of the format
    and its reader.

    Raises:
        UserError: there are none, or logs of several runs.
    """
    found: dict[Path, tuple[str, Reader]] = {}
    for name, pattern, reader in FORMATS:
        is_one = source.is_file() and source.match(Path(pattern).name)
        for path in [source] if is_one else sorted(source.glob(pattern)):
            found.setdefault(path, (name, reader))
    if not found:
        problem = "there is no such file or folder"
        if source.exists():
            problem = f"it has none of {', '.join(pattern for _, pattern, _ in FORMATS)}"
        raise UserError(f"{source}: no log of another trainer; {problem}")
    runs = {}
    for path, (_, reader) in found.items():
        if reader in (verl_metrics, tensorboard_csv):
            runs[path.stem.partition("-tag-")[0]] = path
    if len(runs) > 1:
        raise UserError(f"{source}: has {len(runs)} runs: type files of one, such as {path}")
    return found


def read(source: Path) -> tuple[str, list[Metrics | Responses]]:
    """Return the name of the format of a folder or file, and its contents.

    Raises:
        UserError: there is no file of a known format, or one is broken.
    """
    found = find(source)
    contents: list[Metrics | Responses] = []
    for path, (_, reader) in found.items():
        try:
            contents += reader(path)
        except (ValueError, KeyError, TypeError, AttributeError, OSError, IndexError) as error:
            reason = in_one_line(repr(error), 120)
            raise UserError(
                f"{path}: cannot be read ({reason}): mend it, or move it away"
            ) from error
    return next(iter(found.values()))[0], contents


def _text(said: object) -> str:
    """Return a completion or message as text: messages by role unless there is one only."""
    messages = said if isinstance(said, list) else [said]
    if len(messages) == 1:
        message = messages[0]
        return str(message.get("content") if isinstance(message, dict) else message)
    return message_text(messages)


def _csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
