"""Runs that train nothing say so."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.algo import Batch, OnlineDPO
from rlmods.callbacks import Idle
from rlmods.callbacks.idle import is_idle
from rlmods.errors import UserError
from rlmods.preference import Sigmoid
from rlmods.sampling import BestOf, Dynamic
from rlmods.types import Scores
from tests.callbacks.stubs import trainer
from tests.support.tiny_setup import fit, learner

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "flat groups": (
        {
            "reward": lambda rs: Scores([1.0] * len(rs), correct=[True] * len(rs)),
            "sampling": Dynamic(),
            "max_draws": 1,
        },
        "every response is correct: type harder data (train/all_correct_fraction=1)",
    ),
    "all wrong, with a KL or entropy term": (
        {
            "reward": lambda rs: Scores([0.0] * len(rs), correct=[False] * len(rs)),
            "entropy_coefficient": 0.1,
        },
        "every response is wrong",
    ),
    "flat groups that are trained on": (
        {"reward": lambda rs: [0.3] * len(rs)},
        "train/flat_group_fraction=1",
    ),
    "one sample": (
        {"sampling": Dynamic(), "batch": Batch(prompts=4, samples=1), "max_draws": 1},
        "type batch.samples=8 or more",
    ),
    "no score": (
        {"reward": lambda rs: [None] * len(rs)},
        "every response: check reward= and the data (train/unscored_fraction=1)",
    ),
    "nothing selected": (
        {"sampling": BestOf(threshold=9.0), "max_draws": 1},
        "sampling= selects no response",
    ),
    "no preference": (
        {"kind": OnlineDPO, "preference": Sigmoid(), "judge": lambda prompt, first, second: 0.5},
        "all responses to a prompt score alike",
    ),
}


def idle_warnings(patience: int, iterations: int, **change: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(learner(**change), iterations, callbacks=(Idle(patience),))
    return [str(warning.message) for warning in caught if "trained nothing" in str(warning.message)]


@pytest.mark.parametrize("name", CASES)
def test_names_the_likely_cause(name: str) -> None:
    change, says = CASES[name]
    assert idle_warnings(3, 2, **change) == []
    [message] = idle_warnings(2, 4, **change)
    assert message.startswith("2 iterations in a row trained nothing: ")
    assert says in message


def test_a_healthy_run_is_silent() -> None:
    assert idle_warnings(1, 3) == []


def test_warns_again_after_it_trained() -> None:
    callback, rank, logged = Idle(2), trainer(), list[dict[str, float]]()
    learner = SimpleNamespace(log_row=logged.append)
    norms = [None, 0.0, None, 1.0, None, None, 0.5, 0.0, 0.0]
    warned = []
    for norm in norms:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            callback.on_iteration_end(
                rank, learner, {} if norm is None else {"train/grad_norm": norm}
            )
        warned.append(len(caught))
    assert warned == [0, 1, 0, 0, 0, 1, 0, 0, 1]
    assert logged == [{"alert/idle": 2.0}] * 3
    assert callback.finding is not None
    callback.on_iteration_end(rank, learner, {"train/grad_norm": 1.0})
    assert callback.finding is None


def test_a_kl_term_without_advantages_is_no_signal() -> None:
    assert is_idle({"train/grad_norm": 1e-3, "train/zero_advantage_fraction": 1.0})
    assert not is_idle({"train/grad_norm": 1e-3, "train/zero_advantage_fraction": 0.9})


def test_invalid_patience() -> None:
    with pytest.raises(UserError, match=r"callbacks\.idle\.patience=0"):
        Idle(0)
