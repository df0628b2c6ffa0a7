"""Run untrusted code in confined processes and report how the run ended."""

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

PACKAGE = Path(__file__).resolve().parent
BOOT = "import sys; sys.path.append(sys.argv[1]); from sandbox import child; sys.path.pop(); child.main(int(sys.argv[2]))"
FILE_BYTES = 2**20
"""Largest file that can be written. With walls, none can; this applies to `confined=False`."""
PREFIX = "rlmods_sandbox_"
START_TIMEOUT_S = 60.0
"""Time for the interpreter to start and to be confined, on a busy machine. `Limits.timeout_s` counts from then."""

Status = Literal["ok", "error", "timeout", "output"]


@dataclass(frozen=True)
class Limits:
    """Resource limits of a run."""

    timeout_s: float = 6.0
    """Wall and processor time."""
    memory_mb: int = 512
    """Address space."""
    output_bytes: int = 2**20
    """On stdout; exceeding it ends the run."""
    packages: bool = False
    """Let the code import installed packages besides the standard library."""
    confined: bool = True
    """Confine the process with Landlock and seccomp; otherwise only the limits apply."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    status: Status
    """`error`: exit status other than 0, for example from an exception. `output`: more than `Limits.output_bytes`."""
    stdout: str = ""
    stderr_line: str = ""
    """Last line on stderr."""


def run_program(source: str, stdin: str, limits: Limits) -> RunResult:
    """Run `source` as a program. Raises RuntimeError if this machine cannot confine it."""
    with _Process("program", {"source": source}, limits, stdin=stdin) as child:
        return child.watch(child.stdout)


def run_tests(source: str, tests: Sequence[str], limits: Limits, entry_point: str | None = None) -> tuple[list[bool], Status]:
    """Run `tests`, Python code that calls the names defined by `source`, and return which of them passed.

    Tests and source are in different processes that exchange only plain values (numbers, strings, collections of them): the code under test
    cannot end the tests early, patch what they use, or return an object that equals everything. Tests can pass it plain values, and objects
    that it returned.

    Args:
        entry_point: name of the function that the tests call `candidate` (HumanEval).

    Raises:
        RuntimeError: this machine cannot confine code.
    """
    with ExitStack() as stack:
        calls, replies, results = (stack.enter_context(_pipe()) for _ in range(3))
        ends = {"calls": calls[0], "replies": replies[1]}
        serving = stack.enter_context(_Process("serve", {"source": source, "mute": True}, limits, ends=ends))
        serving.wait_until_started()
        ends = {"calls": calls[1], "replies": replies[0], "results": results[1]}
        judging = stack.enter_context(_Process("judge", {"tests": list(tests), "entry_point": entry_point}, limits, ends=ends))
        for end in (*calls, *replies, results[1]):
            end.close()
        run = judging.watch(results[0])
    passed = [line == "1" for line in run.stdout.split("\n")[: len(tests)] if line]
    status: Status = "timeout" if run.status == "timeout" else "ok" if len(passed) == len(tests) else "error"
    return passed + [False] * (len(tests) - len(passed)), status


@cache
def _remove_leftover_folders() -> None:
    """Remove the (empty) folders left by processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*_*"):
        owner = path.name.removeprefix(PREFIX).split("_")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            with suppress(OSError):
                path.rmdir()


@contextmanager
def _pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """Both ends of a pipe, as files: closing one twice is safe even if its descriptor number is in use again."""
    reader, writer = os.pipe()
    with FileIO(reader, "rb") as read_end, FileIO(writer, "wb") as write_end:
        yield read_end, write_end


class _Process:
    """Child process that is killed at the end of the `with` block."""

    def __init__(
        self, mode: str, job: Mapping[str, Any], limits: Limits, *, stdin: str = "", ends: Mapping[str, FileIO] | None = None
    ) -> None:
        """
        Args:
            ends: pipe ends passed to the child, by their names in its job.
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
        _remove_leftover_folders()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}_"))
        self.ready, ready = self.stack.enter_context(_pipe())
        packages = [path for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) if limits.packages]
        full_job = {
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
        job_file, stdin_file, self.stderr_file = (self.stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))  # noqa: SIM115
        for file, content in ((job_file, json.dumps(full_job)), (stdin_file, stdin)):
            file.write(content.encode("utf-8", "surrogatepass"))
            file.seek(0)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BOOT, str(PACKAGE.parent), str(job_file.fileno())],
            stdin=stdin_file,
            stdout=subprocess.PIPE if mode == "program" else subprocess.DEVNULL,
            stderr=self.stderr_file,
            cwd=folder,
            env={"HOME": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            pass_fds=(job_file.fileno(), ready.fileno(), *(end.fileno() for end in ends.values())),
            start_new_session=True,
        )
        ready.close()
        self.stack.callback(self._end)

    def wait_until_started(self) -> None:
        """Wait until the process is confined and start its clock. Raises RuntimeError if it is not."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.ready, selectors.EVENT_READ)
            events = selector.select(START_TIMEOUT_S)
        if not events or not self.ready.read(1):
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the sandbox did not start: {self._last_stderr_line() or f'exit status {self.process.returncode}'}")
        self.deadline = time.monotonic() + self.limits.timeout_s

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def watch(self, stream: IO[bytes]) -> RunResult:
        """Read `stream` until its end, the deadline or the output limit, then wait for the process."""
        self.wait_until_started()
        output = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while (remaining_s := self.deadline - time.monotonic()) > 0 and len(output) <= self.limits.output_bytes:
                if selector.select(remaining_s):
                    chunk = os.read(stream.fileno(), 65536)
                    if not chunk:
                        break
                    output += chunk
        text = output[: self.limits.output_bytes].decode("utf-8", "replace")
        if len(output) > self.limits.output_bytes:
            return RunResult("output", text)
        try:
            exit_code = self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return RunResult("timeout", text)
        out_of_time = exit_code in (-signal.SIGXCPU, -signal.SIGKILL)
        return RunResult("timeout" if out_of_time else "ok" if exit_code == 0 else "error", text, self._last_stderr_line())

    def _last_stderr_line(self) -> str:
        self.stderr_file.seek(0)
        lines = self.stderr_file.read(FILE_BYTES).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else ""

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _readable() -> list[str]:
    """Paths that an interpreter needs: the standard library and the system's shared libraries."""
    paths = sysconfig.get_paths()
    stdlib = [paths["stdlib"], paths["platstdlib"]]
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo", "/etc/localtime"]
    library = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("LDLIBRARY") or "")
    return [*stdlib, *system, library, os.devnull, "/dev/urandom"]
