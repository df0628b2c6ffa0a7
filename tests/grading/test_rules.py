"""The rules of `Accuracy` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlmods.config.instantiate import instantiate
from rlmods.errors import UserError
from rlmods.reward import Accuracy, Rules

CONF = Path(__file__).parents[2] / "conf" / "reward"


def reward(name: str, *overrides: str) -> Any:
    changes = [override.lstrip("+") for override in overrides]
    config = OmegaConf.merge(OmegaConf.load(CONF / f"{name}.yaml"), OmegaConf.from_dotlist(changes))
    return instantiate(config, "reward")


def test_the_defaults_are_those_of_the_class() -> None:
    assert reward("accuracy") == Accuracy()
    assert Accuracy().rules == Rules()


def test_a_rule_is_set_by_its_name() -> None:
    assert reward("accuracy", "rules.form=any", "rules.irrational_digits=3").rules == Rules(
        form="any", irrational_digits=3
    )


@pytest.mark.parametrize(
    "override", ["rules.form=words", "+rules.lenient=true", "rules.repeating_digits=0"]
)
def test_wrong_rules_are_refused(override: str) -> None:
    with pytest.raises(UserError, match=override.rpartition(".")[2].partition("=")[0]):
        reward("accuracy", override)
