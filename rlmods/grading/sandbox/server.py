"""Fork server: a bare interpreter without threads, confined itself (`confinement`), that forks one
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
from typing import Any, NoReturn

from . import confinement  # relative, as this package is imported here as `sandbox`, without rlmods

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
        module = import_module(f".{config['module']}", __package__)
        _keep_folder_listings()
        module.prepare_server()
        _open_standard_streams()
        gc.collect()
        # else a collection in a forked process would touch, and so copy, all objects of the server
        gc.freeze()
        null = os.open(os.devnull, os.O_RDWR)
        confined = config["readable"] is not None
        if confined:
            confinement.confine_server(config["readable"], config["abi"])
    except Exception as error:
        _send(control, {"error": f"{type(error).__name__}: {error}"})
        return
    _send(control, {"ready": True})
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
    reader, writer = os.pipe()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        own = os.dup(number)
        os.dup2(writer if number else reader, number)
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
    os.close(reader)
    os.close(writer)


class Server:
    """Starts processes and ends them. `module.main(mode, ends)` is what a process runs;
    `module.prepare(context)` runs here before."""

    def __init__(self, control: socket.socket, confined: bool, null: int, module: Any) -> None:
        self.control = control
        self.confined = confined
        self.null = null
        self.module = module
        self.children: set[int] = set()

    def run(self) -> None:
        """Answer requests until the client is gone."""
        try:
            while True:
                request, descriptors = _receive(self.control)
                _send(self.control, self.answer(request, descriptors))
        except (ClientGoneError, BrokenPipeError):
            pass
        finally:
            for pid in self.children:
                os.kill(pid, signal.SIGKILL)
                self.kill_group(pid)

    def answer(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        try:
            if "end" in request:
                return self.end(**request["end"])
            return self.start(descriptors=descriptors, **request["start"])
        except ClientGoneError:
            raise
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def start(
        self,
        processes: list[tuple[str, list[str], str]],
        limits: dict[str, int],
        context: Any,
        descriptors: list[int],
    ) -> dict[str, Any]:
        """Fork processes (mode, names of its descriptors, folder) and return their ids once they
        are confined."""
        started: dict[int, int] = {}
        rest = iter(descriptors)
        try:
            if context is not None:
                self.module.prepare(context)
            for mode, names, folder in processes:
                ends = {name: next(rest) for name in names}
                pid, ready = self.fork(mode, ends, limits, folder)
                started[pid] = ready
                self.children.add(pid)
        except OSError:  # no further process
            self.end(list(started), 0.0)
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        messages = [self.read(ready) for ready in started.values()]
        problems = [message for message in messages if message != b"1"]
        if problems:
            self.end(list(started), 0.0)
            reason = problems[0].decode() or "the process ended before it was confined"
            raise confinement.UnsupportedError(reason)
        return {"pids": list(started)}

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
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(ends.pop(name, self.null), number)
        keep = sorted({2, confined, *ends.values()})
        for low, high in zip(keep, [*keep[1:], MAX_DESCRIPTORS], strict=True):
            os.closerange(low + 1, high)
        os.chdir(folder)
        try:
            confinement.end_with_parent(parent)
            confinement.limit(**limits)
            if self.confined:
                confinement.confine()
        except confinement.UnsupportedError as error:
            os.write(confined, str(error).encode())
            return
        os.write(confined, b"1")
        os.close(confined)
        self.module.main(mode, ends)

    def end(self, pids: list[int], grace_s: float) -> dict[str, Any]:
        """Wait up to `grace_s` for the first process to exit, kill all, and return the exit code of
        the first, negative for a signal."""
        codes: dict[int, int] = {}
        killed = False
        for pid in pids:
            status = None if codes else self.wait(pid, grace_s)
            if status is None:
                killed |= not codes
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
            self.kill_group(pid)
            codes[pid] = os.waitstatus_to_exitcode(status)
        self.children.difference_update(pids)
        return {"exit_code": codes[pids[0]] if pids else None, "killed": killed}

    def kill_group(self, pid: int) -> None:
        """Kill what an unconfined process has started; not what has left its group."""
        if not self.confined:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def wait(self, pid: int, grace_s: float) -> int | None:
        """Return the status of a process, or None if it still runs after `grace_s`."""
        deadline = time.monotonic() + grace_s
        pause_s = 1e-4
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
        control = self.control.fileno()
        try:
            readable, _, _ = select.select([ready, control], [], [], CONFINE_TIMEOUT_S)
            if control in readable and ready not in readable:
                raise ClientGoneError
            return os.read(ready, MAX_MESSAGE_BYTES) if readable else b""
        finally:
            os.close(ready)


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
        more = control.recv(MAX_MESSAGE_BYTES)
        if not more:
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
