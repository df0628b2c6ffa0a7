"""Test claims of papers on the embedded task with several seeds: `python bench/claims.py FOLDER
[SEEDS]`. About an hour on two CPU cores.

Each claim is measured on the runs of an experiment, `python train.py -m experiment=NAME
seed=1,2,3,4,5`. Finished runs are not repeated, interrupted ones are resumed. Writes
docs/claims.md: for each claim the difference of its statistic between two members, paired by seed,
with its 95 % interval."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rlmods.lab.groups import find_runs
from rlmods.lab.statistics import Interval, mean_interval, paired
from rlmods.run.files import read_rows
from rlmods.run.saved import SavedRun

ROOT = Path(__file__).resolve().parents[1]
SEEDS = (1, 2, 3, 4, 5)
REWARD_MODEL = ("experiment=tiny_reward_model", "run_dir=runs/claims/reward_model")
"""Run that trains the reward model of experiment=kl_overoptimization."""
LAST = 5
"""Number of validations, at the end of a run, whose mean is compared."""

Statistic = Callable[[SavedRun], float]


def accuracy(run: SavedRun) -> float:
    """Mean held-out accuracy of the last validations."""
    return _last(run, "val/accuracy")


def proxy_reward(run: SavedRun) -> float:
    """Mean score of the reward model in the last validations."""
    return _last(run, "val/reward/neural")


def clip_fraction(run: SavedRun) -> float:
    """Base-10 logarithm of the fraction of clipped tokens, mean over the iterations."""
    bounds = [
        [value for _, value in run.series(f"train/clip_fraction/{bound}")]
        for bound in ("low", "high")
    ]
    return math.log10(sum(map(fmean, bounds)))


def reward_deviation(run: SavedRun) -> float:
    """Standard deviation of the change of the mean training reward from one iteration to the
    next."""
    rewards = [value for _, value in run.series("train/reward")]
    changes = [b - a for a, b in pairwise(rewards)]
    return math.sqrt(fmean(x * x for x in changes))


def wrong_response_tokens(run: SavedRun) -> float:
    """Mean number of tokens of wrong responses in the last 10 iterations."""
    files = sorted((run.path / "samples").glob("iteration_*.jsonl"))[-10:]
    return fmean(
        len(row["tokens"]) for file in files for row in read_rows(file) if row["correct"] is False
    )


def _last(run: SavedRun, metric: str) -> float:
    value = run.result(metric, LAST)
    if value is None:
        raise ValueError(f"{run.path} has no {metric}")
    return value


@dataclass(frozen=True)
class Claim:
    """A difference between two members of an experiment that a paper reports."""

    experiment: str
    baseline: str
    """Option of the swept group."""
    member: str
    statistic: Statistic
    sign: int
    """Of the difference, member minus baseline, by the paper; 0 if the paper claims no
    difference."""
    paper: str
    """What the paper reports, and where."""

    def holds(self, difference: Interval) -> str:
        """Return whether the interval of the difference has the sign of the paper."""
        if not difference.is_bounded or 0 in difference:
            return "no difference seen" if self.sign == 0 else "not decided"
        if self.sign == 0:
            return "a difference seen"
        return "shown" if difference.mean * self.sign > 0 else "opposite"

    def results(self, runs: Sequence[SavedRun], member: str) -> dict[int | str, float]:
        """Return the statistic by seed of the finished runs of a member."""
        return {
            run.seed: self.statistic(run)
            for run in runs
            if run.exit == "finished" and name(run) == member
        }


RUNGS = (
    "ladder_1_grpo",
    "ladder_2_overlong_filter",
    "ladder_3_clip_higher",
    "ladder_4_overlong_penalty",
    "ladder_5_token_mean",
)
DAPO = "arXiv:2503.14476, table 1: AIME24 avg@32"
CLAIMS = (
    Claim("dapo_ladder", RUNGS[0], RUNGS[1], accuracy, 1, f"{DAPO} 30 to 36"),
    Claim("dapo_ladder", RUNGS[1], RUNGS[2], accuracy, 1, f"{DAPO} 36 to 38"),
    Claim("dapo_ladder", RUNGS[2], RUNGS[3], accuracy, 1, f"{DAPO} 38 to 41"),
    Claim("dapo_ladder", RUNGS[3], RUNGS[4], accuracy, 1, f"{DAPO} 41 to 42"),
    Claim("dapo_ladder", RUNGS[4], "ladder_6_dynamic", accuracy, 1, f"{DAPO} 42 to 50"),
    Claim("dapo_ladder", RUNGS[0], "ladder_6_dynamic", accuracy, 1, f"{DAPO} 30 to 50"),
    Claim(
        "gspo_vs_grpo",
        "grpo",
        "gspo",
        clip_fraction,
        1,
        "arXiv:2507.18071, figure 2: GSPO clips 0.15 of the tokens, GRPO 0.0013",
    ),
    Claim(
        "gspo_vs_grpo",
        "grpo",
        "gspo",
        reward_deviation,
        -1,
        "arXiv:2507.18071, section 5.1: training is more stable",
    ),
    Claim(
        "gspo_vs_grpo",
        "grpo",
        "gspo",
        accuracy,
        1,
        "arXiv:2507.18071, figure 1: higher accuracy for equal computation",
    ),
    Claim(
        "dr_grpo_length",
        "grpo",
        "dr_grpo",
        wrong_response_tokens,
        -1,
        "arXiv:2503.20783, figure 5: wrong responses stay shorter",
    ),
    Claim(
        "dr_grpo_length",
        "grpo",
        "dr_grpo",
        accuracy,
        1,
        "arXiv:2503.20783, figure 5: accuracy is no worse",
    ),
    Claim(
        "kl_overoptimization",
        "proxy_with_kl",
        "proxy_without_kl",
        proxy_reward,
        1,
        "arXiv:2210.10760: the proxy reward grows",
    ),
    Claim(
        "kl_overoptimization",
        "proxy_with_kl",
        "proxy_without_kl",
        accuracy,
        -1,
        "arXiv:2210.10760: while the gold reward falls",
    ),
    Claim(
        "sft_vs_dpo",
        "sft",
        "dpo",
        accuracy,
        1,
        "arXiv:2305.18290, figure 2: DPO is preferred to SFT on the chosen responses",
    ),
    Claim(
        "rloo_vs_grpo",
        "grpo",
        "rloo",
        accuracy,
        0,
        "arXiv:2402.14740 claims no effect against GRPO",
    ),
    Claim(
        "ppo_vs_grpo",
        "ppo",
        "grpo",
        accuracy,
        0,
        "arXiv:2402.03300 reports no direct comparison of the accuracies",
    ),
)


def name(run: SavedRun) -> str:
    """Return the option of the group that the experiments sweep."""
    return run.parts.get("variant", run.parts.get("algo", ""))


def commands(folder: Path, seeds: Sequence[int]) -> list[list[str]]:
    """Return the overrides of the commands, in their order."""
    experiments = dict.fromkeys(claim.experiment for claim in CLAIMS)
    sweep = ",".join(map(str, seeds))
    return [list(REWARD_MODEL)] + [
        ["-m", f"experiment={x}", f"seed={sweep}", f"hydra.sweep.dir={folder / x}"]
        for x in experiments
    ]


def train(overrides: Sequence[str]) -> None:
    """Run one command; finished runs are not repeated.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    if (
        "-m" not in overrides
        and SavedRun(ROOT / overrides[-1].removeprefix("run_dir=")).exit == "finished"
    ):
        return
    print("python train.py", *overrides, flush=True)
    words = [
        sys.executable,
        str(ROOT / "train.py"),
        *overrides,
        *([] if "-m" in overrides else ["resume=auto"]),
    ]
    subprocess.run(words, check=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})


