"""Choice of the precision by `trainer.precision=auto`."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console
from torch import nn

from rlmods.cli.table import show_run
from rlmods.config import build
from rlmods.config.run_spec import RunSpec
from rlmods.distributed import trainer
from rlmods.distributed.trainer import (
    MIN_PARAMETERS,
    choose,
    device_type,
    has_fast_bfloat16,
    select_device,
)
from rlmods.errors import UserError
from rlmods.run.directory import RUN_DIR_VARIABLE, RunDir
from tests.support.composed import composed

TINY = (
    "policy.pretrained=false",
    "policy.hidden_size=32",
    "policy.num_layers=1",
    "trainer.accelerator=cpu",
    "logger=none",
)


def network(num_parameters: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Linear(num_parameters, 1, bias=False, dtype=dtype, device="meta")


def machine(
    monkeypatch: pytest.MonkeyPatch,
    *,
    amx: bool = False,
    avx512: bool = False,
    cuda: bool = False,
    bfloat16: bool = False,
) -> None:
    """A processor with or without instructions for bfloat16, and a GPU, with or without."""
    monkeypatch.setattr(
        torch.cpu,
        "get_capabilities",
        lambda: {"amx_bf16": amx, "avx512_bf16": avx512},
        raising=False,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: bfloat16 or including_emulation,
    )


class TestChoice:
    @pytest.mark.parametrize(
        ("has", "accelerator", "expected"),
        [
            ({"amx": True}, "auto", "bf16-mixed"),
            ({"avx512": True}, "auto", "32-true"),
            ({}, "auto", "32-true"),
            ({"cuda": True, "bfloat16": True}, "auto", "bf16-mixed"),
            ({"cuda": True, "bfloat16": True}, "gpu", "bf16-mixed"),
            ({"cuda": True}, "cuda", "32-true"),
            ({"cuda": True, "amx": True}, "auto", "32-true"),  # the GPU trains, not the processor
            ({"cuda": True, "bfloat16": True}, "cpu", "32-true"),
            ({"cuda": True, "amx": True}, "cpu", "bf16-mixed"),
            ({"amx": True}, "mps", "32-true"),
        ],
    )
    def test_is_that_of_the_device(
        self, has: dict[str, bool], accelerator: str, expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(monkeypatch, **has)
        device = device_type(accelerator)
        assert choose(network(MIN_PARAMETERS), device).name == expected
        assert choose(network(MIN_PARAMETERS - 1), device).name == "32-true"

    def test_of_a_gpu_without_bfloat16_names_the_other_precision(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(monkeypatch, cuda=True)
        reason = choose(network(MIN_PARAMETERS), "cuda").reason
        assert "trainer.precision=16-mixed is faster" in reason

    def test_of_other_weights_than_float32_and_bfloat16(self) -> None:
        assert (
            choose(network(MIN_PARAMETERS, torch.bfloat16), "cuda", is_fast=True).name
            == "bf16-mixed"
        )
        for dtype in (torch.float64, torch.float16):
            assert choose(network(MIN_PARAMETERS, dtype), "cuda", is_fast=True).name == "32-true"

    def test_of_a_processor_that_pytorch_does_not_describe(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
        assert not has_fast_bfloat16("cpu")[0]

    @pytest.mark.parametrize("name", ["tiny", "random"])
    def test_small_models_are_float32_on_every_machine(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine(monkeypatch, amx=True)
        made = composed("policy.pretrained=false" if name == "random" else "policy=tiny")
        assert build.load(made).config.trainer.precision == "32-true"


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with matrix units, for which every model is large enough."""
    machine(monkeypatch, amx=True)
    monkeypatch.setattr(trainer, "MIN_PARAMETERS", 1)
    monkeypatch.setenv(RUN_DIR_VARIABLE, "")


def started(folder: Path, *typed: str) -> SimpleNamespace:
    """Precision of a run up to its Trainer, and the table that it prints."""
    made: RunSpec = composed(*TINY, *typed, f"run_dir={folder}")
    run = build.load(made)
    run_dir = RunDir.open(run.config, run.precision is not None)
    console = Console(file=io.StringIO(), width=300)
    show_run(run, run_dir, console=console)
    table = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    return SimpleNamespace(
        precision=build.trainer(run.config).precision,
        table=table,
        num_ranks=build.num_ranks(made, run.config),
    )


