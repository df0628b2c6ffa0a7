import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlmods.run import lock
from rlmods.types import UserError

HOLDER = """
import os, subprocess, sys
from pathlib import Path
from rlmods.run import lock
lock.hold(Path(sys.argv[1]))
lock.sign(Path(sys.argv[1]))
program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
fork = os.fork()
if fork == 0:
    import time
    time.sleep(60)
    os._exit(0)
print(program.pid, fork, flush=True)
sys.stdin.read()
"""


def holder(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Another process that holds `folder` and has children of both kinds: a program, and a fork."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", HOLDER, str(folder)], **pipes)
    assert process.stdout is not None
    return process, [int(pid) for pid in process.stdout.readline().split()]


class TestHold:
    def test_another_process_is_named_and_its_death_frees(self, tmp_path: Path) -> None:
        other, children = holder(tmp_path)
        try:
            before = (tmp_path / lock.NAME).read_bytes()
            owner = rf"run_dir={tmp_path} is in use by process {other.pid} on {socket.gethostname()}: type another run_dir=\.\.\."
            with pytest.raises(UserError, match=owner) as error:
                lock.hold(tmp_path)
            assert "\n" not in str(error.value)
            assert (tmp_path / lock.NAME).read_bytes() == before
            other.kill()
            other.wait()
            assert all(Path(f"/proc/{child}").exists() for child in children), "what it started lives on"
            assert lock.hold(tmp_path)
            lock.release(tmp_path)
        finally:
            other.kill()
            for child in children:
                os.kill(child, signal.SIGKILL)
            other.communicate()

    def test_once_for_all_of_this_process(self, tmp_path: Path) -> None:
        assert lock.hold(tmp_path)
        assert not lock.hold(tmp_path / "." / "../" / tmp_path.name)
        lock.sign(tmp_path)
        assert (tmp_path / lock.NAME).read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
        lock.release(tmp_path)
        assert lock.hold(tmp_path)
        lock.release(tmp_path)

    def test_a_file_system_without_locks_is_a_warning(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def unsupported(*_: Any) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", unsupported)
        with pytest.warns(UserWarning, match="knows no locks"):
            assert lock.hold(tmp_path)
        lock.release(tmp_path)