def verdict_rows(runs: dict[str, list[SavedRun]]) -> list[str]:
    """Return the table of the claims in Markdown. `runs`: those of each experiment."""
    rows = [
        "| experiment | compared | statistic | paper | difference here (95 %) | |",
        "|---|---|---|---|---|---|",
    ]
    for claim in CLAIMS:
        a, b = (
            claim.results(runs.get(claim.experiment, []), member)
            for member in (claim.baseline, claim.member)
        )
        if not a.keys() & b.keys():
            rows.append(
                f"| `{claim.experiment}` | `{claim.baseline}` to `{claim.member}` | | "
                f"{claim.paper} | | not run |"
            )
            continue
        x = mean_interval(paired(a, b))
        means = f"{fmean(a.values()):.4g} to {fmean(b.values()):.4g}"
        statistic = claim.statistic.__name__.replace("_", " ")
        difference = f"{means}: {x.mean:+.3g} ({x.low:+.3g} to {x.high:+.3g}), {x.num_values} seeds"
        compared = f"`{claim.baseline}` to `{claim.member}`"
        rows.append(
            f"| `{claim.experiment}` | {compared} | {statistic} | {claim.paper} | "
            f"{difference} | {claim.holds(x)} |"
        )
    return rows


def cost_rows(runs: dict[str, list[SavedRun]]) -> list[str]:
    """Return the table of costs in Markdown."""
    rows = ["| experiment | runs | minutes | response tokens |", "|---|---|---|---|"]
    for experiment, members in runs.items():
        minutes = sum(float(run.summary.get("wall_s", 0)) for run in members) / 60
        tokens = sum(int(run.summary.get("response_tokens") or 0) for run in members)
        rows.append(f"| `{experiment}` | {len(members)} | {minutes:.0f} | {tokens:,} |")
    return rows


