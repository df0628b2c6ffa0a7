"""The whole road on two CPU cores: `make rlhf`, or `python docs/rlhf.py [FOLDER]` (needs the extra rlmods[plot]).

A policy is fine-tuned on demonstrations, a third of them wrong. It answers sums, a judge ranks its answers, and from these preferences
alone come four more policies: PPO against a reward model with and without a KL penalty, DPO, and rejection sampling (fine-tuning on the
preferred answers). The gold reward (is the sum right?) is measured and never paid. Every stage is one command, printed before it runs;
stages that have finished are not run again, so the same command goes on after an interruption. Leaves `table.md`, `results.json` and
`rlhf.png` in FOLDER.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from rlmods.data import Arithmetic

TRAIN = os.path.relpath(Path(__file__).resolve().parents[1] / "train.py")
COMPARED = {
    "sft": ("SFT, where all start", "#64748b"),
    "ppo": ("PPO, KL penalty", "#2563eb"),
    "ppo_without_kl": ("PPO, no KL penalty", "#dc2626"),
    "dpo": ("DPO", "#16a34a"),
    "rft": ("rejection sampling", "#9333ea"),
}
"""Runs in the table and the plot."""
COLUMNS = {
    "val/accuracy": "gold accuracy, greedy",
    "val/mean@4": "gold accuracy, sampled",
    "val/reward": "proxy reward, greedy",
    "val/kl_ref": "KL from SFT, nats/token",
    "val/response_tokens": "tokens",
}
PANELS = {
    "val/accuracy": "gold accuracy",
    "val/reward": "proxy reward",
    "train/kl_ref": "KL from SFT, nats/token",
    "val/response_tokens": "tokens",
}


def stages(folder: Path) -> dict[str, list[str]]:
    """Name and arguments of every stage, in order."""
    start = ["policy=hf", f"policy.name={folder}/sft/export"]
    pairs = ["data=preferences", f"data.train={folder}/labelled.jsonl", f"data.val={folder}/held_out.jsonl", *start]
    proxy = ["reward=neural", f"reward.terms.neural.reward.model={folder}/reward_model"]
    prompts = ["data.num_train=16000"]
    ppo = ["algo=ppo", *start, *proxy, *prompts, "optimizer.lr=7e-5", "critic.lr=5e-4", "trainer.max_iterations=60"]

    def train(name: str, *overrides: str) -> list[str]:
        return [TRAIN, *overrides, f"run_dir={folder}/{name}", "resume=auto"]

    demonstrations = ["data.wrong_fraction=0.35", "data.num_train=1280", "batch.prompts=64", "optimizer.lr=1e-4"]
    imitated = ["batch.prompts=64", "trainer.max_iterations=100"]
    rankings = ["batch.prompts=96", "optimizer.lr=5e-4", "schedule=cosine", "schedule.warmup=30"]
    return {
        "sft": train("sft", "algo=sft", *demonstrations, "trainer.max_iterations=20"),
        "collect": ["-m", "rlmods.cli.collect", f"{folder}/sft", "data=arithmetic", *prompts, "batch.prompts=256", "batch.samples=6",
                    f"out={folder}/candidates.jsonl"],
        "label": ["-m", "rlmods.cli.label", f"{folder}/candidates.jsonl", "judge=rule", "keep_ties=false", f"out={folder}/labelled.jsonl"],
        "reward_model": train("reward_model", "algo=reward_model", *pairs, *rankings, "trainer.max_iterations=320", "validation.every=40"),
        "ppo": train("ppo", *ppo, "kl.coefficient=1"),
        "ppo_without_kl": train("ppo_without_kl", *ppo, "kl.coefficient=0"),
        "dpo": train("dpo", "algo=dpo", *pairs, *proxy, *imitated, "optimizer.lr=5e-5", "algo.sft_coefficient=0.3"),
        "rft": train("rft", "algo=sft", *pairs, *proxy, *imitated, "optimizer.lr=1e-4"),
    }  # fmt: skip


def write_held_out(path: Path) -> None:
    """The sums that every run is validated on, with a right answer and three wrong ones."""
    rows = []
    for p in Arithmetic(num_candidates=4)().val:
        ranks = [min(rank, 1) for rank in p.meta["ranks"]]
        rows.append({"id": p.id, "prompt": p.text, "answer": p.answer, "candidates": p.meta["candidates"], "ranks": ranks})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def measurement(folder: Path, name: str) -> list[str]:
    """Arguments that grade a run: the same questions, samples and reference for all."""
    proxy = ["reward=neural", f"reward.terms.neural.reward.model={folder}/reward_model"]
    return ["-m", "rlmods.cli.evaluate", f"{folder}/{name}", "data=arithmetic", *proxy, "validation.samples=4", f"reference={folder}/sft"]


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Print a command and run it. Exits where it fails."""
    print(f"\n$ python {shlex.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, *arguments], text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"that failed (exit status {done.returncode}); the same command goes on from here")
    return done


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_held_out(folder / "held_out.jsonl")
    minutes, measured = json_file(folder / "minutes.json"), json_file(folder / "results.json")
    for name, arguments in stages(folder).items():
        if name not in minutes:
            began = time.monotonic()
            run(arguments)
            minutes[name] = (time.monotonic() - began) / 60
            (folder / "minutes.json").write_text(json.dumps(minutes))
    for name in COMPARED:
        if name not in measured:
            measured[name] = json.loads(run(measurement(folder, name), stdout=subprocess.PIPE).stdout)
            (folder / "results.json").write_text(json.dumps(measured, indent=2))
    show(folder, measured, minutes)
    plot(folder, measured)
    print(f"the plot is {folder / 'rlhf.png'}; the whole road took {sum(minutes.values()):.0f} minutes")


def json_file(path: Path) -> dict[str, Any]:
    """What is in it; nothing where it is not there."""
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def show(folder: Path, measured: dict[str, Any], minutes: dict[str, float]) -> None:
    """The table, on the terminal and in `table.md`."""
    header = ["", *COLUMNS.values(), "minutes"]
    rows = [
        [label, *(f"{measured[name][column]:.3f}" for column in COLUMNS), f"{minutes[name]:.1f}"] for name, (label, _) in COMPARED.items()
    ]
    table = Table(*header, title="From the same preferences, on held-out sums", width=110)
    for row in rows:
        table.add_row(*row)
    print()
    Console(width=110).print(table)
    lines = [header, ["---"] * len(header), *rows]
    (folder / "table.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


def plot(folder: Path, measured: dict[str, Any]) -> None:
    """What held-out gold and proxy, KL and length did while training; KL of DPO and rejection sampling is known at the end only."""
    figure, axes = plt.subplots(1, len(PANELS), figsize=(15, 3.9), dpi=110)
    for panel, (metric, title) in zip(axes, PANELS.items(), strict=True):
        for name, (label, color) in COMPARED.items():
            last = measured[name]["val/kl_ref" if metric == "train/kl_ref" else metric]
            if name == "sft":
                panel.axhline(last, color=color, linestyle=":", label=label)
                continue
            points = [(row["iteration"], row[metric]) for row in log(folder / name) if metric in row]
            if points:
                panel.plot(*zip(*points, strict=True), color=color, label=label, linewidth=1.8)
            else:
                panel.plot(log(folder / name)[-1]["iteration"], last, "o", color=color, label=label)
        panel.set(title=title, xlabel="iteration", xlim=(0, None))
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(0, 1)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=len(COMPARED), frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(folder / "rlhf.png")


def log(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/rlhf"))
