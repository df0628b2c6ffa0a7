"""Freed memory that malloc keeps, in processes of their own."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="malloc is not that of glibc"
)
PROGRAM = """
import ctypes, resource
from rlmods.training.allocator import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
print(keep_freed_memory())
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(2**28)
    ctypes.memset(block, 1, 2**28)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def second_use(**environment: str) -> tuple[bool, int]:
    """Return whether malloc was set up, and the page faults of the second use of 256 MiB."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    was_set, faults = found.stdout.split()
    return was_set == "True", int(faults)


def test_freed_memory_is_used_again() -> None:
    was_set, faults = second_use()
    assert was_set
    assert faults < 64  # 2**16 pages of 4 KiB, or 128 of 2 MiB


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_environment_stay(name: str) -> None:
    was_set, faults = second_use(
        **{name: "100000" if name.startswith("MALLOC") else "glibc.malloc.trim_threshold=100000"}
    )
    assert not was_set
    assert faults >= 64
