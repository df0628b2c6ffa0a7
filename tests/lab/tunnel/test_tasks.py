"""The tasks of the wind tunnel."""

import pytest

from rlmods.cli.command import configuration
from rlmods.config.options import CONF
from rlmods.errors import UserError
from rlmods.lab.tunnel.tasks import TASKS, Task, find_tasks
from rlmods.run import name


def test_every_task_has_a_recipe_and_every_recipe_a_task() -> None:
    recipes = {path.stem for path in (CONF / "experiment" / "tunnel").glob("*.yaml")}
    assert recipes - {"base"} == {task.name for task in TASKS}


def test_scores_have_a_range() -> None:
    assert all(0 <= task.start < task.best <= 1 for task in TASKS)


def test_are_found_by_name_in_their_order() -> None:
    assert [task.name for task in find_tasks(["tools", "long"])] == ["long", "tools"]
    assert find_tasks([]) == list(TASKS)
    with pytest.raises(UserError, match="tasks=lnog: no such task; did you mean long"):
        find_tasks(["lnog"])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_an_algorithm_keeps_its_parts(task: Task) -> None:
    name.register()
    for algo in ("grpo", "gspo", "sapo"):
        config = configuration([task.experiment, f"algo={algo}"])
        assert config.algo.name == algo
        assert config.ratio == configuration([f"algo={algo}"]).ratio
        assert config.policy.weights == "worked"
        assert config.callbacks.budget.max_tokens > 0
