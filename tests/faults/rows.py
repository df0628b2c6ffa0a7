"""The table of docs/faults.md, a row a test: `python -m tests.faults.rows` prints it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What was done to a run, and what came of it."""

    injected: str
    saw: str
    """The line on standard error. `<...>` stands for what differs from run to run."""
    status: int
    lost: str

    def pattern(self) -> str:
        """What the line has to match."""
        return "^" + ".+?".join(re.escape(part) for part in re.split(r"<[^>]+>", self.saw)) + "$"


GO_ON = "to resume: python train.py <settings> run_dir=<run> resume=auto"
ROWS = {
    "two_processes_in_one_run_directory": Row(
        "A second process is started in the directory of a running one",
        "error: run_dir=<run> is in use by process <pid> on <host>: type another run_dir=..., or end that run first",
        1,
        "nothing",
    ),
    "truncated_checkpoint": Row(
        "The newest checkpoint is cut in half, then `resume=auto`",
        "warning: <run>/checkpoints/iteration_000002.ckpt: cannot be read as a checkpoint (File is not a zip file): goes on from "
        "iteration 1, what came after is repeated",
        0,
        "iteration 2, which is repeated",
    ),
    "flipped_bit_in_checkpoint": Row(
        "One bit of one weight in the newest checkpoint is flipped, then `resume=auto`",
        "warning: <run>/checkpoints/iteration_000002.ckpt: cannot be read as a checkpoint (<entry> is damaged): goes on from "
        "iteration 1, what came after is repeated",
        0,
        "iteration 2, which is repeated",
    ),
    "all_checkpoints_broken": Row(
        "Every checkpoint is cut in half, then `resume=auto`",
        "error: <run>/checkpoints: none of its 2 checkpoints can be read, start anew with another run_dir=...",
        1,
        "the run but for `export/`",
    ),
    "kill_while_saving": Row(
        "`kill -9` while a checkpoint is written: half of it is left over, then `resume=auto`",
        "",
        0,
        "what came after the last whole checkpoint; the half is removed",
    ),
    "disk_full_once": Row(
        "The disk is full while iteration 2 is saved, and has room again after it",
        "warning: iteration 2 was not saved (No space left on device): the run goes on, the newest checkpoint is of iteration 1",
        0,
        "nothing: iteration 3 is saved; `checkpoint/failures` is 1",
    ),
    "disk_full_at_the_end": Row(
        "The disk is full while the last iteration is saved",
        "error: iteration 2 was not saved (No space left on device), the newest checkpoint is of iteration 1: make room in "
        "<run>/checkpoints, then type resume=auto with the same run_dir",
        1,
        "iteration 2 for a resumed run; `export/` has it",
    ),
    "disk_full_for_the_log": Row(
        "The disk is full while `metrics.jsonl` is written",
        "error: <run>/metrics.jsonl: cannot write there (No space left on device): make room, or choose another run_dir=...",
        1,
        "what came after the last checkpoint",
    ),
    "sigterm": Row("SIGTERM, as from a scheduler", f"interrupted after iteration 2; {GO_ON}", 75, "nothing"),
    "sigusr1": Row("SIGUSR1, as from `#SBATCH --signal=USR1@300`", f"interrupted after iteration 2; {GO_ON}", 75, "nothing"),
    "no_time_left": Row(
        "SIGUSR1, when iterations take longer than `callbacks.stop.grace_s`",
        f"interrupted within iteration 2, work after iteration 1 will be repeated; {GO_ON}",
        75,
        "the iteration that was under way, and those since the last checkpoint",
    ),
    "ctrl_c": Row("Ctrl-C", f"interrupted after iteration 2; {GO_ON}", 130, "nothing"),
    "ctrl_c_twice": Row("Ctrl-C twice", "stopping after iteration 2; Ctrl-C again stops at once", 1, "what came after the last checkpoint"),
    "nan_once": Row(
        "The loss of one optimizer step is NaN",
        "",
        0,
        "that step: weights and optimizer are as before it; `train/nonfinite_steps` is 1",
    ),
    "nan_always": Row(
        "The loss of every optimizer step is NaN",
        "error: 3 optimizer steps in a row were not finite: iteration 3 ends the run, try a smaller optimizer.lr=... or "
        "batch.max_nonfinite=N; its rows are in <run>/nonfinite/iteration_000003.pt: torch.load(PATH, weights_only=True)",
        1,
        "what came after the last checkpoint, in which nothing was learnt",
    ),
    "explosion": Row(
        "A learning rate that makes the policy jump, three iterations in a row",
        "error: train/ratio_max is <number> after iteration 3, and 3 in a row were beyond callbacks.guard.max_ratio=<bound>: the run has "
        "exploded, and is saved; try a smaller optimizer.lr=..., or another bound",
        1,
        "nothing",
    ),
    "worker_storm": Row(
        "A reward in worker processes (`timeout_s`) that takes each of them down",
        "error: reward fault: 50 worker processes for rlmods.reward.isolation:answer in a row ended in the middle of a call (with code 9)",
        1,
        "what came after the last checkpoint",
    ),
    "reward_raises": Row(
        "A reward raises",
        "RuntimeError: reward fault raised LookupError: no such key (<file>:<line>)",
        1,
        "what came after the last checkpoint",
    ),
    "reward_hangs": Row(
        "A reward in worker processes hangs on every response",
        "",
        0,
        "the scores of that term, which abstains; `reward/fault/timeouts` counts them",
    ),
    "data_changed": Row(
        "A row of the data is changed between save and `resume=auto`",
        "error: the data changed between save and resume (<n> prompts then, <n> now); restore it, or start anew with resume=null",
        1,
        "nothing",
    ),
    "rank_dies": Row(
        "`kill -9` of one rank of two",
        "error: rank 1 died, last heard of in stage reward of iteration 2; resume=auto goes on from the latest checkpoint",
        1,
        "what came after the last checkpoint; the others end within seconds",
    ),
    "rank_fails": Row(
        "A reward raises on one rank of two",
        "error: rank 1 failed in stage reward of iteration 2: UserError: the reward cannot go on: type reward=format; resume=auto goes on "
        "from the latest checkpoint",
        1,
        "what came after the last checkpoint; the others end within seconds",
    ),
    "rank_hangs": Row(
        "A reward never returns on one rank of two",
        "error: no sign of life for <n> s: rank 1 in stage reward of iteration 2, and the others wait for it; resume=auto goes on from the "
        "latest checkpoint",
        1,
        "what came after the last checkpoint; all end after `callbacks.watchdog.timeout_s`, and that rank shows its stacks",
    ),
    "rank_stands_still": Row(
        "One rank of two is stopped (SIGSTOP), as a machine that hangs",
        "error: rank 1 has not been heard of for <n> s, and was in stage reward of iteration 2; resume=auto goes on from the latest "
        "checkpoint",
        1,
        "what came after the last checkpoint; the others end after `callbacks.watchdog.lost_s`",
    ),
    "first_rank_dies": Row(
        "`kill -9` of the first rank of two",
        "error: rank 0 is gone: its store does not answer; resume=auto goes on from the latest checkpoint",
        1,
        "what came after the last checkpoint; the others end within seconds",
    ),
    "settings_changed": Row(
        "`resume=auto ratio.high=0.4`, where the run began with another",
        "error: <run> began with ratio.high=0.28 (now 0.4): resuming takes the same settings; a new run takes another run_dir= and "
        "no resume=",
        1,
        "nothing",
    ),
    "another_model": Row(
        "`resume=auto` with another model than the run began with",
        "error: <run> began with policy.hidden_size=32 (now 64): resuming takes the same settings; a new run takes another run_dir= and "
        "no resume=",
        1,
        "nothing",
    ),
}


def table() -> str:
    """In Markdown."""
    lines = ["| what was done | what was said | exit status | what was lost |", "|---|---|---|---|"]
    for row in ROWS.values():
        said = f"`{row.saw}`" if row.saw else "nothing"
        lines.append(f"| {row.injected} | {said} | {row.status} | {row.lost} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
