"""Damaged checkpoints and random overrides end in one line, not in a traceback."""

import io
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, strategies as st
from torch.distributed import checkpoint as dcp

from rlmods.cli.command import configuration
from rlmods.config import plugins
from rlmods.config.instantiate import instantiate
from rlmods.distributed.sharded_checkpoint import load
from rlmods.errors import UserError
from rlmods.run import name
from rlmods.run.checkpoints import compute_checksums, find_resume, read_iteration, write_manifest
from tests.grading.redteam.fuzz import fuzz

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore:.*torch.distributed is (unavailable|disabled).*"),
]
CONTENT: dict[str, Any] = {
    "iteration": 7,
    "loops": {"fit_loop": {"state": {}}},
    "state_dict": {"weight": torch.arange(12.0), "bias": torch.zeros(3)},
    "settings": {"lr": 1e-3, "name": "dapo", "betas": (0.9, 0.95)},
}
damage = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4
)
"""Positions in a file and what is xored to the byte there."""
cuts = st.floats(0, 1)


@pytest.fixture(scope="module")
def checkpoint() -> bytes:
    buffer = io.BytesIO()
    torch.save(CONTENT, buffer)
    return buffer.getvalue()


def flipped(content: bytes, changes: list[tuple[float, int]]) -> bytes:
    changed = bytearray(content)
    for position, mask in changes:
        changed[int(position * len(changed))] ^= mask
    return bytes(changed)


def resume(path: Path, resume: str = "auto") -> Path | None:
    """Select the checkpoint to resume from; a damaged one is skipped with a warning or refused in
    one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = find_resume(path, resume)
            assert found is None or read_iteration(found) == 7
        except UserError as error:
            message = str(error)
        else:
            return found
    assert str(path) in message
    assert "\n" not in message
    return None


@fuzz(150)
@given(changes=damage)
def test_fuzz_flipped_bytes_of_a_checkpoint(
    tmp_path: Path, checkpoint: bytes, changes: list[tuple[float, int]]
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir(exist_ok=True)
    (folder / "iteration_000007.ckpt").write_bytes(flipped(checkpoint, changes))
    resume(tmp_path)
    resume(tmp_path, str(folder / "iteration_000007.ckpt"))


@fuzz(40)
@given(part=cuts, tail=st.binary(max_size=30))
def test_fuzz_truncated_checkpoints(
    tmp_path: Path, checkpoint: bytes, part: float, tail: bytes
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir(exist_ok=True)
    (folder / "iteration_000007.ckpt").write_bytes(checkpoint[: int(part * len(checkpoint))] + tail)
    resume(tmp_path)


def test_the_undamaged_sharded_checkpoint_is_read(tmp_path: Path) -> None:
    folder = _sharded(tmp_path)
    assert resume(tmp_path) == folder
    assert resume(tmp_path, str(folder)) == folder
    state = {
        "state_dict": {"weight": torch.zeros(12), "bias": torch.ones(3)},
        "settings": {"lr": 0.0, "name": "", "betas": None},
    }
    load(state, folder)
    assert torch.equal(state["state_dict"]["weight"], CONTENT["state_dict"]["weight"])  # type: ignore[arg-type]
    assert state["settings"] == CONTENT["settings"]


@fuzz(60)
@given(
    changes=damage, file=st.sampled_from(["meta.pt", ".metadata", "__0_0.distcp", "manifest.json"])
)
def test_fuzz_flipped_bytes_of_a_sharded_checkpoint(
    tmp_path: Path, changes: list[tuple[float, int]], file: str
) -> None:
    folder = _sharded(tmp_path)
    (folder / file).write_bytes(flipped((folder / file).read_bytes(), changes))
    resume(tmp_path)


def _sharded(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints" / "iteration_000007.ckpt"
    shutil.rmtree(folder, ignore_errors=True)
    dcp.save(
        {"state_dict": CONTENT["state_dict"], "settings": CONTENT["settings"]}, checkpoint_id=folder
    )
    torch.save(CONTENT, folder / "meta.pt")
    write_manifest(folder, [compute_checksums(folder)])
    return folder


keys = st.sampled_from(
    [
        "algo",
        "data",
        "reward",
        "seed",
        "policy",
        "trainer.max_iterations",
        "batch.samples",
        "data.level",
        "reward.terms.accuracy.weight",
        "ratio",
        "x",
        "",
        "hydra.run.dir",
        "run_dir",
        "experiment",
        "ptx",
        "data@ptx",
        "reward.terms",
        "trainer",
        "rollout.stop",
    ]
)
texts = st.text(max_size=8) | st.sampled_from(
    [
        "1",
        "null",
        "[1,2]",
        "{a:1}",
        "${seed}",
        "${x}",
        "${oc.env:HOME}",
        "${",
        "'",
        '"',
        "[",
        "{",
        "a,b",
        "range(1,3)",
        "glob(*)",
        "1e999",
        "nan",
        "true",
        "..",
        "/etc/passwd",
        "int(x)",
        "dapo",
        "math",
        "\\",
        "${default_run_dir:${algo.name}}",
        "${now:%Y}",
    ]
)
overrides = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "+", "++", "~"]),
    keys,
    st.sampled_from(["=", "", "@", ":", "=="]),
    texts,
) | st.text(max_size=12)


@pytest.fixture(scope="module")
def _registered() -> None:
    plugins.register()
    name.register()


@pytest.mark.usefixtures("_registered")
@fuzz(60)
@given(chosen=st.lists(overrides, min_size=1, max_size=2))
@example(chosen=["data@ptx=null"])
@example(chosen=["~algo"])
@example(chosen=["reward=null"])
@example(chosen=["data.level=${data.level}"])
def test_fuzz_overrides_compose_or_are_refused(chosen: list[str]) -> None:
    try:
        config = configuration(chosen)
        instantiate(config.data, "data")
        instantiate(config.rollout, "rollout")
    except UserError:
        pass
