"""The full RLHF pipeline on two CPU cores: `make -C bench rlhf`, or `python bench/rlhf.py [FOLDER]` (needs
the extra rlmods[plot]).

A policy is fine-tuned on demonstrations, of which a third are wrong. A judge ranks its answers to
arithmetic questions, and four more policies are trained on these preferences: PPO against a reward
model with and without a KL penalty, DPO, and rejection sampling (fine-tuning on the preferred
answers). The gold reward (whether the answer is correct) is only measured. Every stage is one
command, printed before it runs. Finished stages are not repeated, so the same command resumes after
an interruption. Writes `table.md`, `results.json` and `rlhf.png` to FOLDER."""

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


PROMPTS = "data.num_train=16000"
DEMONSTRATIONS = (
    "data.wrong_fraction=0.35",
    "data.num_train=1280",
    "batch.prompts=64",
    "optimizer.lr=1e-4",
)
RANKINGS = (
    "batch.prompts=96",
    "optimizer.lr=5e-4",
    "schedule=cosine",
    "schedule.warmup=30",
    "trainer.max_iterations=500",
    "validation.every=50",
)


def stages(folder: Path) -> dict[str, list[str]]:
    """Return the arguments of every stage by name, in order."""
    return {
        "sft": train(folder, "sft", "algo=sft", *DEMONSTRATIONS, "trainer.max_iterations=20"),
        "collect": [
            *("-m", "rlmods.collect", f"{folder}/sft", "data=arithmetic", PROMPTS),
            *("batch.prompts=256", "batch.samples=6", f"out={folder}/candidates.jsonl"),
        ],
        "label": [
            *("-m", "rlmods.label", f"{folder}/candidates.jsonl", "judge=rule"),
            *("keep_ties=false", f"out={folder}/labelled.jsonl"),
        ],
        **trained_on_pairs(folder),
    }


def trained_on_pairs(folder: Path) -> dict[str, list[str]]:
    """Return the stages after the pairs are labelled."""
    start = ["policy=hf", f"policy.name={folder}/sft/export"]
    splits = [f"data.train={folder}/labelled.jsonl", f"data.val={folder}/held_out.jsonl"]
    pairs = ["data=preferences", *splits, *start]
    proxy = ["reward=neural", f"reward.terms.neural.reward.model={folder}/reward_model"]
    rates = ["optimizer.lr=7e-5", "critic.lr=5e-4"]
    ppo = ["algo=ppo", *start, *proxy, PROMPTS, *rates, "trainer.max_iterations=60"]
    preferred = [*pairs, *proxy, "batch.prompts=64", "trainer.max_iterations=100"]
    dpo = ["algo=dpo", *preferred, "optimizer.lr=5e-5", "algo.sft_coefficient=0.3"]
    return {
        "reward_model": train(folder, "reward_model", "algo=reward_model", *pairs, *RANKINGS),
        "ppo": train(folder, "ppo", *ppo, "kl.coefficient=1"),
        "ppo_without_kl": train(folder, "ppo_without_kl", *ppo, "kl.coefficient=0"),
        "dpo": train(folder, "dpo", *dpo),
        "rft": train(folder, "rft", "algo=sft", *preferred, "optimizer.lr=1e-4"),
    }


def train(folder: Path, name: str, *overrides: str) -> list[str]:
    """Return the arguments of a training run."""
    return [TRAIN, *overrides, f"run_dir={folder}/{name}", "resume=auto"]


def write_held_out(path: Path) -> None:
    """Write the validation questions of every run, with one correct and three wrong answers
    each."""
    rows = []
    for p in Arithmetic(num_candidates=4)().val:
        ranks = [min(rank, 1) for rank in p.meta["ranks"]]
        rows.append(
            {
                "id": p.id,
                "prompt": p.text,
                "answer": p.answer,
                "candidates": p.meta["candidates"],
                "ranks": ranks,
            }
        )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def measurement(folder: Path, name: str) -> list[str]:
    """Return the arguments that evaluate a run, with the same questions, number of samples and
    reference for all runs."""
    proxy = ["reward=neural", f"reward.terms.neural.reward.model={folder}/reward_model"]
    return [
        "-m",
        "rlmods.evaluate",
        f"{folder}/{name}",
        "data=arithmetic",
        *proxy,
        "validation.samples=4",
        f"reference={folder}/sft",
        "--json",
    ]


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Print a command and run it. Exits if it fails."""
    print(f"\n$ python {shlex.join(arguments)}", flush=True)
    try:
        process = subprocess.run([sys.executable, *arguments], text=True, check=False, **options)
    except KeyboardInterrupt:  # which the command also receives: it has printed what it saved
        sys.exit("interrupted; run this script again to continue")
    if process.returncode:
        problem = f"the command failed (exit status {process.returncode})"
        sys.exit(
            f"{problem}; run this script again to continue with it, or remove its folder to "
            "start over"
        )
    return process


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_held_out(folder / "held_out.jsonl")
    minutes, results = read_json(folder / "minutes.json"), read_json(folder / "results.json")
    for name, arguments in stages(folder).items():
        if name not in minutes:
            start = time.monotonic()
            run(arguments)
            minutes[name] = (time.monotonic() - start) / 60
            (folder / "minutes.json").write_text(json.dumps(minutes))
    for name in COMPARED:
        if name not in results:
            results[name] = json.loads(
                run(measurement(folder, name), stdout=subprocess.PIPE).stdout
            )
            (folder / "results.json").write_text(json.dumps(results, indent=2))
    show(folder, results)
    plot(folder, results)
    print(f"the plot is {folder / 'rlhf.png'}; the stages took {sum(minutes.values()):.0f} minutes")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if the file does not exist."""
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def show(folder: Path, results: dict[str, Any]) -> None:
    """Print the table and write it to `table.md`."""
    header = ["", *COLUMNS.values()]
    rows = [
        [label, *(f"{results[name][column]:.3f}" for column in COLUMNS)]
        for name, (label, _) in COMPARED.items()
    ]
    table = Table(*header, title="From the same preferences, on held-out questions", width=110)
    for row in rows:
        table.add_row(*row)
    print()
    Console(width=110).print(table)
    lines = [header, ["---"] * len(header), *rows]
    (folder / "table.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


def plot(folder: Path, results: dict[str, Any]) -> None:
    """Plot held-out gold accuracy and proxy reward, KL and length over iterations; KL of DPO and
    rejection sampling only at the end."""
    figure, axes = plt.subplots(1, len(PANELS), figsize=(15, 3.9), dpi=110)
    for panel, (metric, title) in zip(axes, PANELS.items(), strict=True):
        for name, (label, color) in COMPARED.items():
            last = results[name]["val/kl_ref" if metric == "train/kl_ref" else metric]
            if name == "sft":
                panel.axhline(last, color=color, linestyle=":", label=label)
                continue
            points = [
                (row["iteration"], row[metric])
                for row in read_metrics(folder / name)
                if metric in row
            ]
            if points:
                panel.plot(*zip(*points, strict=True), color=color, label=label, linewidth=1.8)
            else:
                panel.plot(
                    read_metrics(folder / name)[-1]["iteration"],
                    last,
                    "o",
                    color=color,
                    label=label,
                )
        panel.set(title=title, xlabel="iteration", xlim=(0, None))
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(0, 1)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="lower center", ncols=len(COMPARED), frameon=False
    )
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(folder / "rlhf.png")


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of `metrics.jsonl`."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    if sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/rlhf"))
