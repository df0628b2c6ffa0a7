"""The checked configuration of a run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from rlmods.algo import Learner
from rlmods.data import Splits
from rlmods.training.evaluation import Validation
from rlmods.training.settings import Batch


@dataclass(frozen=True)
class RunSpec:
    """What a run consists of: parts, settings and data, which fit together. `compose.run_spec`
    makes it; no model is loaded and no file is written for it. `build.load` loads the model."""

    config: DictConfig
    """The composed configuration."""
    algorithm: type[Learner]
    label: str
    """Name of the algorithm, and what departs from its recipe."""
    choices: Mapping[str, str]
    """Option of each group that the algorithm uses."""
    splits: Splits
    """All prompts, also those that are longer than `data.max_prompt_tokens`."""
    adapter: Any
    """Adds an adapter to the policy, or returns it unchanged."""
    parts: Mapping[str, Any]
    """Instantiated parts by group."""
    settings: Any
    """Settings of the algorithm."""
    batch: Batch
    validation: Validation

    def option(self, group: str) -> str:
        """Return the choice of a group as you type it, for error messages."""
        return f"{group}={self.choices.get(group)}"


def applying(*problems: tuple[object, str]) -> Iterator[str]:
    """Yield the messages of the problems that a run has.

    Args:
        problems: condition and message of each.
    """
    for applies, message in problems:
        if applies:
            yield message