def statistics_rows() -> list[str]:
    """Return the definitions of the statistics as a list in Markdown."""
    functions = dict.fromkeys(claim.statistic for claim in CLAIMS)
    return [
        f"- *{function.__name__.replace('_', ' ')}*: {' '.join((function.__doc__ or '').split())}"
        for function in functions
    ]


def page(runs: dict[str, list[SavedRun]]) -> str:
    """Return docs/claims.md."""
    return "\n".join(
        [
            INTRODUCTION,
            *verdict_rows(runs),
            "",
            *statistics_rows(),
            "",
            DISCUSSION,
            *cost_rows(runs),
            "",
        ]
    )


INTRODUCTION = """# Claims of papers, tried

`make -C bench claims` writes this page from seven experiments. Each trains its members with several seeds:

```bash
python train.py -m experiment=dapo_ladder seed=1,2,3
```

The policy is the embedded model of 1.8 million parameters, the task is arithmetic. Papers train models of billions of parameters for thousands
of steps. "Shown" and "opposite": the interval of the difference, paired by seed, leaves out 0. "Not decided": it holds 0. Nothing was tuned
towards an outcome. One interval in twenty leaves out 0 without a difference.
"""
DISCUSSION = """## What this scale cannot show

- Responses have about 6 tokens and are hardly ever truncated, so overlong filtering and the soft overlong penalty have nothing to act on.
- With responses of about equal length, `aggregation=token_mean` and `sequence_mean` have nearly the same weights, and a bias towards longer
  wrong responses has little room.
- In `sft_vs_dpo` the chosen responses are the right answers, so SFT trains on gold answers. DPO only prefers them to wrong ones. The paper's
  pairs are preferences among samples of a model.

## Cost

Wall time with one thread per run on two CPU cores. Other jobs ran beside most of them:
"""


def main(folder: Path, seeds: Sequence[int]) -> None:
    for overrides in commands(folder, seeds):
        train(overrides)
    runs = {
        claim.experiment: find_runs([folder / claim.experiment])
        for claim in CLAIMS
        if (folder / claim.experiment).is_dir()
    }
    (ROOT / "docs/claims.md").write_text(page(runs))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(
        Path(sys.argv[1]).resolve(),
        tuple(map(int, sys.argv[2].split(","))) if len(sys.argv) > 2 else SEEDS,
    )
