"""The tasks of the wind tunnel."""

from pathlib import Path

import pytest

from rlmods.cli.command import configuration, silent_refusal
from rlmods.config.options import CONF
from rlmods.errors import UserError
from rlmods.lab.sequential import train_run
from rlmods.lab.tunnel.tasks import TASKS, Task, find_tasks
from rlmods.run import name
from rlmods.run.saved import SavedRun

PROCESS = ("advantage=process_outcome", "reward.terms.calculations.weight=1")


def test_every_task_has_a_recipe_and_every_recipe_a_task() -> None:
    recipes = {path.stem for path in (CONF / "experiment" / "tunnel").glob("*.yaml")}
    assert recipes - {"base"} == {task.name for task in TASKS}


def test_scores_have_a_range() -> None:
    assert all(0 <= task.start < task.best <= 1 for task in TASKS)


def test_are_found_by_name_in_their_order() -> None:
    assert [task.name for task in find_tasks("tools,long")] == ["long", "tools"]
    assert find_tasks("") == list(TASKS)
    with pytest.raises(UserError, match="tasks=lnog: no such task; did you mean long"):
        find_tasks("lnog")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_an_algorithm_keeps_its_parts(task: Task) -> None:
    name.register()
    for algo in ("grpo", "gspo", "sapo"):
        config = configuration([task.experiment, f"algo={algo}"])
        assert config.algo.name == algo
        assert config.ratio == configuration([f"algo={algo}"]).ratio
        assert config.policy.weights == ("experts" if task.name == "experts" else "worked")
        assert config.callbacks.budget.max_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "entrant"),
    [("steps", PROCESS), ("experts", ("router=replay",)), ("proxy", ("kl=none",))],
)
def test_its_entrant_trains(task: str, entrant: tuple[str, ...], tmp_path: Path) -> None:
    run = SavedRun(tmp_path / "run")
    common = ("algo=grpo", "trainer.max_iterations=1", "validation.max_prompts=4")
    assert not train_run([f"experiment=tunnel/{task}", *common, *entrant], run.path)
    rows = run.metrics
    assert any("val/mean@4" in row for row in rows)
    assert any(row.get("train/grad_norm", 0) > 0 for row in rows)


def test_steps_are_not_added_up_and_not_read_without_a_weight() -> None:
    name.register()
    weighted = silent_refusal(["experiment=tunnel/steps", "algo=grpo", PROCESS[1]])
    assert "type reward.terms.calculations.reward.aggregate=min, or advantage=process" in weighted
    unweighted = silent_refusal(["experiment=tunnel/steps", "algo=grpo", PROCESS[0]])
    assert "advantage=process_outcome needs a reward for each step" in unweighted
