"""Check and measure on one GPU, without a network, in at most nine minutes: `make gpu`.

    python -m bench.gpu [PART ...] [--seconds 540] [--tiny] [--simulated] [--out FOLDER] [--jobs N]

Parts run in processes of their own, the most valuable first: what is checked, several at once, then
what is measured, alone. Prints tables and the first thing that broke, and writes gpu.md, gpu.json
and gpu.log to FOLDER. The exit status is 1 if a check does not hold or was not finished, 2 without
a GPU."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.findings import Findings
from bench.gpu.process import ROOT, SIMULATED, Device, Setting, run
from bench.gpu.report import broken, page

RESERVE_S = 10.0
"""Seconds that are kept for the tables."""
LEAST_S = 20.0
"""A part is not begun with less."""
LOG_BYTES = 60_000
"""End of a part's output that is kept."""


@dataclass(frozen=True)
class Part:
    """What one process does."""

    name: str
    limit_s: float
    module: str
    function: str
    shape: str = ""
    is_check: bool = False
    starts_commands: bool = False
    """True if its processes, and not the part itself, run on the device."""


def measured(kind: str, shape: str, limit_s: float) -> Part:
    """Return the part that measures something with a shape."""
    function = kind.replace(" ", "_")
    commands = kind == "iteration"
    return Part(f"{kind} {shape}", limit_s, "speed", function, shape, starts_commands=commands)


