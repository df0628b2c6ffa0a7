"""`optimizer=adamw_8bit`: messages with a stand-in, and a run with bitsandbytes itself on the CPU."""

import sys
from pathlib import Path

import pytest
import torch

from rlmods.config import build
from rlmods.errors import UserError
from rlmods.lab.diff import diff
from tests.cli.test_main import train
from tests.cli.test_plan import WEIGHTS, stages
from tests.support.composed import composed
from tests.support.eight_bits import eight_bits as eight_bits

OPTION = "optimizer=adamw_8bit"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"^optimizer=adamw_8bit needs .*'rlmods\[adamw-8bit\]'$"):
        composed(OPTION)


def test_shards_are_refused(eight_bits: None) -> None:
    composed(OPTION, "trainer=ddp")
    with pytest.raises(UserError, match=r"^optimizer=adamw_8bit cannot be sharded: type trainer=d"):
        composed(OPTION, "trainer=fsdp")
    composed("optimizer=adamw", "trainer=fsdp")


@pytest.mark.nightly
class TestPackage:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("bitsandbytes")

    def test_a_run_resumes(self, tmp_path: Path) -> None:
        typed = ("algo=ppo", "critic=separate", "reward=math", OPTION, "batch.prompts=4")
        sizes = ("batch.samples=4", "validation.max_prompts=4", "logger=none")
        for more in (
            ("run_dir=parts", "trainer.max_iterations=2"),
            ("run_dir=parts", "trainer.max_iterations=3", "resume=auto"),
            ("run_dir=whole", "trainer.max_iterations=3"),
        ):
            done = train(tmp_path, *typed, *sizes, *more, small=False)
            assert done.code == 0, done.err[-2000:]
        found, _ = diff(tmp_path / "parts", tmp_path / "whole")
        assert found is None, str(found)

    def test_plan_counts_two_bytes(self) -> None:
        assert stages(OPTION)["update"]["optimizer state"] == 2 * WEIGHTS

    def test_large_matrices_have_8_bits(self) -> None:
        made = build.load(composed(OPTION)).learner
        large, small = torch.nn.Parameter(torch.zeros(64, 64)), torch.nn.Parameter(torch.zeros(64))
        for x in (large, small):
            x.grad = torch.ones_like(x)
        optimizer = made.optimizer([large, small])
        optimizer.step()
        assert optimizer.state[large]["state2"].dtype == torch.uint8
        assert optimizer.state[small]["state2"].dtype == torch.float32
