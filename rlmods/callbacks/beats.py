"""What ranks tell each other of themselves, and what follows from it."""

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
class Beat:
    """A word of one rank."""

    rank: int
    host: str
    pid: int
    count: int = 0
    """Beats so far."""
    place: int = 0
    """Stages entered and left, and microbatches: the same course on every rank."""
    signs: int = 0
    """Forwards so far: life within a stage."""
    stage: str = "start"
    iteration: int = 1
    """Under way."""
    ended: str | None = None
    """Why it has left; empty where it is done."""

    @property
    def where(self) -> str:
        return f"stage {self.stage} of iteration {self.iteration}"


class Board:
    """The latest beat of every rank, and when it said something new, by this process's clock."""

    def __init__(self, store: Any, num_ranks: int, own: Beat, pause_s: float = 5.0) -> None:
        """
        Args:
            pause_s: seconds without listening after which this process itself stood still, and time has to be taken anew.
        """
        self.store, self.num_ranks, self.own, self.pause_s = store, num_ranks, own, pause_s
        self.listened = time.monotonic()
        self.beats: dict[int, Beat] = {}
        self.heard: dict[int, float] = {}
        """When a rank's count had last changed."""
        self.moved: dict[int, float] = {}
        """When its place or its signs had."""

    def tell(self, **news: Any) -> None:
        """This rank's next beat.

        Raises:
            RuntimeError: the store is gone.
        """
        self.own = replace(self.own, count=self.own.count + 1, **news)
        self.store.set(f"beat/{self.own.rank}", json.dumps(asdict(self.own)))

    def listen(self) -> None:
        """
        Raises:
            RuntimeError: the store is gone.
        """
        now = time.monotonic()
        if now - self.listened > self.pause_s:
            self.heard, self.moved = dict.fromkeys(self.heard, now), dict.fromkeys(self.moved, now)
        self.listened = now
        for rank in range(self.num_ranks):
            beat, last = Beat(**json.loads(self.store.get(f"beat/{rank}"))), self.beats.get(rank)
            if last is None or beat.count != last.count:
                self.heard[rank] = now
            if last is None or (beat.place, beat.signs) != (last.place, last.signs):
                self.moved[rank] = now
            self.beats[rank] = beat

    def lost(self, patience_s: float) -> str | None:
        """Which other rank is gone, and where it was."""
        now = time.monotonic()
        for rank, beat in self.beats.items():
            if rank == self.own.rank or beat.ended == "":
                continue
            if beat.ended:
                return f"rank {rank} failed in {beat.where}: {beat.ended}"
            if beat.host == self.own.host and not lives(beat.pid):
                return f"rank {rank} died, last heard of in {beat.where}"
            if now - self.heard[rank] > patience_s:
                return f"rank {rank} has not been heard of for {now - self.heard[rank]:.0f} s, and was in {beat.where}"
        return None

    def hanging(self, patience_s: float) -> tuple[str, list[int]] | None:
        """Where no rank has moved for so long: what to say, and the ranks that the others wait for."""
        silent_s = time.monotonic() - max(self.moved.values())
        if silent_s < patience_s or any(beat.ended is not None for beat in self.beats.values()):
            return None
        behind = min(beat.place for beat in self.beats.values())
        late = [beat for beat in self.beats.values() if beat.place == behind]
        waiting = "" if len(late) == self.num_ranks else ", and the others wait for it"
        names = ", ".join(f"rank {beat.rank} in {beat.where}" for beat in late)
        return f"no sign of life for {silent_s:.0f} s: {names}{waiting}", [beat.rank for beat in late]


def connect(trainer: Trainer) -> TCPStore:
    """A store on the first rank, for beats alone. For every rank."""
    host = os.environ.get("MASTER_ADDR") or trainer.strategy.cluster_environment.main_address  # type: ignore[attr-defined]
    patience = timedelta(seconds=60)
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=patience) if trainer.is_global_zero else None
    port = trainer.strategy.broadcast(0 if store is None else store.port)
    return TCPStore(host, port, is_master=False, timeout=patience) if store is None else store


def lives(pid: int) -> bool:
    """Whether a process of this machine runs. One that has ended, and whose parent has not asked for it yet, does not."""
    try:
        if Path("/proc/self/stat").exists():
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
