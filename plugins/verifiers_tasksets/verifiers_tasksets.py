"""Tasksets of the verifiers package, version 0.4. A session is an episode:

    python train.py data=verifiers data.taskset=my_taskset environment=agent \\
        environment.agent=verifiers_tasksets:agent reward=environment

The taskset, its harness and its rewards run unmodified. The harness must run without a container,
as `in_process_harness` of this plugin does, and `null` and `bash` of verifiers."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

from rlmods.data.schema import Splits, checked_splits, import_extra, prompt_fields
from rlmods.errors import UserError
from rlmods.settings.bounds import Count, NonNegativeInt, bounded
from rlmods.types import Prompt


@dataclass(frozen=True)
@bounded("data")
class Verifiers:
    """The first tasks of a taskset as prompts. Those of val come first. The harness sends the
    prompt of the task to the policy; the text here is what samples show.

    Raises: UserError for a missing package, and for a taskset that does not load."""

    taskset: str | None = None
    """Name of the installed package with the taskset."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the taskset, as in `+data.options.difficulty=hard`."""
    harness: str = "in_process_harness"
    """Name of the harness that plays the tasks."""
    num_train: Count = 1000
    """Maximum number of train tasks."""
    num_val: NonNegativeInt = 100
    """Maximum number of val tasks."""
    chat: bool = True
    """Put the text in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        if self.taskset is None:
            raise UserError("data=verifiers: type data.taskset=PACKAGE")
        env = {
            "taskset": {"id": self.taskset, **self.options},
            "agent": {"harness": {"id": self.harness}, "runtime": {"type": "subprocess"}},
        }
        settings = json.dumps(env, sort_keys=True)
        import_extra("verifiers", "verifiers", "data=verifiers")
        try:
            tasks = tasks_of(settings, self.num_train + self.num_val)
        except Exception as error:  # of the taskset
            text = " ".join(str(error).split())
            raise UserError(f"data.taskset={self.taskset}: {text}") from error
        prompts = []
        for i, task in enumerate(tasks):
            meta = {"verifiers": settings, "num_tasks": self.num_train + self.num_val, "index": i}
            shown = prompt_fields(task.data.prompt_text or str(i), self.chat)
            prompts.append(Prompt(id=f"{self.taskset}-{i}", meta=meta, **shown))
        return checked_splits(prompts[self.num_val :], prompts[: self.num_val], "data=verifiers")


def environment_of(settings: str) -> Any:
    """Return an environment of verifiers with this configuration, JSON."""
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    return load_environment(resolve_env_config(json.loads(settings)))


@cache
def tasks_of(settings: str, count: int) -> list[Any]:
    """Return the first tasks of an environment."""
    return list(islice(environment_of(settings).taskset, count))


async def agent(task: Mapping[str, Any], client: Any) -> float:
    """Play the task of a row of `data=verifiers`, and return the sum of its rewards.

    Raises:
        RuntimeError: the episode failed.
    """
    import verifiers.v1 as vf

    meta = task["meta"]
    played = tasks_of(meta["verifiers"], meta["num_tasks"])[meta["index"]]
    variable = f"RLMODS_KEY_{id(client)}"  # the only place where verifiers looks for a key
    os.environ[variable] = client.api_key
    try:
        policy = vf.EvalClientConfig(base_url=client.base_url, api_key_var=variable)
        environment = environment_of(meta["verifiers"])
        async with environment.serving():
            episode = await environment.run_episode(played, vf.ModelContext("policy", policy))
    finally:
        del os.environ[variable]
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        raise RuntimeError(f"{errors[0].type}: {errors[0].message}")
    [trace] = episode.traces
    return float(trace.reward)
