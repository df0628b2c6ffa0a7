"""Run untrusted code in confined processes and report how the run ended. The processes are forked
by a server (`server`)."""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any, Literal

PACKAGE = Path(__file__).resolve().parent
BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from sandbox import server; "
    "sys.path.pop(); server.main(int(sys.argv[2]))"
)
ENVIRONMENT = {
    "HOME": "/",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # sets are printed in the same order after a resume
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""All that a confined process finds in its environment."""
FILE_BYTES = 2**20
"""Largest file that can be written. With walls, none can; this applies to `confined=False`."""
PIPE_BYTES = 65536
"""Jobs up to this size are passed through a pipe, which holds them; larger ones in a file."""
PREFIX = "rlmods_sandbox_"
START_TIMEOUT_S = 60.0
"""Time for the server to start, and for a process to be confined, on a busy machine.
`Limits.timeout_s` counts from then."""

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
    landlock_abi: int | None = None
    """Use at most this version of Landlock, as on an older kernel."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run."""

    status: Status
    """`error`: exit status other than 0, for example from an exception. `output`: more than
    `Limits.output_bytes`."""
    stdout: str = ""
    stderr_line: str = ""
    """Last line on stderr."""


def run_program(source: str, stdin: str, limits: Limits) -> RunResult:
    """Run `source` as a program. Raises RuntimeError if this machine cannot confine it."""
    with ExitStack() as stack:
        output, errors = (stack.enter_context(_pipe()) for _ in range(2))
        ends = {
            "stdin": _file(stdin.encode("utf-8", "surrogatepass"), stack),
            "stdout": output[1],
            "stderr": errors[1],
        }
        processes = stack.enter_context(
            _Processes(
                _server("child", limits), [("program", {"source": source}, ends)], limits, stack
            )
        )
        return processes.watch(output[0], errors[0])


def run_tests(
    source: str, tests: Sequence[str], limits: Limits, entry_point: str | None = None
) -> tuple[list[bool], Status]:
    """Run `tests`, Python code that calls the names defined by `source`, and return which of them
    passed.

    Tests and source are in different processes that exchange only plain values (`wire`): the code
    under test cannot end the tests early, patch what they use, or return an object that equals
    everything. A test that does not use the code has not passed.

    Args:
        entry_point: name of the function that the tests call `candidate` (HumanEval).

    Raises:
        RuntimeError: this machine cannot confine code.
    """
    results, status = test_results(source, tests, limits, entry_point)
    return [result == "1" for result in results], status


def test_results(
    source: str, tests: Sequence[str], limits: Limits, entry_point: str | None
) -> tuple[list[str], Status]:
    """Return `judge.PASSED`, `FAILED` or `UNUSED` for each test."""
    with ExitStack() as stack:
        calls, replies, results = (stack.enter_context(_pipe()) for _ in range(3))
        ends = {"calls": calls[1], "replies": replies[0], "results": results[1]}
        judge = ("judge", {"tests": list(tests), "entry_point": entry_point}, ends)
        serve = ("serve", {"source": source}, {"calls": calls[0], "replies": replies[1]})
        run = stack.enter_context(
            _Processes(_server("child", limits), [judge, serve], limits, stack)
        ).watch(results[0])
    passed = run.stdout.split()[: len(tests)]
    status: Status = (
        "timeout" if run.status == "timeout" else "ok" if len(passed) == len(tests) else "error"
    )
    return passed + ["0"] * (len(tests) - len(passed)), status


test_results.__test__ = False  # type: ignore[attr-defined]  # keeps pytest from collecting the function


def call_function(
    module: str, job: Mapping[str, Any], limits: Limits, context: Any = None
) -> tuple[str, Status]:
    """Run `main` of a module of this package on a job, and return what it wrote to its results
    descriptor.

    Args:
        context: passed to `prepare` of the module, which runs once in the server. Not for untrusted
        text.
    """
    with ExitStack() as stack:
        results = stack.enter_context(_pipe())
        processes = _Processes(
            _server(module, limits),
            [("call", job, {"results": results[1]})],
            limits,
            stack,
            context,
        )
        run = stack.enter_context(processes).watch(results[0])
        return run.stdout, run.status


def check(module: str, limits: Limits) -> None:
    """Start the server and a confined process that does nothing. Raises RuntimeError if this
    machine cannot confine code."""
    with ExitStack() as stack:
        stack.enter_context(_Processes(_server(module, limits), [("check", {}, {})], limits, stack))


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
    """Both ends of a pipe, as files: closing one twice is safe even if its descriptor number is in
    use again."""
    reader, writer = os.pipe()
    with FileIO(reader, "rb") as read_end, FileIO(writer, "wb") as write_end:
        yield read_end, write_end


def _job(job: Mapping[str, Any], stack: ExitStack) -> FileIO:
    """Return the end of a pipe, or a file, to read `job` from as JSON."""
    content = json.dumps(job).encode()
    if len(content) > PIPE_BYTES:
        return _file(content, stack)
    reader, writer = stack.enter_context(_pipe())
    with writer:
        writer.write(content)
    return reader


def _file(content: bytes, stack: ExitStack) -> FileIO:
    """Return a file to read `content` from, which no one can change. On Linux it is in memory, and
    can be opened in `/dev` or `/proc` within the walls, as programs do that read `/dev/stdin`."""
    if not sys.platform.startswith("linux"):
        with tempfile.NamedTemporaryFile(prefix=PREFIX) as file:
            file.write(content)
            file.flush()
            return stack.enter_context(FileIO(file.name, "rb"))  # without a right to write
    with open(os.memfd_create(PREFIX, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as memory:
        memory.write(content)
        memory.flush()
        fcntl.fcntl(
            memory,
            fcntl.F_ADD_SEALS,
            fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL,
        )
        return stack.enter_context(FileIO(f"/proc/self/fd/{memory.fileno()}", "rb"))


class _Server:
    """Fork server of one kind of process, with the connection to it."""

    def __init__(self, module: str, limits: Limits) -> None:
        own, other = socket.socketpair()
        self.socket, self.errors = own, tempfile.TemporaryFile()  # noqa: SIM115  (closed by `_end_server`)
        with other:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-s",
                    "-S",
                    "-c",
                    BOOT,
                    str(PACKAGE.parent),
                    str(other.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                cwd="/",
                env=ENVIRONMENT,
                pass_fds=(other.fileno(),),
                # survives the kill of this process's group, to kill what it has started
                start_new_session=True,
            )
        self.finalizer = weakref.finalize(
            self, _end_server, self.process, own, self.errors, os.getpid()
        )
        packages = list(_packages()) if limits.packages else []
        readable = [*_readable(), *packages] if limits.confined else None
        self.request(
            {
                "module": module,
                "packages": packages,
                "readable": readable,
                "abi": limits.landlock_abi,
            }
        )

    def request(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = (), extra_s: float = 0.0
    ) -> Any:
        """Return the server's reply. Raises RuntimeError if it is an error, or if the server is
        gone."""
        self.socket.settimeout(START_TIMEOUT_S + extra_s)
        try:
            socket.send_fds(self.socket, [json.dumps(message).encode() + b"\n"], descriptors)
            line = b""
            while not line.endswith(b"\n") and (chunk := self.socket.recv(65536)):
                line += chunk
        except OSError:  # also: no reply in time
            line = b""
        reply = json.loads(line) if line.endswith(b"\n") else {"error": self._last_words()}
        if "error" in reply:
            if not line.endswith(b"\n"):
                self.finalizer()
            raise RuntimeError(f"the sandbox did not start: {reply['error']}")
        return reply

    def _last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read(FILE_BYTES).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else "its server has ended"

    @property
    def alive(self) -> bool:
        return self.finalizer.alive and self.process.poll() is None


def _end_server(
    process: subprocess.Popen[bytes], connection: socket.socket, errors: Any, owner_pid: int
) -> None:
    """End a server, which then kills the processes that it has started. Does nothing in a fork of
    the owner."""
    if os.getpid() != owner_pid:
        return
    connection.close()
    errors.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_SERVERS: dict[tuple[Any, ...], _Server] = {}


def _server(module: str, limits: Limits) -> _Server:
    """Return this process's server, which is started at first use and replaced if it was killed."""
    key = (os.getpid(), module, limits.packages, limits.confined, limits.landlock_abi)
    if key not in _SERVERS or not _SERVERS[key].alive:
        _SERVERS[key] = _Server(module, limits)
    return _SERVERS[key]


class _Processes:
    """Processes of a server, of which the first is watched. All are killed when it ends, and at the
    end of the `with` block."""

    def __init__(
        self,
        server: _Server,
        processes: Sequence[tuple[str, Mapping[str, Any], Mapping[str, FileIO]]],
        limits: Limits,
        stack: ExitStack,
        context: Any = None,
    ) -> None:
        """
        Args:
            processes: mode, job, and descriptors by their names in the job, which are closed here.
        """
        self.server, self.limits = server, limits
        if not limits.confined:
            _remove_leftover_folders()
        files: list[FileIO] = []
        forms = []
        for mode, job, ends in processes:
            folder = (
                "/"
                if limits.confined
                else stack.enter_context(
                    tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}_")
                )
            )
            files += [_job(job, stack), *ends.values()]
            forms.append((mode, ["job", *ends], folder))
        settings = {
            "cpu_s": int(limits.timeout_s) + 1,
            "memory_mb": limits.memory_mb,
            "file_bytes": FILE_BYTES,
        }
        start = {"processes": forms, "limits": settings, "context": context}
        self.pids: list[int] = server.request({"start": start}, [file.fileno() for file in files])[
            "pids"
        ]
        for file in files:
            file.close()
        self.deadline = time.monotonic() + limits.timeout_s

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pids and self.server.alive:
            self.end(0.0)

    def end(self, grace_s: float) -> Any:
        """Wait up to `grace_s` for the first process to exit, then kill all."""
        pids, self.pids = self.pids, []
        return self.server.request({"end": {"pids": pids, "grace_s": grace_s}}, extra_s=grace_s)

    def watch(self, stream: FileIO, errors: FileIO | None = None) -> RunResult:
        """Read `stream` until its end, the deadline or the output limit, then wait for the
        process."""
        output, last_words = bytearray(), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            if errors is not None:
                selector.register(errors, selectors.EVENT_READ)
            reading = True
            while (
                reading
                and (remaining_s := self.deadline - time.monotonic()) > 0
                and len(output) <= self.limits.output_bytes
            ):
                for key, _ in selector.select(remaining_s):
                    chunk = os.read(key.fd, 65536)
                    if not chunk:
                        selector.unregister(key.fileobj)
                        reading &= key.fileobj is not stream
                    elif key.fileobj is stream:
                        output += chunk
                    else:
                        last_words = (last_words + chunk)[-4096:]
        text = output[: self.limits.output_bytes].decode("utf-8", "replace")
        if len(output) > self.limits.output_bytes:
            return RunResult("output", text)
        ended = self.end(max(0.0, self.deadline - time.monotonic()))
        if ended["killed"] or ended["exit_code"] in (-signal.SIGXCPU, -signal.SIGKILL):
            return RunResult("timeout", text)
        if errors is not None:
            os.set_blocking(errors.fileno(), False)
            with suppress(BlockingIOError):
                last_words += os.read(errors.fileno(), 65536)
        lines = last_words.decode("utf-8", "replace").strip().splitlines()
        return RunResult(
            "ok" if ended["exit_code"] == 0 else "error", text, lines[-1][:500] if lines else ""
        )


@cache
def _packages() -> tuple[str, ...]:
    """Folders of installed packages."""
    return tuple(
        dict.fromkeys(
            path
            for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
            if path in sys.path
        )
    )


@cache
def _readable() -> tuple[str, ...]:
    """Paths that an interpreter needs: the standard library without installed packages, and the
    system's shared libraries."""
    paths = sysconfig.get_paths()
    stdlib = sorted({paths["stdlib"], paths["platstdlib"]})
    excluded = {
        os.path.realpath(path)
        for path in (*site.getsitepackages(), paths["purelib"], paths["platlib"])
    }
    files = [
        entry.path
        for folder in stdlib
        for entry in os.scandir(folder)
        if entry.name not in ("site-packages", "dist-packages")
    ]
    modules = [
        path
        for path in files
        if not any((root + os.sep).startswith(os.path.realpath(path) + os.sep) for root in excluded)
    ]
    folders = [
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        sysconfig.get_config_var("LIBDIR") or "",
    ]
    folders += [
        os.path.join(folder, sysconfig.get_config_var("MULTIARCH") or "lib") for folder in folders
    ]
    unique = sorted({os.path.realpath(folder) for folder in folders if os.path.isdir(folder)})
    libraries = [
        entry.path for folder in unique for entry in os.scandir(folder) if ".so" in entry.name
    ]
    system = [
        "/etc/ld.so.cache",
        "/usr/share/zoneinfo",
        "/etc/localtime",
        os.devnull,
        "/dev/urandom",
    ]
    return (*modules, *libraries, *system)
