"""Fork server: a bare interpreter without threads, confined itself (`confinement`), that forks one
process for each request.

The server gets only file descriptors and limits: it never reads code, tests or answers, so that no
process inherits those of another. Its only client is `run`; when the client is gone, the server
kills all processes that it started and exits."""

import gc
import json
import os
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
STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}
"""Names and modes of descriptors 0, 1 and 2."""


def main(control_fd: int) -> None:
    control = socket.socket(fileno=control_fd)
    config, _ = _receive(control)
    sys.path += config["packages"]
    confined = config["readable"] is not None
    try:
        module = import_module(f".{config['module']}", __package__)
        _keep_folder_listings()
        module.prepare_server()
        gc.collect()
        # else a collection in a forked process would touch, and so copy, all objects of the server
        gc.freeze()
        null = os.open(os.devnull, os.O_RDWR)
        if confined:
            confinement.confine_server(config["readable"])
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
        try:
            while True:
                request, descriptors = _receive(self.control)
                try:
                    reply = self.answer(request, descriptors)
                except Exception as error:
                    reply = {"error": f"{type(error).__name__}: {error}"}
                _send(self.control, reply)
        except ConnectionError:  # the client has closed its end
            pass
        finally:
            self.end([*self.children], 0.0)

    def answer(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        if "end" in request:
            return {"exit_code": self.end(**request["end"])}
        return {"pids": self.start(descriptors=descriptors, **request["start"])}

    def start(
        self,
        processes: list[tuple[str, list[str], str]],
        limits: dict[str, int],
        context: Any,
        descriptors: list[int],
    ) -> list[int]:
        """Fork processes (mode, names of its descriptors, folder) and return their ids."""
        pids: list[int] = []
        rest = iter(descriptors)
        try:
            if context is not None:
                self.module.prepare(context)
            for mode, names, folder in processes:
                ends = dict(zip(names, rest, strict=False))
                pids.append(self.fork(mode, ends, limits, folder))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return pids

    def fork(self, mode: str, ends: dict[str, int], limits: dict[str, int], folder: str) -> int:
        pid = os.fork()
        if pid == 0:
            _run(lambda: self.become(mode, ends, limits, folder), as_program=mode == "program")
        self.children.add(pid)
        return pid

    def become(self, mode: str, ends: dict[str, int], limits: dict[str, int], folder: str) -> None:
        """Turn this process, just forked, into the one that was asked for. Raises UnsupportedError
        before anything is run if it cannot be confined."""
        parent = os.getppid()
        os.setsid()
        self.control.close()
        for number, (name, access) in enumerate(STREAMS.items()):
            os.dup2(ends.pop(name, self.null), number)
            stream = open(  # noqa: SIM115
                number, access, encoding="utf-8", errors="surrogateescape", closefd=False
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        keep = sorted({2, *ends.values()})
        for low, high in zip(keep, [*keep[1:], MAX_DESCRIPTORS], strict=True):
            os.closerange(low + 1, high)
        os.chdir(folder)
        confinement.end_with_parent(parent)
        confinement.limit(**limits)
        if self.confined:
            confinement.confine()
        self.module.main(mode, ends)

    def end(self, pids: list[int], grace_s: float) -> int | None:
        """Wait up to `grace_s` for the first process to exit, kill all, and return the exit code of
        the first, negative for a signal."""
        codes: list[int] = []
        for pid in pids:
            status = self.wait(pid, 0.0 if codes else grace_s)
            if status is None:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
            self.kill_group(pid)
            codes.append(os.waitstatus_to_exitcode(status))
        self.children.difference_update(pids)
        return codes[0] if codes else None

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
            time.sleep(pause_s)


def _run(main: Callable[[], None], as_program: bool) -> NoReturn:
    """Run `main` and exit: at once, or as an interpreter does (threads, exit functions, buffers) if
    `main` runs a program."""
    code = 1
    try:
        code = _exit_code(main)
        if as_program:
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()
            if "atexit" in sys.modules:
                sys.modules["atexit"]._run_exitfuncs()
            _flush()
            vars(sys.modules["__main__"]).clear()  # writes the buffers of the program's own files
        _flush()
    finally:
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):  # closed, or replaced by something else
            stream.flush()  # type: ignore[union-attr]


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
    chunk = data
    while not data.endswith(b"\n"):
        if not chunk:
            raise ConnectionResetError
        chunk = control.recv(MAX_MESSAGE_BYTES)
        data += chunk
    return json.loads(data), descriptors


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        # not `send`, which a confined process may not call
        data = data[os.write(control.fileno(), data) :]
