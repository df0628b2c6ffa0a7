"""Fetch wheels for a machine without a network: `make gpu-wheels`.

    python bench/gpu/wheels.py FOLDER [--image FILE] [--python 3.12]

They are what training and adapters need on 64-bit x86 Linux: gigabytes, because torch brings CUDA.
FILE is the output of `pip list --format=freeze` in an image. Its packages are left out unless they
are too old, and the others fit them. Needs pip and nothing else."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ModuleNotFoundError:  # pip has a copy, but its import changes distutils for the process
    from pip._vendor.packaging.requirements import Requirement  # type: ignore[assignment]

ROOT = Path(__file__).parents[2]
EXTRAS = ("lora",)
SOURCES = {"antlr4-python3-runtime": "4.9.3"}
"""Packages that are published without a wheel, in pure Python."""
GLIBC = 35
"""Minor version of the C library 2.N of the machine, at least."""


def requirements() -> list[str]:
    """Return the core dependencies and those of `EXTRAS`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = list(project["dependencies"])
    for extra in EXTRAS:
        found += project["optional-dependencies"][extra]
    return found


def normal(name: str) -> str:
    """Return a package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_image(path: Path) -> dict[str, str]:
    """Return the versions in an image by name."""
    found = {}
    for line in path.read_text().splitlines():
        name, separator, version = line.strip().partition("==")
        if separator and not name.startswith(("#", "-")):
            found[normal(name)] = version
    return found


def usable(image: Mapping[str, str]) -> dict[str, str]:
    """Return the packages of an image without those that are too old or too new, and print these."""
    kept = dict(image)
    for requirement in map(Requirement, requirements()):
        name = normal(requirement.name)
        if name in kept and not requirement.specifier.contains(kept[name], prereleases=True):
            print(f"{name} {kept[name]} of the image is replaced: {requirement} is required")
            del kept[name]
    return kept


def write_stub(folder: Path, name: str, version: str) -> str:
    """Write an empty wheel that stands for a package of the image, and return its version. Indexes
    do not have this version, so that pip takes the stub."""
    version = version if "+" in version else f"{version}+image"
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    wheel = "Wheel-Version: 1.0\nGenerator: rlmods\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as file:
        file.writestr(f"{stem}.dist-info/METADATA", metadata)
        file.writestr(f"{stem}.dist-info/WHEEL", wheel)
        file.writestr(f"{stem}.dist-info/RECORD", "")
    return version


def constraints(image: Mapping[str, str]) -> list[str]:
    """Return the versions to take: those of the image, and of constraints.txt for the rest."""
    kept = [f"{name}=={version}" for name, version in image.items()]
    if image:  # versions of constraints.txt may not fit those of the image
        return kept
    return (ROOT / "constraints.txt").read_text().splitlines()


def platforms() -> list[str]:
    """Return the platforms whose wheels run there. pip takes each only if it is named."""
    named = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    return [*named, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]


def pip(*arguments: str) -> None:
    """Run pip.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], check=False)
    if done.returncode:
        raise SystemExit(
            f"pip {arguments[0]} failed: if packages of the image conflict with others, remove their "
            "lines from its list"
        )


def fetch(folder: Path, image: Mapping[str, str], python: str) -> list[Path]:
    """Fill the folder, and return the wheels."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        found = work / "found"
        found.mkdir()
        stubs = work / "stubs"
        stubs.mkdir()
        versions = {}
        for package, version in image.items():
            versions[package] = write_stub(stubs, package, version)
        for package, version in SOURCES.items():
            if package not in image:
                wanted = f"{package}=={version}"
                pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(stubs), wanted)
        (work / "constraints").write_text("\n".join(constraints(versions)))
        (work / "requirements").write_text("\n".join(requirements()))
        tags = [f"--platform={platform}" for platform in platforms()]
        pip(
            "download",
            "--quiet",
            "--only-binary=:all:",
            f"--python-version={python}",
            "--implementation=cp",
            *tags,
            f"--find-links={stubs}",
            f"--constraint={work / 'constraints'}",
            f"--requirement={work / 'requirements'}",
            f"--dest={found}",
        )
        given = {f"{package.replace('-', '_')}-{v}" for package, v in versions.items()}
        for path in found.glob("*.whl"):
            if "-".join(path.name.split("-")[:2]) not in given:
                shutil.move(path, folder / path.name)
    return sorted(folder.glob("*.whl"))


def main(arguments: Sequence[str]) -> None:
    """Fetch the wheels, and print their names and size."""
    parser = argparse.ArgumentParser(prog="bench/gpu/wheels.py")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--image", type=Path, help="output of pip list --format=freeze")
    parser.add_argument("--python", default="3.12", help="version of Python there")
    options = parser.parse_args(arguments)
    image = {} if options.image is None else usable(read_image(options.image))
    wheels = fetch(options.folder, image, options.python)
    size = sum(path.stat().st_size for path in wheels)
    print("\n".join(path.name for path in wheels))
    print(f"{len(wheels)} wheels, {size / 1e6:,.1f} MB in {options.folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
