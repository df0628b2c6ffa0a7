"""Variables of the environment with which a run begins."""

import os

import pytest

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
