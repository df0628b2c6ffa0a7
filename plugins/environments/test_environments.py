"""Episodes, and what the adapters share. Each adapter has a file of tests of its own: a small fake
of the package for the logic, and the package itself where it is installed."""

from __future__ import annotations

import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from environments import Episodes, failed
from gymnasium_environment import Gymnasium
from omegaconf import OmegaConf
from openenv_environment import OpenEnv
from textarena_environment import TextArena

from rlmods.errors import UserError
from rlmods.grading.tool_worker import MARK
from rlmods.types import Prompt

FOLDER = Path(__file__).parent
PROMPT = Prompt(id="a", text="7", meta={"seed": 7})
ADAPTERS = {
    "gymnasium": Gymnasium(),
    "textarena": TextArena(),
    "openenv": OpenEnv(url="http://h:1"),
}


def test_seeds_are_whole_and_disjoint() -> None:
    splits = Episodes(num_train=4, num_val=2, seed=3)()
    prompts = (*splits.val, *splits.train)
    assert [prompt.meta["seed"] for prompt in prompts] == [3, 4, 5, 6, 7, 8]
    assert len({prompt.id for prompt in prompts}) == 6


@pytest.mark.parametrize(("field", "bad"), [("num_train", 0), ("num_val", -1), ("seed", -1)])
def test_counts_are_checked(field: str, bad: int) -> None:
    with pytest.raises(UserError, match=rf"data\.{field}={bad}"):
        Episodes(**{field: bad})()


def test_an_exception_is_recorded_and_cut() -> None:
    [call] = failed("walk", RuntimeError("x" * 99), 20).calls
    assert call.result == f"{'Error: RuntimeError: ' + 'x' * 99:.20}{MARK}"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_the_keys_of_an_option_are_fields_with_their_defaults(path: Path) -> None:
    option: Any = OmegaConf.to_container(OmegaConf.load(path))
    module, _, name = option.pop("_target_").rpartition(".")
    made = getattr(import_module(module), name)()
    assert option == {field.name: getattr(made, field.name) for field in fields(made)}


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
class TestAdapter:
    @pytest.mark.parametrize("field", ["max_turns", "max_tokens", "max_result_chars"])
    def test_limits_are_checked(self, adapter: Any, field: str) -> None:
        with pytest.raises(ValueError, match=rf"environment\.{field}=0: must be at least 1"):
            type(adapter)(**{field: 0})

    def test_prompts_have_seeds(self, adapter: Any) -> None:
        with pytest.raises(ValueError, match="it has no seed: type data=episodes"):
            adapter.check_prompt(Prompt(id="a", text="x"))

    def test_a_missing_package_is_one_line(
        self, adapter: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [name] = [name for name, made in ADAPTERS.items() if made is adapter]
        for module in (name, f"{name}.core"):
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            UserError,
            match=rf"^environment={name} needs the package {name}; type pip install "
            rf"'rlmods\[{name}\]'$",
        ):
            adapter.check_prompt(PROMPT)
