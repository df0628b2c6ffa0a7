"""Python in a process group of its own, with a time limit."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
SIMULATED = ("-m", "tests.support.simulated_cuda")
"""Arguments of Python that run a program on a device that is not there."""
Device = Literal["cuda", "simulated", "cpu"]


@dataclass(frozen=True)
class Setting:
    """How parts are run."""

    device: Device
    tiny: bool
    seconds: float
    """Time limit of this part."""
    folder: str
    """Folder for files of this part."""

    def python(self) -> list[str]:
        """Return the beginning of a command that runs Python on the device."""
        return [sys.executable, *(SIMULATED if self.device == "simulated" else ())]

    @property
    def accelerator(self) -> str:
        """Return `trainer.accelerator`."""
        return "cpu" if self.device == "cpu" else "cuda"


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    status: int
    """Exit status; negative for a signal."""
    seconds: float
    was_killed: bool
    """True if it reached its limit."""
    lines: list[str]
    """End of its output."""

    @property
    def reason(self) -> str:
        """Return why it failed, in a few words; an empty text if it did not."""
        if self.was_killed:
            return f"ended after {self.seconds:.0f} s, its limit"
        return f"exit status {self.status}" if self.status else ""


def run(
    command: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run a command in the root of the repository, add its output to `log`, and end all of its
    processes after `limit_s`."""
    variables = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        **(environment or {}),
    }
    path = [str(ROOT), *filter(None, [variables.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(path)
    start = time.perf_counter()
    was_killed = False
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(max(1.0, limit_s))
        except subprocess.TimeoutExpired:
            was_killed = True
        finally:
            end_group(process.pid)
            process.wait()
    with log.open("rb") as written:
        written.seek(begin)
        text = written.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return Ended(process.returncode, time.perf_counter() - start, was_killed, lines[-40:])


def end_group(pid: int) -> None:
    """End what a process that leads a session has started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
