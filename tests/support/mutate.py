"""Plant bugs one at a time in a copy of the repository, and run the tests that have to see each.

    python -m tests.support.mutate [-j N] [--only TEXT ...] [--list] [--resume FILE]

The bugs are in `tests/mutations/*.toml`, one table per bug, named by what it breaks: `file`, the text `old` that occurs in it once, the
text `new` that replaces it, and `tests`, the arguments of pytest that select the tests. A bug is seen if one of them fails. Prints one line
per bug, and exits with status 1 if a bug is out of date or fewer than `--threshold` of them are seen. The tests have to pass without a
bug: `--baseline` runs all of them first.

The libraries are imported once; each test run is a fork, and imports the package from its copy.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
MUTATIONS = Path("tests/mutations")
NOT_COPIED = (".*", "runs", "multirun", "outputs", "__pycache__", "*.egg-info")
LIBRARIES = (
    "pytest", "hypothesis.strategies", "jaxtyping", "beartype", "torch", "torch.distributed.fsdp", "torch.distributed.checkpoint",
    "torchmetrics", "lightning", "lightning.pytorch.strategies", "hydra", "omegaconf", "rich.progress", "safetensors.torch", "peft",
    "transformers.models.llama.modeling_llama", "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto",
)  # fmt: skip
"""Modules that are imported before the forks; one that is missing is left to the tests."""
OPTIONS = ("-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Arguments of pytest. The warning is of plugins that are imported already."""
STATUSES = ("seen", "survived", "timeout", "stale", "broken")
"""seen: a test failed. survived: all passed. timeout: they did not end. stale: `old` does not occur exactly once. broken: pytest found none
of the tests, or could not run them."""


@dataclass(frozen=True)
class Mutation:
    """A planted bug."""

    name: str
    """What it breaks."""
    file: str
    old: str
    new: str
    tests: Sequence[str]
    hangs: bool = False
    """Tests that do not end see it."""

    def apply(self, source: str) -> str | None:
        """Return the source with the bug, or None if `old` does not occur exactly once."""
        return source.replace(self.old, self.new) if source.count(self.old) == 1 and self.old != self.new else None

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr((self.file, self.old, self.new, list(self.tests))).encode()).hexdigest()[:16]


def load(root: Path = ROOT) -> list[Mutation]:
    """Return all bugs, by the names of their files.

    Raises:
        ValueError: two bugs have the same name.
    """
    tables = [
        (name, table) for path in sorted((root / MUTATIONS).glob("*.toml")) for name, table in tomllib.loads(path.read_text()).items()
    ]
    if repeated := [name for name, count in Counter(name for name, _ in tables).items() if count > 1]:
        raise ValueError(f"two bugs are called {repeated[0]!r}")
    return [Mutation(name, **table) for name, table in tables]


@dataclass(frozen=True)
class Result:
    """Outcome of the tests on one bug."""

    name: str
    status: str
    seconds: float = 0.0
    detail: str = ""
    """First failing test, or the last line of the output."""
    digest: str = ""


def verdict(returncode: int, hangs: bool) -> str:
    """Return the status for an exit status of pytest (1: tests failed, 2: imports failed); negative: killed after the timeout."""
    if returncode < 0:
        return "seen" if hangs else "timeout"
    return {0: "survived", 1: "seen", 2: "seen"}.get(returncode, "broken")


