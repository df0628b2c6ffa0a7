"""Every extra installs, with the versions that are tested."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN_TORCH = {"vllm"}
"""Extras that fix the version of torch."""


def test_lowest_versions_are_tried() -> None:
    """By `make versions-all`."""
    makefile = (ROOT / "Makefile").read_text()
    [pins] = re.findall(r"^LOWEST := (.+)$", makefile, re.MULTILINE)
    bounds = dict(re.findall(r"([\w-]+)>=([\d.]+)", " ".join(PROJECT["dependencies"])))
    for pin in pins.split():
        name, version = pin.split("==")
        assert Version(version) == Version(bounds[name])


@pytest.mark.nightly
@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_extra_resolves_with_the_constraints(extra: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet"]
    if extra not in OWN_TORCH:
        command += ["--constraint", "constraints.txt"]
    command += ["--editable", f".[{extra}]"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
