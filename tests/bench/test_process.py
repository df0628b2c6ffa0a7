"""Measured processes."""

from pathlib import Path

import psutil
import pytest

from bench import process

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_an_interrupted_measurement_ends_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[psutil.Process] = []

    def resident_bytes(root: psutil.Process) -> int:
        found[:] = [root, *root.children(recursive=True)]
        if len(found) > 1:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(process, "resident_bytes", resident_bytes)
    sleep = "import time; time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{sleep}'])"
    with pytest.raises(KeyboardInterrupt):
        process.run_python(["-c", code], tmp_path / "log")
    psutil.wait_procs(found, timeout=30)
    assert len(found) == 2
    assert not any(x.is_running() and x.status() != psutil.STATUS_ZOMBIE for x in found)
