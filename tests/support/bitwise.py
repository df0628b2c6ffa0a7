"""Record what short training runs produce, to prove that a refactor changes nothing.

    python -m tests.support.bitwise record OUT [--tree CHECKOUT] [--only NAME ...]
    python -m tests.support.bitwise compare BEFORE AFTER

`record` runs every case of `CASES` with the `train.py` of a checkout and writes the run directories
and `OUT/record.json`: for each case the SHA-256 of the exported files, of `metrics.jsonl` without
its times and memory, and of `samples/`. `compare` lists what differs and exits with status 1 if
anything does. Cases that already have a record in OUT are not run again."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALL = (
    "batch.prompts=8",
    "batch.samples=4",
    "batch.token_budget=256",
    "trainer.max_iterations=3",
    "validation.every=2",
    "validation.max_prompts=8",
    "logger=none",
    "callbacks.checkpoint.every=2",
    "data.num_train=64",
    "data.num_val=16",
)
ROWS = ("batch.minibatches=2", "batch.epochs=2")
OFF_POLICY = ("batch.minibatches=2", "batch.epochs=2", "optimizer.lr=1e-3")
NEURAL = ("reward=neural", "reward.terms.neural.reward.model={reward_model}")
TWO_RANKS = ("trainer.devices=2", "trainer.accelerator=cpu")
MIXTURE = ("policy=hf", "policy.name={mixture}", "validation.every=null")
STUDENT = (
    "+policy@teacher.policy=tiny",
    "policy.pretrained=false",
    "policy.hidden_size=64",
    "policy.num_layers=2",
)
LORA = ("adapter=lora", "adapter.rank=4")
PTX = ("algo.ptx_coefficient=0.5", "algo.ptx_rows=6")
ITERATIVE = ("algo=iterative_grpo", *NEURAL, "algo.reference_every=1", "algo.refresh_prompts=6")

CASES: dict[str, tuple[str, ...]] = {
    # Every algorithm, with several optimizer steps an iteration so that its ratio and clip act.
    "reward_model": ("algo=reward_model", "data.num_candidates=4", *ROWS),
    **{
        name: (f"algo={name}", *OFF_POLICY)
        for name in (
            "cispo",
            "dapo",
            "dr_grpo",
            "gmpo",
            "grpo",
            "gspo",
            "policy_gradient",
            "ppo",
            "ppo_kl",
            "reinforce",
            "reinforce_pp",
            "reinforce_pp_baseline",
            "remax",
            "rft",
            "rloo",
            "sapo",
        )
    },
    **{
        name: (f"algo={name}", *ROWS)
        for name in ("sft", "dpo", "online_dpo", "process_reward_model")
    },
    "iterative_grpo": (*ITERATIVE, *OFF_POLICY),
    # One optimizer step an iteration: the recipes as they stand.
    "dapo one step": ("algo=dapo",),
    "ppo one step": ("algo=ppo", "batch.minibatches=1"),
    # Extensions and options of the loop.
    "replay": ("algo=dapo", *OFF_POLICY, "algo.replay_fraction=0.5", "algo.replay_staleness=2"),
    "replay moving reference": (
        "algo=grpo",
        *OFF_POLICY,
        "algo.replay_fraction=0.5",
        "algo.reference_every=1",
    ),
    "ptx": ("algo=ppo", *OFF_POLICY, *PTX),
    "ptx shared critic": ("algo=ppo", *OFF_POLICY, *PTX, "critic=shared"),
    "dynamic moving reference": (
        "algo=grpo",
        *OFF_POLICY,
        "sampling=dynamic",
        "algo.reference_every=1",
        "batch.samples=8",
    ),
    "moving reference": ("algo=grpo", *OFF_POLICY, "algo.reference_every=2"),
    "adaptive kl": ("algo=ppo", *OFF_POLICY, "kl=adaptive"),
    "ramp kl": ("algo=grpo", *OFF_POLICY, "kl=ramp"),
    "target kl": (
        "algo=ppo",
        "batch.epochs=4",
        "batch.minibatches=2",
        "optimizer.lr=3e-3",
        "algo.target_kl=0.01",
    ),
    "entropy control": (
        "algo=dapo",
        *OFF_POLICY,
        "algo.target_entropy=0.5",
        "algo.entropy_coefficient=0.01",
    ),
    "corrected": (
        "algo=dapo",
        *OFF_POLICY,
        "rollout.top_p=0.8",
        "correction=truncated",
        "callbacks.monitor.max_sampler_gap=null",
    ),
    "reward scale": (
        "algo=reinforce",
        *OFF_POLICY,
        "algo.normalize_reward=true",
        "algo.clip_reward=2",
    ),
    "overlong filter": (
        "algo=dapo",
        *OFF_POLICY,
        "algo.overlong_filter=true",
        "rollout.max_tokens=5",
    ),
    "dynamic carry-over": ("algo=dapo", *OFF_POLICY, "batch.samples=8", "algo.surplus=keep"),
    "dynamic drop": ("algo=dapo", *OFF_POLICY, "algo.surplus=drop", "algo.max_draws=2"),
    "dynamic skip": ("algo=dapo", "batch.samples=2", "algo.max_draws=1", "algo.fallback=skip"),
    "lora": ("algo=grpo", *OFF_POLICY, *LORA),
    "lora ppo shared": ("algo=ppo", *OFF_POLICY, *LORA, "critic=shared", "algo.reference_every=1"),
    "gradient checkpointing": ("algo=dapo", *OFF_POLICY, "policy.gradient_checkpointing=true"),
    "bf16": ("algo=dapo", *OFF_POLICY, "trainer.precision=bf16-mixed"),
    "neural reward": ("algo=ppo", *OFF_POLICY, *NEURAL),
    "process reward": (
        "algo=grpo",
        *OFF_POLICY,
        "advantage=process",
        "reward=process",
        "reward.terms.process.reward.model={process}",
    ),
    "dpo precomputed": (
        "algo=dpo",
        *ROWS,
        "algo.reference=precomputed",
        "algo.sft_coefficient=0.1",
    ),
    "dpo kto": ("algo=dpo", "batch.epochs=2", "preference=kto"),
    "online dpo moving reference": ("algo=online_dpo", "algo.reference_every=2"),
    "reward model plackett_luce": (
        "algo=reward_model",
        *ROWS,
        "ranking=plackett_luce",
        "data.num_candidates=4",
        "algo.centre=0.1",
    ),
    "full kl": ("algo=grpo", *OFF_POLICY, "kl=full"),
    **{how: ("algo=grpo", *OFF_POLICY, f"advantage={how}") for how in ("gdpo", "length_weighted")},
    "max_rl": ("algo=grpo", *OFF_POLICY, "advantage=max_rl", "reward=accuracy"),
    "n_step": ("algo=ppo", *OFF_POLICY, "advantage=n_step"),
    "distill": ("algo=distill", *OFF_POLICY, *STUDENT),
    "gkd": ("algo=gkd", *ROWS, *STUDENT, "batch.samples=1"),
    "sdpo": ("algo=sdpo", *ROWS, "teacher.success=0"),
    # Mixtures of experts.
    "experts free": ("algo=grpo", *OFF_POLICY, *MIXTURE),
    "experts replayed": (
        "algo=grpo",
        *OFF_POLICY,
        *MIXTURE,
        "router=replay",
        "router.aux_coefficient=0.5",
    ),
    "experts frozen": ("algo=ppo", *OFF_POLICY, *MIXTURE, "router=frozen", "router.replay=true"),
    "experts two stage": (
        "algo=ppo",
        *OFF_POLICY,
        *MIXTURE,
        "critic=shared",
        "router=two_stage",
        "router.every=2",
        *PTX,
    ),
    # Two ranks.
    "ddp dapo": ("algo=dapo", *OFF_POLICY, "trainer=ddp", *TWO_RANKS),
    "ddp ppo": (
        "algo=ppo",
        *OFF_POLICY,
        "trainer=ddp",
        *TWO_RANKS,
        *PTX,
        "algo.replay_fraction=0.5",
    ),
    "ddp dpo": ("algo=dpo", *ROWS, "trainer=ddp", *TWO_RANKS),
    "ddp iterative_grpo": (*ITERATIVE, *OFF_POLICY, "trainer=ddp", *TWO_RANKS),
    "fsdp dapo": ("algo=dapo", *OFF_POLICY, "trainer=fsdp", *TWO_RANKS),
    "fsdp ppo": ("algo=ppo", *OFF_POLICY, "trainer=fsdp", *TWO_RANKS, "algo.normalize_reward=true"),
    "fsdp grpo lora": ("algo=grpo", *OFF_POLICY, "trainer=fsdp", *TWO_RANKS, *LORA),
    "fsdp experts": (
        "algo=grpo",
        *OFF_POLICY,
        *MIXTURE,
        "router=replay",
        "trainer=fsdp",
        *TWO_RANKS,
    ),
}


def sha256(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def content(path: Path) -> bytes:
    """Content of a file. The metadata of a safetensors file is in random order: its header is
    sorted."""
    data = path.read_bytes()
    if path.suffix != ".safetensors":
        return data
    end = 8 + int.from_bytes(data[:8], "little")
    return json.dumps(json.loads(data[8:end]), sort_keys=True).encode() + data[end:]


def files(folder: Path, tree: Path) -> list[bytes]:
    """Names and contents of all files in a folder, in order of their names. The path of the
    checkout is replaced by a constant. The model card is left out: it names the run and the
    revision."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    prefix = str(tree).encode()
    parts = list[bytes]()
    for path in paths:
        if path.name != "README.md":
            parts.append(str(path.relative_to(folder)).encode())
            parts.append(content(path).replace(prefix, b"CHECKOUT"))
    return parts


