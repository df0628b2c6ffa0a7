"""A checkpoint does not ask how many ranks wrote it, nor an export."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from transformers import AutoModelForCausalLM

from rlmods.distributed.strategy import FSDP2, check_resume
from rlmods.errors import UserError
from rlmods.policy.tiny import FOLDER
from tests.support import ranks
from tests.support.other_ranks import RESUMED, STAGES, trained

pytestmark = pytest.mark.slow
MODULE = "tests.support.other_ranks"
PRETRAINING = "pretraining one"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Every stage's folders, and the weights of one process by its folder and iterations."""
    where = tmp_path_factory.mktemp("ranks")
    straight = {(one, 2): trained(where / one, 2) for one in ("one", PRETRAINING)}
    ranks.run(MODULE, [str(where), "save"])
    ranks.run(MODULE, [str(where), "go on"])
    ranks.run(MODULE, [str(where), "alone"], num_ranks=1)
    ranks.run(MODULE, [str(where), "four"], num_ranks=4, timeout_s=600)
    ranks.run(MODULE, [str(where), "four go on"])
    for one in ("one", PRETRAINING):
        content = torch.load(where / one / RESUMED, weights_only=True)
        straight[one, 1] = content["state_dict"]
    return where, straight


def same(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            weights[name], tensor, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(
    ("name", "iterations"), [(name, n) for stage in STAGES.values() for name, _, n, _ in stage]
)
def test_every_way_leads_to_the_same_weights(name: str, iterations: int, runs: Any) -> None:
    where, straight = runs
    one = PRETRAINING if name.startswith("pretraining") else "one"
    same(torch.load(where / f"{name}.pt", weights_only=True), straight[one, iterations])


@pytest.mark.parametrize("name", ["fsdp", "ddp"])
def test_two_ranks_then_one(name: str, runs: Any, tmp_path: Path) -> None:
    where, straight = runs
    same(trained(tmp_path / "run", 2, resume=where / name / RESUMED), straight["one", 2])


def test_a_file_is_the_same_from_shards(runs: Any) -> None:
    """Its names, shapes and kinds: what one process writes."""
    where, _ = runs
    one, sharded = (
        torch.load(where / name / RESUMED, weights_only=True) for name in ("one", "fsdp")
    )
    assert one.keys() == sharded.keys()
    for part in ("state_dict", "optimizer_states", "lr_schedulers"):
        assert shapes(one[part]) == shapes(sharded[part])
    [before], [after] = one["optimizer_states"], sharded["optimizer_states"]
    for place, state in before["state"].items():
        torch.testing.assert_close(
            after["state"][place]["momentum_buffer"], state["momentum_buffer"], rtol=0, atol=1e-6
        )
    assert (
        one["rlmods"]["frozen"]["reference"]["weights"].keys()
        == sharded["rlmods"]["frozen"]["reference"]["weights"].keys()
    )


def shapes(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return type(x), x.dtype, tuple(x.shape)
    if isinstance(x, dict):
        return {key: shapes(value) for key, value in x.items()}
    return [shapes(value) for value in x] if isinstance(x, list | tuple) else x


class TestExport:
    @pytest.mark.parametrize("name", ["one_to_fsdp", "ddp_to_fsdp", "one_to_ddp", "folder_to_one"])
    def test_is_plain_transformers(self, name: str, runs: Any) -> None:
        where, _ = runs
        one, other = (
            AutoModelForCausalLM.from_pretrained(where / folder / "export")
            for folder in ("one", name)
        )
        ids = torch.arange(20)[None] % 90
        torch.testing.assert_close(other(ids).logits, one(ids).logits, rtol=0, atol=1e-4)
        kept = {"generation_config.json", "config.json", "tokenizer.json", "tokenizer_config.json"}
        for file in sorted(kept):
            assert (where / name / "export" / file).read_text() == (
                where / "one" / "export" / file
            ).read_text(), file
        said = [
            model.generate(ids, max_new_tokens=8, do_sample=False).tolist()
            for model in (one, other)
        ]
        assert said[0] == said[1]

    def test_stops_where_the_model_it_began_from_stops(self, runs: Any) -> None:
        where, _ = runs
        first, last = (
            AutoModelForCausalLM.from_pretrained(folder).generation_config
            for folder in (FOLDER / "tiny", where / "fsdp" / "export")
        )
        assert (last.eos_token_id, last.pad_token_id, last.bos_token_id) == (
            first.eos_token_id,
            first.pad_token_id,
            first.bos_token_id,
        )


def test_shards_are_refused_by_other_strategies(runs: Any) -> None:
    where, _ = runs
    with pytest.raises(UserError, match="type trainer=fsdp"):
        check_resume(SingleDeviceStrategy(), where / "folder" / RESUMED)
    check_resume(FSDP2(), where / "folder" / RESUMED)
    check_resume(SingleDeviceStrategy(), where / "fsdp" / RESUMED)
