"""Settings passed to bitsandbytes (which is not run here), rejected options, and the exported
model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rlmods.errors import UserError
from rlmods.policy import HuggingFace, Tiny, quantization
from rlmods.policy.quantization import (
    dequantized_state,
    quantization_config,
    without_quantization_config,
)


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
    state = dequantized_state(model, model.state_dict())
    assert state.keys() == {"0.weight", "1.weight", "1.bias"}
    assert torch.equal(state["0.weight"], torch.full((2, 2), 7.0))
    assert torch.equal(state["1.weight"], model[1].weight)


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