NOT_COMPARED = ("time/", "perf/", "alert/")
"""Metrics that are measured, and warnings of callbacks."""


def untimed(path: Path) -> list[dict[str, object]]:
    """Rows of `metrics.jsonl` without times, memory and warnings."""
    rows = list[dict[str, object]]()
    for line in path.read_text().splitlines():
        row = json.loads(line)
        kept = {k: v for k, v in row.items() if not k.startswith(NOT_COMPARED)}
        kept.pop("wall_s", None)
        if kept.keys() - {"iteration", "optimizer_step"}:
            rows.append(kept)
    return rows


def fingerprint(run: Path, tree: Path) -> dict[str, str]:
    """SHA-256 of the contents of a run directory, by kind."""
    return {
        "export": sha256(files(run / "export", tree)),
        "metrics": sha256(
            json.dumps(row, sort_keys=True).encode() for row in untimed(run / "metrics.jsonl")
        ),
        "samples": sha256(files(run / "samples", tree)),
    }


def record_runs(out: Path, tree: Path, only: list[str]) -> None:
    """Run the cases with the code in `tree`."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "record.json"
    record: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    if not (out / "mixture").exists():
        from tests.support.mixtures import mixture

        mixture().export(out / "mixture")
    # Prompts and exported files hold no path of their run, but a policy's name may: the same folder
    # name in every record.
    names = {
        "reward_model": out / "reward_model",
        "process": out / "process_reward_model",
        "mixture": out / "mixture",
    }
    for case in only or CASES:
        if case in record:
            continue
        run, start = out / case.replace(" ", "_"), time.monotonic()
        overrides = [text.format(**names) for text in (*SMALL, *CASES[case])]
        command = [sys.executable, "train.py", *overrides, f"run_dir={run}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            print(
                f"{case}: exit status "
                f"{done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}",
                flush=True,
            )
            continue
        record[case] = fingerprint(run, tree)
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{case}: {time.monotonic() - start:.1f} s", flush=True)


def compare(before: Path, after: Path) -> int:
    """Print the cases that differ; the number of them."""
    a, b = (json.loads((folder / "record.json").read_text()) for folder in (before, after))
    num_different = 0
    for case in [*a, *(name for name in b if name not in a)]:
        if case not in a or case not in b:
            print(f"{case}: only in {before if case in a else after}")
        elif a[case] != b[case]:
            num_different += 1
            print(
                f"{case}: "
                f"{', '.join(kind for kind in a[case] if a[case][kind] != b[case][kind])} "
                "differ"
            )
    print(f"{len(a.keys() & b.keys()) - num_different} of {len(a)} cases are equal bit for bit")
    if missing := CASES.keys() - (a.keys() & b.keys()):
        print(f"not in both records: {', '.join(sorted(missing))}")
    return num_different + len(missing)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record", help="run the cases")
    one.add_argument("out", type=Path)
    one.add_argument("--tree", type=Path, default=ROOT, help="the checkout whose train.py runs")
    one.add_argument("--only", nargs="*", default=[], choices=CASES, metavar="NAME")
    two = commands.add_parser("compare", help="compare two records")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        record_runs(given.out.resolve(), given.tree.resolve(), given.only)
    else:
        sys.exit(bool(compare(given.before, given.after)))
