"""Code of unknown intent, run where it can do no harm, and what came of it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from typing import IO, Any, Literal

from rlmods.reward.sandbox import walls

PACKAGE = Path(__file__).resolve().parent
BOOT = "import sys; sys.path.append(sys.argv[1]); from sandbox import child; sys.path.pop(); child.main(int(sys.argv[2]))"
FILE_BYTES = 2**20
"""Of a file, where the walls let one be written at all (they do not; `limits` alone do)."""
PREFIX = "rlmods_sandbox_"
START_TIMEOUT_S = 60.0
"""For the interpreter to start and the walls to go up, on a busy machine; only then the clock of the run starts."""

Status = Literal["ok", "error", "timeout", "output"]


@dataclass(frozen=True)
class Limits:
    """What a run may use."""

    timeout_s: float = 6.0
    """Wall and processor time."""
    memory_mb: int = 512
    """Address space."""
    output_bytes: int = 2**20
    """On stdout; more ends the run."""
    packages: bool = False
    """Whether installed packages can be imported, and not the standard library alone."""
    confined: bool = True
    """Whether the walls go up; otherwise there are the limits alone."""


@dataclass(frozen=True)
class Ran:
    """How a run ended."""

    status: Status
    """`error`: exit status other than 0, which an exception makes too. `output`: too much of it."""
    stdout: str = ""
    said: str = ""
    """The last line on stderr."""


def run_program(source: str, stdin: str, limits: Limits) -> Ran:
    """Run `source` as a program. Raises RuntimeError where this machine cannot confine it."""
    with _Start("program", {"source": source}, limits, stdin=stdin) as child:
        return child.watch(child.stdout)


def run_tests(source: str, tests: Sequence[str], limits: Limits, entry_point: str | None = None) -> tuple[list[bool], Status]:
    """Run `tests`, Python in which the names that `source` defines stand for calls to it, and say which passed.

    Tests and source are in different processes, and only plain values (numbers, strings, collections of them) travel between the two: code
    under test cannot end the tests early, patch what they use, or return an object that equals everything. What a test passes to it is
    plain, or an object of its own.

    Args:
        entry_point: name that tests know as `candidate` (HumanEval).

    Raises:
        RuntimeError: this machine cannot confine it.
    """
    with ExitStack() as stack:
        calls, replies, results = (stack.enter_context(_pipe()) for _ in range(3))
        ends = {"calls": calls[0], "replies": replies[1]}
        serving = stack.enter_context(_Start("serve", {"source": source, "mute": True}, limits, ends=ends))
        serving.started()
        ends = {"calls": calls[1], "replies": replies[0], "results": results[1]}
        judging = stack.enter_context(_Start("judge", {"tests": list(tests), "entry_point": entry_point}, limits, ends=ends))
        for end in (*calls, *replies, results[1]):
            end.close()
        ran = judging.watch(results[0])
    passed = [line == "1" for line in ran.stdout.split("\n")[: len(tests)] if line]
    status: Status = "timeout" if ran.status == "timeout" else "ok" if len(passed) == len(tests) else "error"
    return passed + [False] * (len(tests) - len(passed)), status


def lacking() -> str | None:
    """What this machine lacks to confine code, or None."""
    return walls.missing()


@cache
def _sweep() -> None:
    """Remove the (empty) folders of processes that were killed and could not."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*_*"):
        owner = path.name.removeprefix(PREFIX).split("_")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            with suppress(OSError):
                path.rmdir()


@contextmanager
def _pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """Both ends, as files: closing one that is closed does nothing, whoever has its number by then."""
    reader, writer = os.pipe()
    with FileIO(reader, "rb") as out, FileIO(writer, "wb") as into:
        yield out, into


class _Start:
    """A child process, gone at the end of the block whatever happens."""

    def __init__(
        self, mode: str, job: Mapping[str, Any], limits: Limits, *, stdin: str = "", ends: Mapping[str, FileIO] | None = None
    ) -> None:
        """
        Args:
            ends: of pipes that the child gets, by the names under which its job has them.
        """
        self.limits = limits
        self.stack = ExitStack()
        try:
            self._start(mode, job, stdin, ends or {})
        except BaseException:
            self.stack.close()
            raise

    def _start(self, mode: str, job: Mapping[str, Any], stdin: str, ends: Mapping[str, FileIO]) -> None:
        limits = self.limits
        self.deadline = time.monotonic() + START_TIMEOUT_S
        _sweep()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}_"))
        self.ready, ready = self.stack.enter_context(_pipe())
        packages = [path for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) if limits.packages]
        whole = {
            **job,
            **{name: end.fileno() for name, end in ends.items()},
            "mode": mode,
            "ready": ready.fileno(),
            "packages": list(dict.fromkeys(packages)),
            "readable": [*_readable(), *packages, folder] if limits.confined else None,
            "limits": {
                "cpu_s": int(limits.timeout_s) + 1,
                "memory_mb": limits.memory_mb,
                "file_bytes": FILE_BYTES,
                "parent": os.getpid(),
            },
        }
        orders, given, self.errors = (self.stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))  # noqa: SIM115
        for file, content in ((orders, json.dumps(whole)), (given, stdin)):
            file.write(content.encode("utf-8", "surrogatepass"))
            file.seek(0)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BOOT, str(PACKAGE.parent), str(orders.fileno())],
            stdin=given,
            stdout=subprocess.PIPE if mode == "program" else subprocess.DEVNULL,
            stderr=self.errors,
            cwd=folder,
            env={"HOME": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            pass_fds=(orders.fileno(), ready.fileno(), *(end.fileno() for end in ends.values())),
            start_new_session=True,
        )
        ready.close()
        self.stack.callback(self._end)

    def started(self) -> None:
        """Wait until the walls stand. Raises RuntimeError where they do not."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.ready, selectors.EVENT_READ)
            heard = selector.select(START_TIMEOUT_S)
        if not heard or not self.ready.read(1):
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the sandbox did not start: {self._last_line() or f'exit status {self.process.returncode}'}")
        self.deadline = time.monotonic() + self.limits.timeout_s

    def __enter__(self) -> _Start:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def watch(self, stream: IO[bytes]) -> Ran:
        """Read `stream` until its end, the deadline or the cap, then wait for the process."""
        self.started()
        said = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while (left := self.deadline - time.monotonic()) > 0 and len(said) <= self.limits.output_bytes:
                if selector.select(left):
                    chunk = os.read(stream.fileno(), 65536)
                    if not chunk:
                        break
                    said += chunk
        text = said[: self.limits.output_bytes].decode("utf-8", "replace")
        if len(said) > self.limits.output_bytes:
            return Ran("output", text)
        try:
            code = self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Ran("timeout", text)
        out_of_time = code in (-signal.SIGXCPU, -signal.SIGKILL)
        return Ran("timeout" if out_of_time else "ok" if code == 0 else "error", text, self._last_line())

    def _last_line(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read(FILE_BYTES).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else ""

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _readable() -> list[str]:
    """What an interpreter needs: the standard library and the system's shared libraries."""
    paths = sysconfig.get_paths()
    own = [paths["stdlib"], paths["platstdlib"]]
    shared = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo", "/etc/localtime"]
    library = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("LDLIBRARY") or "")
    return [*own, *shared, library, os.devnull, "/dev/urandom"]
