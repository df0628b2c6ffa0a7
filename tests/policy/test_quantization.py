"""Settings passed to bitsandbytes (which is not run here), rejected options, and the exported
model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rlmods.errors import UserError
from rlmods.policy import HuggingFace, Tiny, quantization
from rlmods.policy.quantization import (
    DequantizedState,
    quantization_config,
    without_quantization_config,
)
from tests.adapter.policies import lora


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "find_spec", lambda name: name)


@pytest.mark.usefixtures("installed")
class TestConfig:
    def test_nf4(self) -> None:
        config = quantization_config("nf4", torch.bfloat16)
        assert (
            config.load_in_4bit,
            config.bnb_4bit_quant_type,
            config.bnb_4bit_use_double_quant,
        ) == (True, "nf4", True)
        assert config.bnb_4bit_compute_dtype == torch.bfloat16

    def test_is_passed_to_transformers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(tmp_path)
        passed: dict[str, Any] = {}
        real = AutoModelForCausalLM.from_pretrained

        def from_pretrained(name: Any, *, quantization_config: Any, **settings: Any) -> Any:
            passed["config"] = quantization_config
            return real(name, **settings)

        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
        HuggingFace(name=str(tmp_path), quantization="nf4", dtype="bfloat16")()
        assert isinstance(passed["config"], BitsAndBytesConfig)
        assert passed["config"].bnb_4bit_compute_dtype == torch.bfloat16


def test_without_bitsandbytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(tmp_path)
    with pytest.raises(
        UserError, match=r"pip install 'rlmods\[qlora\]', or type policy.quantization=null"
    ) as error:
        HuggingFace(name=str(tmp_path), quantization="nf4")()
    assert "\n" not in str(error.value)


class Params4bit(nn.Parameter):
    """Has the class name of bitsandbytes' parameter."""


def test_quantized_weights_are_dequantized_in_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model[0].weight = Params4bit(torch.zeros(2, 1), requires_grad=False)
    model[0].register_buffer("weight.absmax".replace(".", "_"), torch.ones(1))
    monkeypatch.setattr(
        "peft.utils.integrations.dequantize_bnb_weight",
        lambda weight, state: torch.full((2, 2), 7.0),
    )
    state = DequantizedState(model, model.state_dict())
    assert state.keys() == {"0.weight", "1.weight", "1.bias"}
    assert len(state) == 3
    assert torch.equal(state["0.weight"], torch.full((2, 2), 7.0))
    assert torch.equal(state["1.weight"], model[1].weight)


def test_weights_under_an_adapter_are_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter shows the weight of its base, and an engine that got both would stop reading a
    joined layer before all its parts are there."""
    policy = lora()
    names = [name for name, _ in policy.weights()]
    layer = policy.model.model.layers[0].self_attn.q_proj.base_layer
    plain = layer.weight.detach().clone()
    layer.weight = Params4bit(torch.zeros(2, 1), requires_grad=False)
    read: list[Any] = []

    def dequantize(weight: Any, state: Any) -> Tensor:
        read.append(weight)
        return plain

    monkeypatch.setattr("peft.utils.integrations.dequantize_bnb_weight", dequantize)
    next(policy.weights())
    assert not read  # before its turn
    again = [name for name, _ in policy.weights()]
    assert sorted(again) == sorted(names)
    assert len(set(again)) == len(again)


class Counting(dict[str, Tensor]):
    """A state that counts the entries that are read, as sharded ones are gathered then."""

    num_read = 0

    def __getitem__(self, name: str) -> Tensor:
        self.num_read += 1
        return super().__getitem__(name)


def test_entries_are_read_one_at_a_time() -> None:
    """Of a sharded network one full tensor is in memory, and tensors of the adapter."""
    policy = lora()
    state = Counting(policy.model.state_dict())
    weights = policy.weights(state)
    for _ in range(3):
        before = state.num_read
        next(weights)
        assert state.num_read - before <= 5


def test_saved_configuration_has_no_quantization(tmp_path: Path) -> None:
    lm = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
    lm.model.config.quantization_config, lm.model.hf_quantizer = (
        BitsAndBytesConfig(load_in_8bit=True),
        object(),
    )
    with without_quantization_config(lm.model):
        lm.export(tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    assert lm.model.config.quantization_config.load_in_8bit
    assert lm.model.hf_quantizer is not None
