"""Commands in processes of their own that start fast: forked from a server that has imported the
packages already.

Importing torch, Lightning and transformers takes seconds, more than most commands that tests run.
`Process` is the part of `subprocess.Popen` that tests use. At least one test of every command
starts a real interpreter."""

import atexit
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRELOAD = [
    "rlmods.cli.job",
    "rlmods.policy",
    "torch._dynamo",
    "transformers.models.llama.modeling_llama",
    "pytest",
    "hydra.main",
    "tests.support.frozen",
]

CONTEXT: Any = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOAD)


class Process:
    """A command that runs in a session of its own.

    Args:
        command: `["train.py", ...]`, a script of the repository, or `["-m", MODULE, ...]`.
        env: its environment variables; None: those of this process.
        merge: write standard error to standard output.
        stdin: let `communicate` write to standard input; else it is empty.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        merge: bool = False,
        stdin: bool = False,
    ) -> None:
        self.folder = tempfile.mkdtemp()
        self.files = [
            Path(self.folder, name) for name in ("stdin", "stdout", "stdout" if merge else "stderr")
        ]
        if stdin:
            os.mkfifo(self.files[0])
        arguments = (list(command), str(cwd), dict(os.environ if env is None else env), self.files)
        self.process = CONTEXT.Process(target=_run, args=arguments)
        self.process.start()
        self.pid: int = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode  # type: ignore[no-any-return]

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """
        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self.returncode

    def wait_for(self, text: str, timeout: float = 60.0) -> None:
        """Wait until the text is on standard output.

        Raises:
            subprocess.TimeoutExpired: it is not after `timeout` seconds, or the command has ended
            without it.
        """
        end = time.monotonic() + timeout
        while not (self.files[1].exists() and text in self.files[1].read_text()):
            if time.monotonic() > end or self.returncode is not None:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.02)

    def communicate(self, input: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Write to standard input, wait, and return standard output and standard error."""
        if input:
            self.files[0].write_text(input)
        self.wait(timeout)
        out, err = (file.read_text() if file.exists() else "" for file in self.files[1:])
        shutil.rmtree(self.folder, ignore_errors=True)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(command: list[str], cwd: str, env: dict[str, str], files: list[Path]) -> None:
    """Become the command."""
    os.setsid()
    if files[0].exists():
        os.dup2(os.open(files[0], os.O_RDWR), 0)
        sys.stdin = os.fdopen(0)
    for number, file in zip((1, 2), files[1:], strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = (
        os.fdopen(1, "w", buffering=1),
        os.fdopen(2, "w", buffering=1, errors="backslashreplace"),
    )
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            sys.path[0] = cwd
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [str(ROOT / command[0]), *command[1:]]
            sys.path[0] = str(ROOT)
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
