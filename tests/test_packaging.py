"""Every extra installs with the versions that are tested."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NO_WHEELS_HERE = {"vllm", "bench", "dev"}
"""Extras for a GPU, and those whose installation `make bench` and `make test` try."""


@pytest.mark.nightly
@pytest.mark.parametrize("extra", sorted(set(PROJECT["optional-dependencies"]) - NO_WHEELS_HERE))
def test_extra_resolves_with_the_constraints(extra: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet"]
    command += ["--constraint", "constraints.txt", f".[{extra}]"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
