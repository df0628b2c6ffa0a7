"""Fork server: a bare interpreter without threads, confined itself (`walls`), that forks one
process for each request.

The server gets only file descriptors and limits: it never reads code, tests or answers, so that no
process inherits those of another. Its only client is `run`; when the client is gone, the server
kills all processes that it started and exits."""

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.machinery import FileFinder
from pathlib import Path
from typing import Any, NoReturn

from . import walls  # relative, as this package is imported here as `sandbox`, without rlmods

MAX_MESSAGE_BYTES = 65536
MAX_DESCRIPTORS = 256
CONFINE_TIMEOUT_S = 50.0
"""Time for a forked process to be confined. Less than the client waits (`run.START_TIMEOUT_S`)."""


class ClientGoneError(Exception):
    """The client has closed its end of the connection."""


def main(control_fd: int) -> None:
    control = socket.socket(fileno=control_fd)
    config, _ = _receive(control)
    sys.path += config["packages"]
    try:
        walls.adopt_orphans()
        module = import_module(f".{config['module']}", __package__)
        _keep_folder_listings()
        module.prepare_server()
        _open_standard_streams()
        gc.collect()
        # else a collection in a forked process would touch, and so copy, all objects of the server
        gc.freeze()
        null = os.open(os.devnull, os.O_RDWR)
        if confined := config["readable"] is not None:
            walls.confine_server(config["readable"], config["abi"])
    except Exception as error:
        _send(control, {"error": f"{type(error).__name__}: {error}"})
        return
    _send(control, {"pid": os.getpid()})
    Server(control, confined, null, module).run()


def _keep_folder_listings() -> None:
    """Keep the names of the folders on `sys.path`: a confined process may import from the standard
    library's folder, but not list it."""
    for finder in sys.path_importer_cache.values():
        if isinstance(finder, FileFinder):
            finder._fill_cache()  # type: ignore[attr-defined]
            finder._fill_cache = lambda: None  # type: ignore[attr-defined]


def _open_standard_streams() -> None:
    """Open the standard streams, so that a forked process only replaces their descriptors. On a
    pipe: the streams cannot seek."""
    ends = os.pipe()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        own = os.dup(number)
        os.dup2(ends[number > 0], number)
        stream = open(  # noqa: SIM115
            number,
            "w" if number else "r",
            encoding="utf-8",
            errors="surrogateescape",
            closefd=False,
        )
        os.dup2(own, number)
        os.close(own)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for end in ends:
        os.close(end)


