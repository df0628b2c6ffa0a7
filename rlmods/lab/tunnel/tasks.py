"""The tasks of the wind tunnel. `conf/experiment/tunnel/NAME.yaml` says how a task is trained."""

from dataclasses import dataclass

from rlmods.errors import UserError, suggest


@dataclass(frozen=True)
class Task:
    """What a task asks, and the values of its metric that have the scores 0 and 1."""

    name: str
    capability: str
    """What is asked, in a few words."""
    question: str
    """What is asked, as a sentence that ends the reading of a score."""
    start: float
    """Value of the metric before training: score 0."""
    best: float
    """Best value that can be had: score 1."""
    metric: str = "val/accuracy"

    @property
    def experiment(self) -> str:
        """Override that selects the task."""
        return f"experiment=tunnel/{self.name}"


MEAN = "val/mean@4"
TASKS = (
    Task("long", "length", "Are long solutions shortened and kept right?", 0.421, 1.0, MEAN),
    Task("sparse", "exploration", "Is a reward found that is rare at first?", 0.021, 1.0, MEAN),
    Task(
        "mixed",
        "prompts without signal",
        "Is the batch spent on what can be learned?",
        0.287,
        0.667,
        MEAN,
    ),
    Task("stale", "many steps a batch", "Do steps on older responses stay safe?", 0.246, 1.0, MEAN),
    Task(
        "noisy",
        "wrong grades",
        "Does it learn although a fifth of the grades is wrong?",
        0.246,
        1.0,
        MEAN,
    ),
    Task(
        "shaped", "two rewards", "Does it learn from rewards of different scales?", 0.246, 1.0, MEAN
    ),
    Task(
        "turns",
        "a game of several turns",
        "Does it learn a game of several turns?",
        0.429,
        1.0,
        MEAN,
    ),
    Task(
        "experts", "changing experts", "Do steps stay safe when experts change?", 0.471, 1.0, MEAN
    ),
    Task(
        "proxy", "a learned reward", "Does a reward with holes teach the truth?", 0.246, 1.0, MEAN
    ),
    Task("steps", "wrong steps", "Is the step found that was wrong?", 0.512, 1.0, MEAN),
    Task("tools", "calls of a calculator", "Does it learn when to call a tool?", 0.267, 1.0, MEAN),
)
"""All tasks. `start` is the value of the shipped policy: `policy=tiny policy.weights=worked`, or
`experts` for that task."""


def find_tasks(typed: str) -> list[Task]:
    """Return the tasks of names separated by commas, in the order of `TASKS`; all of them for "".

    Raises:
        UserError: there is no such task.
    """
    names = typed.split(",") if typed else []
    known = [task.name for task in TASKS]
    for name in names:
        if name not in known:
            raise UserError(f"tasks={name}: no such task; {suggest(name, known)}")
    return [task for task in TASKS if not names or task.name in names]
