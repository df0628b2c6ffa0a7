"""Heartbeats that ranks exchange through a store, and the detection of lost and hanging ranks."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning import Trainer
from torch.distributed import TCPStore  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Heartbeat:
    """State of one rank."""

    rank: int
    host: str
    pid: int
    count: int = 0
    """Heartbeats published so far."""
    progress: int = 0
    """Phases entered and left, and microbatches so far; ranks advance this counter identically."""
    forward_count: int = 0
    """Forward passes and replies of servers and worker processes so far: progress within a
    phase."""
    phase: str = "start"
    iteration: int = 1
    """Current iteration, from 1."""
    exit_reason: str | None = None
    """Error that ended the rank, "" if it finished, None while it runs."""

    @property
    def location(self) -> str:
        return f"phase {self.phase} of iteration {self.iteration}"


class LocalStore:
    """Store of a single rank, in its own memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> str:
        return self.values[key]


class HeartbeatStore:
    """Latest heartbeat of every rank, and when it last changed by this process's clock."""

    def __init__(
        self, store: Any, num_ranks: int, own: Heartbeat, max_pause_s: float = 5.0
    ) -> None:
        """
        Args:
            max_pause_s: seconds between two polls after which this process itself was suspended,
            and all timers restart.
        """
        self.store, self.num_ranks, self.own, self.max_pause_s = store, num_ranks, own, max_pause_s
        self.last_poll = time.monotonic()
        self.heartbeats: dict[int, Heartbeat] = {}
        self.last_heartbeat: dict[int, float] = {}
        """Time of the last change of `count`, by rank."""
        self.last_progress: dict[int, float] = {}
        """Time of the last change of `progress` or `forward_count`, by rank."""

    def publish(self, **changes: Any) -> None:
        """Store this rank's next heartbeat.

        Raises:
            RuntimeError: the store is gone.
        """
        self.own = replace(self.own, count=self.own.count + 1, **changes)
        self.store.set(f"heartbeat/{self.own.rank}", json.dumps(asdict(self.own)))

    def poll(self) -> None:
        """Read the heartbeats of all ranks.

        Raises:
            RuntimeError: the store is gone.
        """
        now = time.monotonic()
        if now - self.last_poll > self.max_pause_s:
            self.last_heartbeat = dict.fromkeys(self.last_heartbeat, now)
            self.last_progress = dict.fromkeys(self.last_progress, now)
        self.last_poll = now
        for rank in range(self.num_ranks):
            new, old = (
                Heartbeat(**json.loads(self.store.get(f"heartbeat/{rank}"))),
                self.heartbeats.get(rank),
            )
            if old is None or new.count != old.count:
                self.last_heartbeat[rank] = now
            if old is None or (new.progress, new.forward_count) != (
                old.progress,
                old.forward_count,
            ):
                self.last_progress[rank] = now
            self.heartbeats[rank] = new

    def find_lost(self, timeout_s: float) -> str | None:
        """Return an error message if another rank has failed, died or not published for
        `timeout_s`."""
        now = time.monotonic()
        for rank, heartbeat in self.heartbeats.items():
            if rank == self.own.rank or heartbeat.exit_reason == "":
                continue
            if heartbeat.exit_reason:
                return f"rank {rank} failed in {heartbeat.location}: {heartbeat.exit_reason}"
            if heartbeat.host == self.own.host and not is_alive(heartbeat.pid):
                return f"rank {rank} died in {heartbeat.location}"
            if now - self.last_heartbeat[rank] > timeout_s:
                return (
                    f"rank {rank} has sent no heartbeat for {now - self.last_heartbeat[rank]:.0f} "
                    f"s, last in {heartbeat.location}"
                )
        return None

    def find_hanging(self, timeout_s: float) -> tuple[str, list[int]] | None:
        """Return an error message and the ranks with the least progress, if no rank has made
        progress for `timeout_s`."""
        idle_s = time.monotonic() - max(self.last_progress.values())
        if idle_s < timeout_s or any(
            heartbeat.exit_reason is not None for heartbeat in self.heartbeats.values()
        ):
            return None
        slowest = min(heartbeat.progress for heartbeat in self.heartbeats.values())
        late = [
            heartbeat for heartbeat in self.heartbeats.values() if heartbeat.progress == slowest
        ]
        waiting = "" if len(late) == self.num_ranks else "; the other ranks wait for it"
        ranks = ", ".join(f"rank {heartbeat.rank} in {heartbeat.location}" for heartbeat in late)
        return f"no progress for {idle_s:.0f} s: {ranks}{waiting}", [
            heartbeat.rank for heartbeat in late
        ]


def connect(trainer: Trainer) -> TCPStore:
    """Connect to a store on the first rank that holds heartbeats only. Called on every rank."""
    host = os.environ.get("MASTER_ADDR") or trainer.strategy.cluster_environment.main_address  # type: ignore[attr-defined]
    timeout = timedelta(seconds=60)
    store = (
        TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        if trainer.is_global_zero
        else None
    )
    port = trainer.strategy.broadcast(0 if store is None else store.port)
    return TCPStore(host, port, is_master=False, timeout=timeout) if store is None else store


def is_alive(pid: int) -> bool:
    """Return True if a process of this machine runs; zombies do not."""
    try:
        if Path("/proc/self/stat").exists():
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in (
                "Z",
                "X",
            )
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
