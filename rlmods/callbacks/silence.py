"""Process that ends the trainer when it has been silent for too long: `python silence.py
TRAINER_PID LIMIT_S INTERVAL_S HINT`.

Each line on stdin is a sign of life and names the current phase. Time counts in intervals of this
process, and only while the trainer is not stopped: neither a suspension of the trainer nor one of
its whole process group (Ctrl-Z, a scheduler) is silence. The trainer is ended by SIGABRT, on which
`faulthandler` writes its stacks even if native code holds the interpreter lock.

Runs as a script, without the package, so that it starts at once and stays small.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

END_S = 10.0
"""Seconds between SIGABRT and SIGKILL."""


def main(trainer: int, limit_s: float, interval_s: float, hint: str) -> None:
    """Watch until stdin ends, the trainer has exited, or it has been silent for `limit_s`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # sent to the whole process group: the trainer decides when to end
        signal.signal(number, signal.SIG_IGN)
    location, silent_s = b"", 0.0
    while silent_s < limit_s:
        if select.select([0], [], [], interval_s)[0]:
            if not (received := os.read(0, 65536)):
                return
            location, silent_s = received.splitlines()[-1], 0.0
        elif os.getppid() != trainer:
            return
        else:
            silent_s = 0.0 if is_stopped(trainer) else silent_s + interval_s
    what = (
        f"no progress for {silent_s:.0f} s: native code holds the interpreter in "
        f"{location.decode()}"
    )
    sys.stderr.write(f"\nerror: {what}; {hint}\n")
    sys.stderr.flush()
    os.kill(trainer, signal.SIGABRT)
    end = time.monotonic() + END_S
    while os.getppid() == trainer:
        if time.monotonic() > end:
            os.kill(trainer, signal.SIGKILL)
        time.sleep(0.1)


def is_stopped(process: int) -> bool:
    """Return True if a process is stopped by a signal or a debugger."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:  # no /proc, or it has exited, which the next round sees
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
