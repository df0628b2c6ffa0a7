"""Run untrusted code in confined processes and report how the run ended. The processes are forked
by a server (`server`)."""

import atexit
import fcntl
import json
import os
import select
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from rlmods.grading.sandbox.test_runner import FAILED

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
"""Largest file that can be written with `confined=False`."""
CHUNK_BYTES = 65536
"""Read at a time; what is kept of stderr."""
MAX_THREADS = 256
"""Threads of a process, which each take a process id of the machine."""
WATCH_S = 0.02
"""Seconds between two counts of threads."""
PREFIX = "rlmods_sandbox_"
START_TIMEOUT_S = 60.0
"""Time for the server to start on a busy machine. `Limits.timeout_s` does not include it."""

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
    status: Status
    """`error`: exit status other than 0, for example from an exception. `output`: more than
    `Limits.output_bytes`."""
    stdout: str = ""
    stderr_line: str = ""
    """Last line on stderr."""


Start = tuple[str, Mapping[str, Any], Mapping[str, FileIO]]
"""Process to start: its mode, its job, and the files that it gets, by name. They are closed in this
process once it has started."""


def run_program(source: str, stdin: str, limits: Limits) -> RunResult:
    """Run `source` as a program. Raises RuntimeError if this machine cannot confine it."""
    with ExitStack() as stack:
        output, stdout = _pipe(stack)
        errors, stderr = _pipe(stack)
        data = _file(stdin.encode("utf-8", "surrogatepass"), stack)
        ends = {"stdin": data, "stdout": stdout, "stderr": stderr}
        program = ("program", {"source": source}, ends)
        return _run("child", [program], limits, output, errors)


def run_tests(
    source: str, tests: Sequence[str], limits: Limits, entry_point: str | None = None
) -> tuple[list[str], bool]:
    """Run `tests`, Python code that calls the names defined by `source`, and return
    `test_runner.PASSED`, `FAILED` or `UNUSED` for each, and whether the time limit ended them.

    Tests and source are in different processes that exchange only plain values (`wire`): the code
    under test cannot end the tests early, patch what they use, or return an object that equals
    everything. A test that does not use the code is `UNUSED`.

    Args:
        entry_point: name of the function that the tests call `candidate` (HumanEval).

    Raises:
        RuntimeError: this machine cannot confine code.
    """
    with ExitStack() as stack:
        calls, calls_end = _pipe(stack)
        replies, replies_end = _pipe(stack)
        results, results_end = _pipe(stack)
        job = {"tests": list(tests), "entry_point": entry_point}
        runner = ("tests", job, {"calls": calls_end, "replies": replies, "results": results_end})
        code = ("code", {"source": source}, {"calls": calls, "replies": replies_end})
        run = _run("child", [runner, code], limits, results)
    passed = run.stdout.split()[: len(tests)]
    failed = [FAILED] * (len(tests) - len(passed))
    return passed + failed, run.status == "timeout"


def call_function(
    module: str, job: Mapping[str, Any], limits: Limits, context: object = None
) -> tuple[str, Status]:
    """Run `main` of a module of this package on a job, and return what it wrote to its results
    descriptor.

    Args:
        context: passed to `prepare` of the module, which runs once in the server. Not for untrusted
        text.
    """
    with ExitStack() as stack:
        results, results_end = _pipe(stack)
        run = _run(
            module, [("call", job, {"results": results_end})], limits, results, None, context
        )
    return run.stdout, run.status


def check(module: str, limits: Limits) -> None:
    """Start the confined server of a module. Raises RuntimeError if this machine cannot confine
    code."""
    _server(module, limits)


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    """Both ends of a pipe, as files: closing one twice is safe even if its descriptor number is in
    use again."""
    reader, writer = os.pipe()
    return stack.enter_context(FileIO(reader, "rb")), stack.enter_context(FileIO(writer, "wb"))