def saved(folder: Path) -> Any:
    return OmegaConf.load(folder / "config.yaml").trainer.precision


@pytest.mark.usefixtures("amx")
class TestRun:
    def test_writes_the_choice_and_shows_its_reason(self, tmp_path: Path) -> None:
        run = started(tmp_path)
        assert (run.precision, saved(tmp_path), run.num_ranks) == ("bf16-mixed", "bf16-mixed", 1)
        assert (
            "precision bf16-mixed (auto: this processor has matrix units for bfloat16 (AMX))"
            in run.table
        )

    def test_what_is_typed_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = started(tmp_path, "trainer.precision=32-true")
        assert (run.precision, saved(tmp_path)) == ("32-true", "32-true")
        assert "precision 32-true" in run.table
        assert "auto" not in run.table
        machine(monkeypatch)
        assert started(tmp_path / "other", "trainer.precision=bf16-mixed").precision == "bf16-mixed"

    @pytest.mark.slow
    def test_resumed_on_another_processor_keeps_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started(tmp_path / "fast")
        machine(monkeypatch, avx512=True)
        run = started(tmp_path / "fast", "resume=auto")
        assert run.precision == "bf16-mixed"
        assert "precision bf16-mixed (auto: as in the run that is resumed)" in run.table
        started(tmp_path / "slow")
        machine(monkeypatch, amx=True)
        assert started(tmp_path / "slow", "resume=auto").precision == "32-true"
        with pytest.raises(
            UserError, match=r"was started with trainer.precision=32-true \(now bf16-mixed\)"
        ):
            started(tmp_path / "slow", "resume=auto", "trainer.precision=bf16-mixed")

    @pytest.mark.slow
    def test_started_from_the_checkpoint_of_another_keeps_that_of_the_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started(tmp_path / "a")
        (tmp_path / "a/checkpoints").mkdir()
        checkpoint = tmp_path / "a/checkpoints/iteration_000001.ckpt"
        torch.save({"iteration": 1, "loops": {}}, checkpoint)
        machine(monkeypatch)
        assert started(tmp_path / "b", f"resume={checkpoint}").precision == "bf16-mixed"
        assert saved(tmp_path / "b") == "bf16-mixed"

    def test_the_first_rank_decides(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        started(tmp_path)
        machine(monkeypatch)  # of the second rank
        monkeypatch.setenv("LOCAL_RANK", "1")
        made = composed(*TINY, f"run_dir={tmp_path}")
        config = build.load(made).config
        assert config.trainer.precision == "32-true"
        RunDir.open(config, automatic_precision=True)
        assert config.trainer.precision == "bf16-mixed"


@pytest.mark.parametrize(
    ("variables", "devices", "selected"),
    [
        ({}, 1, [0]),
        ({}, [2, 3], [2]),
        ({"LOCAL_RANK": "3"}, "auto", [3]),
        ({"LOCAL_RANK": "1"}, [2, 3], [3]),
        ({"SLURM_LOCALID": "2"}, 4, [2]),
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 4, [1]),
        ({"LOCAL_RANK": "9"}, "auto", []),
    ],
)
def test_the_gpu_of_a_rank_is_selected_before_loading(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], devices: Any, selected: list[int]
) -> None:
    made: list[int] = []
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("SLURM_LOCALID", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    config = OmegaConf.create({"devices": devices})
    select_device("auto", config.devices)
    select_device("cpu", config.devices)
    assert made == selected


def test_the_gpu_is_selected_before_the_policy_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = build.instantiate

    def instantiate(*args: Any, **kwargs: Any) -> Any:
        order.append(args[1])
        return real(*args, **kwargs)

    monkeypatch.setattr(build, "select_device", lambda *args: order.append("device"))
    monkeypatch.setattr(build, "instantiate", instantiate)
    build.load(composed(*TINY))
    assert order[:2] == ["device", "policy"]
