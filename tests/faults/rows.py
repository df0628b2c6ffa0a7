"""Table of docs/faults.md, one row per test: `python -m tests.faults.rows` prints it."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A fault and its effect on a run."""

    fault: str
    message: str
    """Line on standard error, "" for none. `<...>` stands for text that differs between runs."""
    status: int
    """Exit status."""
    lost: str
    """Work that is lost."""

    def pattern(self) -> str:
        """Return a regular expression for `message`."""
        return (
            "^" + ".+?".join(re.escape(part) for part in re.split(r"<[^>]+>", self.message)) + "$"
        )


RESUME_COMMAND = "to resume: python train.py <settings> run_dir=<run> resume=auto"
ROWS = {
    "two_processes_in_one_run_directory": Row(
        "A second process is started in the directory of a running one",
        "error: run_dir=<run> is in use by process <pid> on <host>: type another "
        "run_dir=..., or end that run first",
        1,
        "nothing",
    ),
    "truncated_checkpoint": Row(
        "The newest checkpoint is truncated, then `resume=auto`",
        "warning: <run>/checkpoints/iteration_000002.ckpt: cannot be read as a checkpoint "
        "(File is not a zip file): resuming from "
        "iteration 1, later iterations are repeated",
        0,
        "iteration 2, which is repeated",
    ),
    "flipped_bit_in_checkpoint": Row(
        "One bit of one weight in the newest checkpoint is flipped, then `resume=auto`",
        "warning: <run>/checkpoints/iteration_000002.ckpt: cannot be read as a checkpoint "
        "(<entry> is damaged): resuming from "
        "iteration 1, later iterations are repeated",
        0,
        "iteration 2, which is repeated",
    ),
    "all_checkpoints_broken": Row(
        "Every checkpoint is truncated, then `resume=auto`",
        "error: <run>/checkpoints: none of its 2 checkpoints can be read, start a new run "
        "with another run_dir=...",
        1,
        "the run except `export/`",
    ),
    "kill_while_saving": Row(
        "`kill -9` while a checkpoint is written, then `resume=auto`",
        "",
        0,
        "iterations after the last complete checkpoint. The incomplete one is deleted",
    ),
    "disk_full_once": Row(
        "The disk is full while iteration 2 is saved, and has room again after it",
        "warning: iteration 2 was not saved (No space left on device): training continues, "
        "the newest checkpoint is of iteration 1",
        0,
        "nothing: iteration 3 is saved. `checkpoint/failures` is 1",
    ),
    "disk_full_at_the_end": Row(
        "The disk is full while the last iteration is saved",
        "error: iteration 2 was not saved (No space left on device), the newest checkpoint "
        "is of iteration 1: make room in "
        "<run>/checkpoints, then type resume=auto with the same run_dir",
        1,
        "iteration 2 for a resumed run. `export/` has it",
    ),
    "disk_full_for_the_log": Row(
        "The disk is full while `metrics.jsonl` is written",
        "error: <run>/metrics.jsonl: cannot write there (No space left on device): make "
        "room, or choose another run_dir=... or out=...",
        1,
        "iterations after the last checkpoint",
    ),
    "sigterm": Row(
        "SIGTERM, as from a scheduler",
        f"interrupted after iteration 2; {RESUME_COMMAND}",
        75,
        "nothing",
    ),
    "sigusr1": Row(
        "SIGUSR1, as from `#SBATCH --signal=USR1@300`",
        f"interrupted after iteration 2; {RESUME_COMMAND}",
        75,
        "nothing",
    ),
    "no_time_left": Row(
        "SIGUSR1, when iterations take longer than `callbacks.stop.grace_s`",
        "interrupted within iteration 2, work after iteration 1 will be repeated; "
        f"{RESUME_COMMAND}",
        75,
        "the current iteration, and those since the last checkpoint",
    ),
    "ctrl_c": Row("Ctrl-C", f"interrupted after iteration 2; {RESUME_COMMAND}", 130, "nothing"),
    "ctrl_c_twice": Row(
        "Ctrl-C twice",
        f"iteration 1 is saved; {RESUME_COMMAND}",
        1,
        "iterations after the last checkpoint",
    ),
    "nan_once": Row(
        "The loss of one optimizer step is NaN",
        "",
        0,
        "that step: weights and optimizer are as before it. `train/nonfinite_steps` is 1",
    ),
    "nan_always": Row(
        "The loss of every optimizer step is NaN",
        "error: 3 optimizer steps in a row were not finite: iteration 3 ends the run, try a "
        "smaller optimizer.lr=... or "
        "batch.max_nonfinite=N; its rows are in <run>/nonfinite/iteration_000003.pt: "
        "torch.load(PATH, weights_only=True)",
        1,
        "iterations after the last checkpoint. Weights did not change in them",
    ),
    "explosion": Row(
        "A learning rate so high that the policy diverges",
        "error: iteration 3: train/ratio_max is <number>, beyond <limit> for 3 iterations in a "
        "row: training has diverged; the run is saved and stopped, type a smaller optimizer.lr, or "
        "another callbacks.monitor.max_ratio",
        1,
        "nothing",
    ),
    "reward_raises": Row(
        "A reward raises",
        "RuntimeError: reward fault raised LookupError: no such key (<file>:<line>)",
        1,
        "iterations after the last checkpoint",
    ),
    "reward_hangs": Row(
        "A reward in worker processes hangs on every response",
        "warning: iteration 1: ungraded_fraction is 1, beyond 0.05: such responses count as wrong; "
        "see reward/<term>/timeouts and reward/<term>/errors, type a larger timeout_s of the term "
        "or mend it",
        0,
        "the scores of that term, which abstains. `reward/fault/timeouts` counts them",
    ),
    "data_changed": Row(
        "A row of the data is changed between save and `resume=auto`",
        "error: the data changed between save and resume (<n> prompts then, <n> now); "
        "restore it, or start anew with resume=null",
        1,
        "nothing",
    ),
    "rank_dies": Row(
        "`kill -9` of one rank of two",
        "error: another rank has ended or hangs, as this one noticed in phase <phase> of iteration "
        "2: see the output of the other ranks; resume=auto continues from the latest checkpoint",
        1,
        "iterations after the last checkpoint. The others end within seconds",
    ),
    "rank_fails": Row(
        "A reward raises on one rank of two",
        "error: another rank has ended or hangs, as this one noticed in phase <phase> of iteration "
        "2: see the output of the other ranks; resume=auto continues from the latest checkpoint",
        1,
        "iterations after the last checkpoint. The others end within seconds",
    ),
    "rank_hangs": Row(
        "A reward never returns on one rank of two",
        "Timeout (<time>)!",
        1,
        "iterations after the last checkpoint. All end after `callbacks.watchdog.timeout_s` and "
        "print their stacks",
    ),
    "settings_changed": Row(
        "`resume=auto ratio.high=0.4`, where the run was started with another",
        "error: <run> was started with ratio.high=0.28 (now 0.4): a resumed run needs the "
        "same settings; for a new run, type another "
        "run_dir= and no resume=",
        1,
        "nothing",
    ),
    "another_model": Row(
        "`resume=auto` with another model than the run was started with",
        "error: <run> was started with policy.hidden_size=32 (now 64): a resumed run needs "
        "the same settings; for a new run, type another "
        "run_dir= and no resume=",
        1,
        "nothing",
    ),
}


def table() -> str:
    """Return the table in Markdown. The messages are in the rows only."""
    lines = ["| fault | exit status | lost |", "|---|---|---|"]
    lines += [f"| {row.fault} | {row.status} | {row.lost} |" for row in ROWS.values()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