PARTS = {
    part.name: part
    for part in (
        Part("forward", 120, "correct", "forward", is_check=True),
        Part("sampling", 100, "correct", "sampling", is_check=True),
        Part("resume", 150, "correct", "resume", is_check=True, starts_commands=True),
        Part("training", 150, "correct", "training", is_check=True),
        Part("programs", 150, "correct", "programs", is_check=True, starts_commands=True),
        Part("rates", 45, "speed", "rates"),
        measured("iteration", "0.5B", 110),
        measured("update", "1.5B", 70),
        measured("decode", "0.5B", 60),
        measured("iteration", "1.5B", 140),
        measured("update", "0.5B", 50),
        measured("update", "7B", 80),
        measured("plain iteration", "0.5B", 70),
        measured("decode", "1.5B", 60),
        measured("decode", "7B", 60),
        measured("iteration", "7B", 100),
        measured("decode", "135M", 50),
        measured("update", "135M", 40),
        measured("plain iteration", "1.5B", 120),
        measured("iteration", "135M", 60),
        measured("plain iteration", "7B", 100),
        measured("plain iteration", "135M", 60),
    )
}
"""The most valuable first. Limits are for one H100."""
LOOK = """
import json, lightning, os, platform, torch, transformers
found = {"python": platform.python_version(), "torch": torch.__version__}
found |= {"transformers": transformers.__version__, "lightning": lightning.__version__}
found["cores"] = os.cpu_count()
if torch.cuda.is_available():
    properties = torch.cuda.get_device_properties(0)
    found["card"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    found["CUDA"], found["cuDNN"] = torch.version.cuda, torch.backends.cudnn.version()
print(json.dumps(found))
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="See docs/gpu.md.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=540, help="time for everything")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, also without a GPU")
    parser.add_argument("--simulated", action="store_true", help="on the device of the tests")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu")
    parser.add_argument("--jobs", type=int, help="checks that run at once")
    parsed = parser.parse_args(arguments)
    for name in parsed.parts:
        if name not in PARTS:
            parser.error(f"{name} is not a part: type some of {', '.join(PARTS)}")
    if parsed.simulated and not parsed.tiny:
        parser.error("--simulated computes on the processor: add --tiny")
    return parsed


@dataclass
class Session:
    """One run of the command."""

    options: argparse.Namespace
    environment: dict[str, Any]
    device: Device
    folder: Path
    """Folder for files of the parts."""
    start: float = field(default_factory=time.monotonic)
    found: dict[str, Findings] = field(default_factory=dict)

    def left_s(self) -> float:
        """Return the seconds that are left for parts."""
        total: float = self.options.seconds
        return total - RESERVE_S - (time.monotonic() - self.start)

    def run(self, part: Part) -> None:
        """Run a part in a process of its own, or record that there is no time."""
        limit = min(part.limit_s, self.left_s())
        if limit < LEAST_S:
            found = Findings()
            found.skip(part.name, "no time was left")
            self.found[part.name] = found
            return
        folder = self.folder / part.name.replace(" ", "-")
        folder.mkdir()
        setting = Setting(self.device, self.options.tiny, limit, str(folder))
        on_device = self.device == "simulated" and not part.starts_commands
        begin = [sys.executable, *(SIMULATED if on_device else ())]
        command = [*begin, "-m", "bench.gpu.part", part.name, json.dumps(asdict(setting))]
        ended = run(command, folder / "log", limit)
        found = Findings.read(folder / "findings.json")
        if not found.is_complete:
            found.fail("the part", ended.reason or "ended early", ended.lines)
        self.found[part.name] = found
        status = "done" if found.is_complete and not found.failures else "BROKEN"
        print(
            f"{status:6}  {part.name}: {ended.seconds:.0f} s, {self.left_s():.0f} s left",
            flush=True,
        )
        self.write()

    def results(self) -> dict[str, Findings]:
        """Return what the parts found, in their order."""
        return {name: self.found[name] for name in PARTS if name in self.found}

    def failed(self) -> bool:
        """Return True if a check does not hold, or was not finished."""
        checks = {name: x for name, x in self.results().items() if PARTS[name].is_check}
        unfinished = any(not found.is_complete for found in checks.values())
        return unfinished or any(True for _ in broken(checks))

    def write(self) -> str:
        """Write what was found so far, and return the page."""
        out = self.options.out
        text = page(self.environment, self.results(), time.monotonic() - self.start)
        (out / "gpu.md").write_text(text)
        everything = {name: found.as_dict() for name, found in self.results().items()}
        content = {"environment": self.environment, "parts": everything}
        (out / "gpu.json").write_text(json.dumps(content, indent=1) + "\n")
        with (out / "gpu.log").open("wb") as file:
            for path in sorted(self.folder.glob("*/*log")):
                file.write(f"##### {path.relative_to(self.folder)}\n".encode())
                file.write(path.read_bytes()[-LOG_BYTES:] + b"\n")
        return text


def look(device: str, log: Path) -> dict[str, Any]:
    """Return what the machine has.

    Raises:
        SystemExit: torch or another library cannot be imported.
    """
    begin = [sys.executable, "-c", LOOK]
    ended = run(begin, log, 120)
    if ended.reason:
        raise SystemExit("make gpu: " + "\n".join([ended.reason, *ended.lines[-5:]]))
    found: dict[str, Any] = json.loads(ended.lines[-1])
    if device == "simulated":
        found["card"] = "simulated"
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the parts, and return the exit status."""
    options = parse(arguments)
    start = time.monotonic()
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rlmods-gpu-") as name:
        folder = Path(name)
        environment = look("simulated" if options.simulated else "", folder / "look.log")
        if "card" not in environment and not options.tiny:
            print(
                "make gpu: there is no GPU here. On one it checks losses, gradients, sampling, "
                "training and resume against the processor, and measures sampling, updates and "
                f"iterations at 135M to 7B in {options.seconds:.0f} s; make gpu ARGS=--tiny runs "
                "everything with tiny shapes on this processor"
            )
            return 2
        device: Device = "cuda" if "card" in environment else "cpu"
        if options.simulated:
            device = "simulated"
        session = Session(options, environment, device, folder, start)
        wanted = [part for part in PARTS.values() if part.name in (options.parts or PARTS)]
        jobs = options.jobs or max(1, min(4, (os.cpu_count() or 1) // 4))
        with ThreadPoolExecutor(jobs) as threads:
            list(threads.map(session.run, [part for part in wanted if part.is_check]))
        for part in wanted:
            if not part.is_check:
                session.run(part)
        print(f"\n{session.write()}\nwritten to {options.out}", flush=True)
        return int(session.failed())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
