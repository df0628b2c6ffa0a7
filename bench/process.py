"""A measured command in a fresh process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
POLL_S = 0.2
"""Seconds between two readings of the memory, which take milliseconds themselves."""


def exit_on_sigterm() -> None:
    """Let SIGTERM end this process by an exception, which also ends the measured process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def resident_bytes(root: psutil.Process) -> int:
    """Return the resident memory of a process and all processes below it. Pages that they share
    count once for each."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


def kill_tree(pid: int) -> None:
    """End a process and all processes below it, if it still runs."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (*root.children(recursive=True), root):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def run_python(
    arguments: Sequence[str],
    log: Path,
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> tuple[float, float]:
    """Run Python in the root of the repository with these arguments and additional environment, and
    write its output to `log`.

    Returns the wall time in seconds and the largest resident memory of the process tree in bytes.

    Raises:
        RuntimeError: the command failed; the message ends with the last lines of its output.
    """
    start, peak = time.perf_counter(), 0
    variables = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **(environment or {}),
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            [python, *arguments], cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            root = psutil.Process(process.pid)
            while process.poll() is None:
                peak = max(peak, resident_bytes(root))
                time.sleep(POLL_S)
        finally:
            kill_tree(process.pid)
            process.wait()
    if process.returncode:
        last = "\n".join(log.read_text().splitlines()[-15:])
        raise RuntimeError(
            f"python {' '.join(arguments)}: exit status {process.returncode}; {log} ends "
            f"with\n{last}"
        )
    return time.perf_counter() - start, float(peak)
