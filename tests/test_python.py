"""docs/python.md: its code runs, with fewer iterations and a smaller policy."""

import re
from typing import Any

import pytest

from rlmods.algo import GRPO, Batch
from tests.support.tiny_setup import learner
from tests.test_docs import DOCS

PAGE = (DOCS / "python.md").read_text()
CHANGES = {
    "Tiny()()": "Tiny(pretrained=False, hidden_size=32, num_layers=2)()",
    "Arithmetic()()": "Arithmetic(num_train=50, num_val=4)()",
    "prompts=32, samples=8": "prompts=4, samples=4",
    "max_iterations=40": "max_iterations=2, accelerator='cpu'",
}


def test_the_code_trains_and_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for old, new in CHANGES.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/python.md", "exec"), names)
    assert names["learner"].iteration == 2
    assert "iteration 2/2" in capsys.readouterr().out
    assert "val/accuracy" in names["trainer"].callback_metrics


def test_names_of_the_page_exist() -> None:
    from rlmods import algo, callbacks, logger, policy

    for module, name in (
        (policy, "HuggingFace"),
        (algo, "PolicyGradientSettings"),
        (callbacks, "Samples"),
        (logger, "JsonlLogger"),
    ):
        assert f"{name}(" in PAGE
        assert hasattr(module, name), name


def test_parts_that_are_left_out_do_nothing() -> None:
    """As those that the command line chooses by default."""
    made = learner(GRPO, batch=Batch(prompts=4, samples=4))
    short = GRPO(
        **{
            name: getattr(made, name)
            for name in ("policy", "rollout", "reward", "optimizer", "batch", "splits")
        },
        **{
            name: getattr(made, name)
            for name in ("sampling", "advantage", "kl", "ratio", "aggregation")
        },
    )
    for name in ("critic_config", "router", "schedule"):
        assert getattr(short, name) == getattr(made, name)
    assert short.validation.every == 10