class Server:
    """Starts processes and ends them. `module.main(mode, ends)` is what a process runs;
    `module.prepare(context)` runs here before."""

    def __init__(self, control: socket.socket, confined: bool, null: int, module: Any) -> None:
        self.control, self.confined, self.null, self.module = control, confined, null, module
        self.children: set[int] = set()

    def run(self) -> None:
        """Answer requests until the client is gone."""
        try:
            while True:
                request, descriptors = _receive(self.control)
                try:
                    reply = (
                        self.end(**request["end"])
                        if "end" in request
                        else self.start(descriptors=descriptors, **request["start"])
                    )
                except ClientGoneError:
                    raise
                except Exception as error:
                    reply = {"error": f"{type(error).__name__}: {error}"}
                _send(self.control, reply)
        except (ClientGoneError, BrokenPipeError):
            pass
        finally:
            for pid in self.children:
                _kill(pid)
            self.kill_descendants(set())

    def start(
        self,
        processes: list[tuple[str, list[str], str]],
        limits: dict[str, int],
        context: Any,
        descriptors: list[int],
    ) -> dict[str, Any]:
        """Fork processes (mode, names of its descriptors, folder) and return their ids once they
        are confined."""
        started, rest = [], iter(descriptors)
        try:
            if context is not None:
                self.module.prepare(context)
            for mode, names, folder in processes:
                ends = {name: next(rest) for name in names}
                started.append(self.fork(mode, ends, limits, folder))
                self.children.add(started[-1][0])
        except OSError:  # no further process
            if started:
                self.end([pid for pid, _ in started], 0.0)
            raise
        finally:
            for end in descriptors:
                os.close(end)
        messages = [self.read(ready) for _, ready in started]
        if set(messages) != {b"1"}:
            self.end([pid for pid, _ in started], 0.0)
            raise walls.UnsupportedError(
                min(messages).decode() or "the process ended before it was confined"
            )
        return {"pids": [pid for pid, _ in started]}

    def fork(
        self, mode: str, ends: dict[str, int], limits: dict[str, int], folder: str
    ) -> tuple[int, int]:
        """Fork a process. Return its id, and a descriptor with b"1" once it is confined, else the
        reason."""
        ready, confined = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run(
                lambda: self.become(mode, ends, limits, folder, confined),
                as_program=mode == "program",
            )
        os.close(confined)
        return pid, ready

    def become(
        self, mode: str, ends: dict[str, int], limits: dict[str, int], folder: str, confined: int
    ) -> None:
        """Turn this process, just forked, into the one that was asked for."""
        parent = os.getppid()
        os.setsid()
        self.control.close()
        standard = {name: ends.pop(name, None) for name in ("stdin", "stdout", "stderr")}
        for number, end in enumerate(standard.values()):
            os.dup2(self.null if end is None else end, number)
        keep = sorted({2, confined, *ends.values()})
        for low, high in zip(keep, [*keep[1:], MAX_DESCRIPTORS], strict=True):
            os.closerange(low + 1, high)
        os.chdir(folder)
        try:
            walls.limit(parent=parent, **limits)
            if self.confined:
                walls.confine()
        except walls.UnsupportedError as error:
            os.write(confined, str(error).encode())
            return
        os.write(confined, b"1")
        os.close(confined)
        self.module.main(mode, ends)

    def end(self, pids: list[int], grace_s: float) -> dict[str, Any]:
        """Wait up to `grace_s` for the first process to exit, kill all with their descendants, and
        return the exit code of the first, negative for a signal."""
        status = self.wait(pids[0], grace_s)
        killed = status is None
        for pid in pids[not killed :]:
            _kill(pid)
            _, ended = os.waitpid(pid, 0)
            status = ended if status is None else status
        assert status is not None
        self.children.difference_update(pids)
        if not self.confined:
            self.kill_descendants(self.children)
        return {"exit_code": os.waitstatus_to_exitcode(status), "killed": killed}

    def wait(self, pid: int, grace_s: float) -> int | None:
        """Return the status of a process, or None if it still runs after `grace_s`."""
        deadline, pause_s = time.monotonic() + grace_s, 1e-4
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return None
            pause_s = min(2 * pause_s, 0.01, remaining_s)
            if select.select([self.control], [], [], pause_s)[0]:
                raise ClientGoneError

    def read(self, ready: int) -> bytes:
        """Return the message from a pipe, b"" if there is none within `CONFINE_TIMEOUT_S`, and
        close it. One read: the message fits into a pipe, and its end may never come while another
        process holds the pipe open. Raises ClientGoneError."""
        try:
            readable, _, _ = select.select(
                [ready, self.control.fileno()], [], [], CONFINE_TIMEOUT_S
            )
            if self.control.fileno() in readable and ready not in readable:
                raise ClientGoneError
            return os.read(ready, MAX_MESSAGE_BYTES) if readable else b""
        finally:
            os.close(ready)

    def kill_descendants(self, keep: set[int]) -> None:
        """Kill all descendants except `keep`, also those in a session of their own, whose parent
        has ended (`walls.adopt_orphans`)."""
        while pids := [pid for pid in _descendants(os.getpid()) if pid not in keep]:
            for pid in pids:
                _kill(pid)
            for pid in pids:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _descendants(root: int) -> list[int]:
    """Return the processes below `root` (Linux)."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, pending = [], [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _run(main: Callable[[], None], as_program: bool) -> NoReturn:
    """Run `main` and exit: at once, or as an interpreter does (threads, exit functions, buffers) if
    `main` runs a program."""
    code = 1
    try:
        code = _exit_code(main)
        if not as_program:
            os._exit(code)
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        _flush()
        _release_globals()
        _flush()
    finally:
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):  # closed, or replaced by something else
            stream.flush()  # type: ignore[union-attr]


def _release_globals() -> None:
    """Set the globals of the program to None, as an interpreter does at its end: files of its own
    are written."""
    namespace = vars(sys.modules["__main__"])
    for name in list(namespace):
        if name != "__builtins__":
            namespace[name] = None


def _exit_code(main: Callable[[], None]) -> int:
    try:
        main()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a message, which is one line, and the file descriptors that came with it."""
    data, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 8)
    while data and not data.endswith(b"\n"):
        if not (more := control.recv(MAX_MESSAGE_BYTES)):
            raise ClientGoneError
        data += more
    if not data:
        raise ClientGoneError
    return json.loads(data), descriptors


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        # not `send`, which a confined process may not call
        data = data[os.write(control.fileno(), data) :]
