"""Exported models are loaded and run by transformers alone, and have a card."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlmods.callbacks import IterationCheckpoint, Summary
from rlmods.errors import UserError
from rlmods.policy import files
from rlmods.policy.files import check_export, export_problem
from rlmods.policy.scalar import ScalarModel
from rlmods.run.directory import RunDir
from tests.support.tiny_setup import fit, learner, policy

pytestmark = pytest.mark.loads_exports


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    policy().export(tmp_path / "export")
    return tmp_path / "export"


def change(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class TestCheck:
    def test_models_that_were_exported(self, folder: Path) -> None:
        check_export(folder)
        ScalarModel.from_policy(policy()).export(folder / "reward_model")
        check_export(folder)
        check_export(folder / "reward_model")

    def test_random_numbers_stay_the_same(self, folder: Path) -> None:
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        check_export(folder)
        assert torch.equal(torch.rand(2), expected)

    def test_missing_weights(self, folder: Path) -> None:
        change(folder, lambda weights: weights.pop("model.norm.weight"))
        with pytest.raises(UserError, match=r"lacks weights \(model\.norm\.weight\)"):
            check_export(folder)

    def test_weights_of_another_shape(self, folder: Path) -> None:
        change(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(3)}))
        with pytest.raises(UserError, match=r"lacks weights \(model\.norm\.weight\)"):
            check_export(folder)

    def test_weights_that_are_not_finite(self, folder: Path) -> None:
        change(folder, lambda weights: weights["model.norm.weight"].fill_(torch.nan))
        with pytest.raises(UserError, match="the logits of this model are not finite"):
            check_export(folder)

    def test_reward_models_beside_a_policy(self, folder: Path) -> None:
        ScalarModel.from_policy(policy()).export(folder / "reward_model_1")
        change(folder / "reward_model_1", lambda weights: weights["score.weight"].fill_(torch.nan))
        with pytest.raises(
            UserError, match="reward_model_1: the scores of this model are not finite"
        ):
            check_export(folder)

    @pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
    def test_files_that_are_cut(self, folder: Path, file: str) -> None:
        (folder / file).write_bytes((folder / file).read_bytes()[:100])
        with pytest.raises(UserError):
            check_export(folder)

    def test_large_models_are_left_to_the_command(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change(folder, lambda weights: weights.pop("model.norm.weight"))
        assert "lacks weights" in (export_problem(folder) or "")
        monkeypatch.setattr(files, "MAX_BYTES", 10)
        assert export_problem(folder) is None


class TestRun:
    def test_a_model_that_cannot_be_used_is_a_warning_of_the_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def export(folder: Path) -> None:
            policy().export(folder)
            change(folder, lambda weights: weights.pop("model.norm.weight"))

        summary = Summary(RunDir(tmp_path), "dapo", {})
        counts = {"iteration": 2, "max_iterations": 2, "optimizer_steps": 2, "response_tokens": 7}
        stub: Any = SimpleNamespace(
            name="dapo", **counts, export=export, device=torch.device("cpu"), stopped_by=None
        )
        trainer: Any = SimpleNamespace(is_global_zero=True, callbacks=[summary])
        summary.on_train_end(trainer, stub)
        [warning] = json.loads((tmp_path / "summary.json").read_text())["warnings"]
        assert "lacks weights" in warning
        assert warning in capsys.readouterr().err

    def test_exports_of_checkpoints_have_a_card_of_their_iteration(self, tmp_path: Path) -> None:
        checkpoint = IterationCheckpoint(tmp_path / "checkpoints", every=1, keep=0, export="all")
        fit(learner(), 2, callbacks=(checkpoint,))
        for iteration in (1, 2):
            folder = tmp_path / "checkpoints" / f"iteration_{iteration:06d}_export"
            check_export(folder)
            assert f"for {iteration} iterations" in (folder / "README.md").read_text()

    def test_an_export_that_cannot_be_used_replaces_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "rlmods.callbacks.checkpoint.export_problem", lambda folder: "lacks weights"
        )
        checkpoint = IterationCheckpoint(tmp_path / "checkpoints", every=1, export="all")
        with pytest.warns(
            UserWarning, match=r"_export was not written \(lacks weights\): training continues"
        ):
            fit(learner(), 1, callbacks=(checkpoint,))
        assert not list((tmp_path / "checkpoints").glob("*_export*"))
        assert checkpoint.failures == 1
