"""Measurements of one iteration, and summaries of many."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

STAGES = ("rollout", "reward", "score", "update", "other")
"""`score`: log-probabilities of the old policy and the reference. `update`: forward, backward and
the optimizer step. `other`: the rest of the iteration, from the end of the one before."""


@dataclass(frozen=True)
class Record:
    """One iteration of one side."""

    seconds: float
    """Wall time from the end of the iteration before."""
    stages: Mapping[str, float]
    """Wall time by stage."""
    prompt_lengths: Sequence[int]
    """Tokens of each prompt, every prompt once."""
    response_lengths: Sequence[int]
    """Tokens of each response, the responses to a prompt next to each other."""
    device_bytes: float = 0.0
    """Largest memory allocated on the GPU so far; 0 without one."""

    @property
    def response_tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(self.response_lengths)


def device_bytes() -> float:
    """Return the largest memory allocated on the GPU so far; 0 without one."""
    return float(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0.0


def append(path: Path, record: Record) -> None:
    """Append a record to a JSON Lines file."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def read(path: Path) -> list[Record]:
    """Return the records of a file."""
    return [Record(**json.loads(line)) for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Run:
    """One process of one side."""

    records: Sequence[Record]
    """Measured iterations."""
    peak_bytes: float
    """Largest resident memory of the process tree."""

    @property
    def tokens_per_s(self) -> float:
        """Response tokens over seconds, both summed over the iterations."""
        return sum(r.response_tokens for r in self.records) / sum(r.seconds for r in self.records)


@dataclass(frozen=True)
class Side:
    """All processes of one side."""

    runs: Sequence[Run]

    @property
    def records(self) -> list[Record]:
        """Iterations of all processes."""
        return [record for run in self.runs for record in run.records]

    @property
    def tokens_per_s(self) -> float:
        """Median over the processes."""
        return median(run.tokens_per_s for run in self.runs)

    @property
    def seconds(self) -> float:
        """Median seconds of an iteration."""
        return median(record.seconds for record in self.records)

    @property
    def peak_bytes(self) -> float:
        """Largest memory of any process."""
        return max(run.peak_bytes for run in self.runs)

    @property
    def device_bytes(self) -> float:
        """Largest memory allocated on the GPU by any process; 0 without one."""
        return max(record.device_bytes for record in self.records)

    def stage(self, name: str) -> float:
        """Return the median seconds of a stage."""
        return median(record.stages.get(name, 0.0) for record in self.records)


@dataclass(frozen=True)
class Ratio:
    """A quotient with its spread over the alternations."""

    median: float
    low: float
    high: float


def speedup(ours: Side, other: Side) -> Ratio:
    """Return response tokens per second of `ours` over those of `other`, each process compared with
    the one that ran beside it."""
    ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(ours.runs, other.runs, strict=True)]
    return Ratio(median(ratios), min(ratios), max(ratios))


def check_same_work(ours: Side, other: Side, rows: int) -> None:
    """Check that every iteration of both sides has the same prompts and number of responses.

    Raises:
        ValueError: they differ, and a comparison would be meaningless.
    """
    found = {
        (tuple(sorted(record.prompt_lengths)), len(record.response_lengths))
        for record in (*ours.records, *other.records)
    }
    if len(found) != 1 or next(iter(found))[1] != rows:
        raise ValueError(
            f"iterations differ in their prompts or in the number of responses ({rows}): "
            f"{sorted(found)}"
        )