def _file(content: bytes, stack: ExitStack) -> FileIO:
    """Return a file to read `content` from, which no one can change. On Linux it is in memory, and
    confined programs that read `/dev/stdin` can open it."""
    if not sys.platform.startswith("linux"):
        with tempfile.NamedTemporaryFile(prefix=PREFIX) as file:
            file.write(content)
            file.flush()
            return stack.enter_context(FileIO(file.name, "rb"))  # without a right to write
    with open(os.memfd_create(PREFIX, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as memory:
        memory.write(content)
        memory.flush()
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        return stack.enter_context(FileIO(f"/proc/self/fd/{memory.fileno()}", "rb"))


class _Server:
    """Fork server of one kind of process, with the connection to it. It ends with this process."""

    def __init__(self, module: str, limits: Limits) -> None:
        self.socket, other = socket.socketpair()
        self.replies = self.socket.makefile("rb")
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        with other:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-s", "-S", "-c", BOOT),
                    *(str(PACKAGE.parent), str(other.fileno())),
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
        packages = list(_packages()) if limits.packages else []
        readable = [*_readable(), *packages] if limits.confined else None
        self.request({"module": module, "packages": packages, "readable": readable})

    def request(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = (), extra_s: float = 0.0
    ) -> Any:
        """Return the server's reply. Raises RuntimeError if it is an error, or if the server is
        gone."""
        self.socket.settimeout(START_TIMEOUT_S + extra_s)
        try:
            socket.send_fds(self.socket, [json.dumps(message).encode() + b"\n"], descriptors)
            line = self.replies.readline()
        except OSError:  # also: no reply in time
            line = b""
        if not line.endswith(b"\n"):
            self.errors.seek(0)
            reason = _last_line(self.errors.read()) or "its server has ended"
            self.close()
            raise RuntimeError(f"the sandbox did not start: {reason}")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"the sandbox did not start: {reply['error']}")
        return reply

    def close(self) -> None:
        """End the server, which then kills the processes that it has started."""
        self.replies.close()
        self.socket.close()
        self.errors.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()


_SERVERS: dict[tuple[Any, ...], _Server] = {}


def _server(module: str, limits: Limits) -> _Server:
    """Return this process's server, which is started at first use and replaced if it was killed."""
    key = (os.getpid(), module, limits.packages, limits.confined)
    if key not in _SERVERS or _SERVERS[key].process.poll() is not None:
        _SERVERS[key] = _Server(module, limits)
        atexit.register(_SERVERS[key].close)
    return _SERVERS[key]


def _run(
    module: str,
    starts: Sequence[Start],
    limits: Limits,
    output: FileIO,
    errors: FileIO | None = None,
    context: Any = None,
) -> RunResult:
    """Start processes, read `output` of the first until its end, the deadline or the output limit,
    and return how it ended. Then all are killed."""
    server = _server(module, limits)
    with ExitStack() as stack:
        files: list[FileIO] = []
        processes = []
        for mode, job, ends in starts:
            files += [_file(json.dumps(job).encode(), stack), *ends.values()]
            folder = "/"
            if not limits.confined:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
            processes.append((mode, ["job", *ends], folder))
        settings = {
            "cpu_s": int(min(limits.timeout_s, 1e9)) + 1,
            "memory_mb": limits.memory_mb,
            "file_bytes": FILE_BYTES,
        }
        request = {"processes": processes, "limits": settings, "context": context}
        reply = server.request({"start": request}, [file.fileno() for file in files])
        deadline = time.monotonic() + limits.timeout_s
        for file in files:
            file.close()
        grace_s = 0.0
        watch = stack.enter_context(_watched(reply["pids"]))
        try:
            data, last_words = _read(output, errors, deadline, limits.output_bytes)
            if len(data) <= limits.output_bytes:
                grace_s = max(0.0, deadline - time.monotonic())
        finally:
            end = {"pids": reply["pids"], "grace_s": grace_s}
            exit_code = server.request({"end": end}, extra_s=grace_s)["exit_code"]
    text = data[: limits.output_bytes].decode("utf-8", "replace")
    if len(data) > limits.output_bytes:
        return RunResult("output", text)
    if watch:
        return RunResult("error", text, f"more than {MAX_THREADS} threads")
    if exit_code in (-signal.SIGXCPU, -signal.SIGKILL):
        return RunResult("timeout", text)
    return RunResult("ok" if exit_code == 0 else "error", text, _last_line(last_words))


@contextmanager
def _watched(pids: Sequence[int]) -> Iterator[list[int]]:
    """Kill processes, which have just started, as soon as they have more than `MAX_THREADS` threads
    (Linux). Yields the list of those."""
    killed: list[int] = []
    ended = threading.Event()
    with ExitStack() as stack:
        files = {}
        for pid in pids if sys.platform.startswith("linux") else ():
            files[pid] = stack.enter_context(FileIO(f"/proc/{pid}/status"))

        def watch() -> None:
            while not ended.wait(WATCH_S):
                for pid, status in files.items():
                    with suppress(ProcessLookupError):  # it has ended
                        if _num_threads(status) > MAX_THREADS:
                            killed.append(pid)
                            os.kill(pid, signal.SIGKILL)

        watcher = threading.Thread(target=watch, name="sandbox", daemon=True)
        watcher.start()
        try:
            yield killed
        finally:
            ended.set()
            watcher.join()


def _num_threads(status: FileIO) -> int:
    status.seek(0)
    _, _, rest = status.read(4096).partition(b"Threads:")
    return int(rest.split()[0]) if rest else 0


def _read(
    output: FileIO, errors: FileIO | None, deadline: float, max_bytes: int
) -> tuple[bytes, bytes]:
    """Return what a process writes to `output` until the end or the deadline, or a little more than
    `max_bytes`, and the last that it writes to `errors`."""
    data = b""
    last_words = b""
    streams = {file.fileno() for file in (output, errors) if file is not None}
    poll = select.poll()
    for stream in streams:
        poll.register(stream, select.POLLIN)
    while streams and len(data) <= max_bytes:
        remaining_s = max(0.0, deadline - time.monotonic())
        ready = poll.poll(1000 * remaining_s)
        if not ready:
            break
        for stream, _ in ready:
            chunk = os.read(stream, CHUNK_BYTES)
            if not chunk:
                poll.unregister(stream)
                streams.remove(stream)
            elif stream == output.fileno():
                data += chunk
            else:
                last_words = (last_words + chunk)[-CHUNK_BYTES:]
    return data, last_words


def _last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else ""


@cache
def _packages() -> tuple[str, ...]:
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return tuple(sorted(folders.intersection(sys.path)))


@cache
def _readable() -> tuple[str, ...]:
    """Paths that an interpreter needs: the standard library without installed packages, and the
    system's shared libraries."""
    system = ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/etc/localtime", os.devnull)
    return (*_standard_library(), *_shared_libraries(), *system, "/dev/urandom")


def _standard_library() -> list[str]:
    """Return the files and folders of the standard library that hold no installed packages."""
    paths = sysconfig.get_paths()
    packages = [*site.getsitepackages(), paths["purelib"], paths["platlib"]]
    excluded = {os.path.realpath(path) + os.sep for path in packages}
    found = []
    for folder in sorted({paths["stdlib"], paths["platstdlib"]}):
        for entry in os.scandir(folder):
            real = os.path.realpath(entry.path) + os.sep
            holds_packages = any(path.startswith(real) for path in excluded)
            if entry.name not in ("site-packages", "dist-packages") and not holds_packages:
                found.append(entry.path)
    return found


def _shared_libraries() -> list[str]:
    """Return the shared libraries of the system and of Python."""
    folders = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"]
    folders.append(sysconfig.get_config_var("LIBDIR") or "")
    architecture = sysconfig.get_config_var("MULTIARCH") or "lib"
    folders += [os.path.join(folder, architecture) for folder in folders]
    found = []
    for folder in sorted({os.path.realpath(path) for path in folders if os.path.isdir(path)}):
        found += [entry.path for entry in os.scandir(folder) if ".so" in entry.name]
    return found
