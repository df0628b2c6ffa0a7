"""The compiled part of the device."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

SOURCE = Path(__file__).parent / "device.cpp"
COMPILER = os.environ.get("CXX", "g++")


def missing() -> str:
    """Return why the device cannot be compiled here; "" if it can."""
    return "" if shutil.which(COMPILER) else f"the simulated device needs a compiler, {COMPILER}"


def torch_folder() -> Path:
    """Return the folder of torch, without importing it."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def library_path() -> Path:
    """Return where the library is kept: among the temporary files of the user. The name depends on
    the source, the version of torch and its folder. The library refers to the libraries of torch by
    their folder, and another checkout's folder may be gone tomorrow."""
    identity = f"{version('torch')} {torch_folder()}"
    key = hashlib.sha256(SOURCE.read_bytes() + identity.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rlmods-simulated-cuda-{os.getuid()}" / f"{key}.so"


def build() -> Path:
    """Return the library, compiled in ten seconds if it is not there."""
    library = library_path()
    folder = library.parent
    folder.mkdir(mode=0o700, exist_ok=True)
    with FileLock(folder / "lock"):
        if not library.exists():
            compiled = library.with_suffix(".new")
            _compile(compiled)
            compiled.replace(library)
    return library


def _compile(target: Path) -> None:
    torch = torch_folder()
    headers = torch / "include"
    libraries = torch / "lib"
    command = [COMPILER, "-O1", "-std=c++20", "-shared", "-fPIC", f"-I{headers}"]
    command += [f"-I{headers / 'torch/csrc/api/include'}", str(SOURCE), "-o", str(target)]
    command += [f"-L{libraries}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True, capture_output=True, text=True)


def load() -> None:
    """Load the library, before torch is imported: its functions then come first."""
    ctypes.CDLL(str(build()), mode=ctypes.RTLD_GLOBAL)