def preload() -> None:
    """Import the libraries, in one thread as the tests do."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    for module in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(module)


class Copy:
    """A copy of the repository in which tests run, one run at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
        # Checked by content: a mutated file may have the size and the time of the original one.
        subprocess.run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", folder], check=True)

    def start(self, tests: Sequence[str], output: IO[bytes]) -> int:
        """Run tests until the first failure in a new process group, and return its id."""
        sys.stdout.flush()
        if pid := os.fork():
            return pid
        status = 3
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.chdir(self.folder)
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            sys.stdout, sys.stderr = (open(descriptor, "w", closefd=False) for descriptor in (1, 2))  # noqa: SIM115 open until the process ends
            os.environ |= {"PYTHONPATH": str(self.folder), "COLUMNS": "200"}
            sys.path[:] = [str(self.folder), *(path for path in sys.path if Path(path or ".").resolve() != self.root.resolve())]
            for name in [name for name in sys.modules if name.partition(".")[0] in ("rlmods", "tests")]:
                del sys.modules[name]
            pytest = importlib.import_module("pytest")
            status = int(pytest.main([*OPTIONS, *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


class Run:
    """Test run on one bug, from planting it to restoring the file."""

    def __init__(self, copy: Copy, mutation: Mutation, mutated: str) -> None:
        self.copy, self.mutation = copy, mutation
        self.path = copy.folder / mutation.file
        self.source = self.path.read_text()
        self.path.write_text(mutated)
        self.output = tempfile.TemporaryFile()  # noqa: SIM115
        self.started = time.monotonic()
        self.pid = copy.start(mutation.tests, self.output)

    def poll(self, timeout_s: float) -> Result | None:
        """Return the result, None if the tests still run."""
        seconds = time.monotonic() - self.started
        if seconds > timeout_s:
            self.kill()
        pid, status = os.waitpid(self.pid, os.WNOHANG if seconds <= timeout_s else 0)
        if not pid:
            return None
        self.kill()  # processes that tests have left behind
        self.path.write_text(self.source)
        self.output.seek(0)
        with self.output:
            text = self.output.read().decode(errors="replace")
        failed, lines = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE), text.strip().splitlines() or [""]
        code = os.waitstatus_to_exitcode(status)
        detail = failed[1] if failed else lines[-1][:150]
        return Result(self.mutation.name, verdict(code, self.mutation.hangs), seconds, detail, self.mutation.digest)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def run(root: Path, mutations: Sequence[Mutation], *, jobs: int = 1, timeout_s: float = 120.0) -> Iterator[Result]:
    """Test the bugs, `jobs` at a time; yield results as they come."""
    waiting, running = list(mutations), list[Run]()
    with tempfile.TemporaryDirectory(prefix="mutate_") as folder:
        (Path(folder) / "shared").symlink_to(root.resolve().parent / "shared")  # golden numbers are read from beside the repository
        copies = [Copy(root, Path(folder) / str(i)) for i in range(min(jobs, len(mutations)))]
        try:
            while waiting or running:
                while waiting and copies:
                    mutation = waiting.pop(0)
                    path = root / mutation.file
                    source = path.read_text() if path.is_file() else ""
                    if (mutated := mutation.apply(source)) is None:
                        yield Result(mutation.name, "stale", detail=f"{mutation.file}: old occurs {source.count(mutation.old)} times")
                    else:
                        running.append(Run(copies.pop(), mutation, mutated))
                time.sleep(0.05)
                for each in list(running):
                    if (result := each.poll(timeout_s)) is not None:
                        running.remove(each)
                        copies.append(each.copy)
                        yield result
        finally:
            for each in running:
                each.kill()


def report(results: Sequence[Result], threshold: float) -> int:
    """Print the bugs that were not seen and the totals; return the exit status."""
    counts = Counter(result.status for result in results)
    for status in STATUSES[1:]:
        for result in results:
            if result.status == status:
                print(f"{status}: {result.name} ({result.detail})")
    fraction = counts["seen"] / max(1, len(results))
    seconds = sum(result.seconds for result in results)
    print(
        f"{', '.join(f'{counts[status]} {status}' for status in STATUSES)}: {fraction:.1%} of {len(results)} seen, {seconds:.0f} s of tests"
    )
    return int(fraction < threshold or counts["stale"] + counts["broken"] > 0)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-j", "--jobs", type=int, default=1, help="number of bugs tested at a time")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="only bugs with one of these texts in name, file or tests")
    parser.add_argument("--list", action="store_true", help="print the bugs")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="file of results: those in it are kept, new ones are added")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="longest test run")
    parser.add_argument("--threshold", type=float, default=0.97, help="lowest fraction of bugs that have to be seen")
    parser.add_argument("--baseline", action="store_true", help="first run the tests without a bug")
    given = parser.parse_args(arguments)
    mutations = [m for m in load(root) if not given.only or any(text in f"{m.name} {m.file} {m.tests}" for text in given.only)]
    if given.list:
        print("\n".join(f"{m.file}: {m.name} ({' '.join(m.tests)})" for m in mutations))
        return 0
    preload()
    if given.baseline and not passes(root, sorted({test for mutation in mutations for test in mutation.tests})):
        return 1
    known: dict[str, Result] = {}
    if given.resume is not None and given.resume.exists():
        known = {row["digest"]: Result(**row) for row in map(json.loads, given.resume.read_text().splitlines())}
    results = [known[mutation.digest] for mutation in mutations if mutation.digest in known]
    remaining = [mutation for mutation in mutations if mutation.digest not in known]
    for result in run(root, remaining, jobs=given.jobs, timeout_s=given.timeout):
        results.append(result)
        print(f"{len(results):4}/{len(mutations)} {result.status:9}{result.seconds:6.1f} s  {result.name}  ({result.detail})", flush=True)
        if given.resume is not None and result.digest:
            with given.resume.open("a") as file:
                file.write(json.dumps(vars(result)) + "\n")
    return report(results, given.threshold)


def passes(root: Path, tests: Sequence[str]) -> bool:
    """Return True if the tests pass without a bug; print the output if they do not."""
    with tempfile.TemporaryDirectory(prefix="mutate_") as folder, tempfile.TemporaryFile() as output:
        _, status = os.waitpid(Copy(root, Path(folder) / "0").start(tests, output), 0)
        output.seek(0)
        if status:
            print(output.read().decode(errors="replace"))
        return status == 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # kills the test runs
    sys.exit(main(sys.argv[1:]))
