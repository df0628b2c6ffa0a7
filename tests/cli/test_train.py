"""Variables of the environment with which a run begins, and the status with which it ends."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.callbacks import GracefulStop
from rlmods.cli import job
from rlmods.cli.train import set_environment

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@pytest.mark.parametrize("own", [None, *ALLOCATOR])
def test_memory_that_sampling_frees_serves_an_update(
    own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU. The user's own settings of the allocator stay, under either name."""
    for name in (*ALLOCATOR, "TORCH_CPP_LOG_LEVEL", "HYDRA_FULL_ERROR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if own is not None:
        monkeypatch.setenv(own, "max_split_size_mb:128")
    set_environment()
    found = {name: os.environ[name] for name in ALLOCATOR if name in os.environ}
    if own is None:
        assert found == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    else:
        assert found == {own: "max_split_size_mb:128"}


@pytest.mark.parametrize(
    ("iteration", "aborted", "signal", "expected"),
    [(3, False, 15, 0), (3, True, 15, 75), (2, False, 15, 75), (2, False, None, 0)],
)
def test_a_run_whose_last_iteration_is_lost_is_not_complete(
    iteration: int, aborted: bool, signal: int | None, expected: int
) -> None:
    """A deadline may fall in the validation of the last iteration, before its checkpoint."""
    stop = GracefulStop()
    stop.signal = signal
    stop.iteration_aborted = aborted
    trainer = SimpleNamespace(callbacks=[stop])
    learner: Any = SimpleNamespace(trainer=trainer, iteration=iteration, max_iterations=3)
    assert job._signal_status(learner) == expected
