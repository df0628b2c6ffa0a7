import errno
import fcntl
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.run import lock
from tests.support.processes import Process


def start_owner(folder: Path) -> tuple[Process, list[int]]:
    """Start another process that locks `folder`; return it and the ids of its children, a program
    and a fork."""
    process = Process(["-m", "tests.run.lock_owner", str(folder)])
    process.wait_for("\n")
    return process, [int(pid) for pid in process.files[1].read_text().split()]


class TestAcquire:
    def test_error_names_the_owner_and_the_lock_ends_with_its_process(self, tmp_path: Path) -> None:
        other, children = start_owner(tmp_path)
        try:
            before = (tmp_path / lock.LOCK_FILE).read_bytes()
            owner = (
                rf"run_dir={tmp_path} is in use by process {other.pid} on {socket.gethostname()}: "
                r"type another run_dir=\.\.\."
            )
            with pytest.raises(UserError, match=owner) as error:
                lock.acquire(tmp_path)
            assert "\n" not in str(error.value)
            assert (tmp_path / lock.LOCK_FILE).read_bytes() == before
            other.kill()
            other.wait()
            assert all(Path(f"/proc/{child}").exists() for child in children), (
                "its children are still running"
            )
            assert lock.acquire(tmp_path)
            lock.release(tmp_path)
        finally:
            other.kill()
            for child in children:
                os.kill(child, signal.SIGKILL)
            other.communicate()

    def test_is_acquired_once_per_process(self, tmp_path: Path) -> None:
        assert lock.acquire(tmp_path)
        assert not lock.acquire(tmp_path / "." / "../" / tmp_path.name)
        lock.write_owner(tmp_path)
        assert (
            tmp_path / lock.LOCK_FILE
        ).read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
        lock.release(tmp_path)
        assert lock.acquire(tmp_path)
        lock.release(tmp_path)

    def test_file_system_without_locks_gives_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unsupported(*_: Any) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", unsupported)
        with pytest.warns(UserWarning, match="has no locks"):
            assert lock.acquire(tmp_path)
        lock.release(tmp_path)
