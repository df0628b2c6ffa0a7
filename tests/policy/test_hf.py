"""Loading by name or directory, and the error messages when it fails."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config, Gemma2ForCausalLM

from rlmods.errors import UserError
from rlmods.policy import HuggingFace, ScalarModel, Tiny
from rlmods.policy.chat_template import render
from rlmods.policy.hf import load
from rlmods.policy.packing import IMPLEMENTATION
from rlmods.policy.tiny import character_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(tmp_path / "model")
    return tmp_path / "model"


def error_message(part: HuggingFace) -> str:
    with pytest.raises(UserError) as error:
        part()
    message = str(error.value)
    assert "\n" not in message
    assert "policy.name=" in message
    return message


class TestHuggingFace:
    def test_loads_a_directory(self, folder: Path) -> None:
        lm = HuggingFace(
            name=str(folder), dtype="bfloat16", attention="eager", gradient_checkpointing=True
        )()
        assert {p.dtype for p in lm.parameters()} == {torch.bfloat16}
        assert lm.model.config._attn_implementation == "eager"
        assert lm.gradient_checkpointing

    def test_float32_by_default_for_any_saved_dtype(self, folder: Path, tmp_path: Path) -> None:
        HuggingFace(name=str(folder), dtype="bfloat16")().export(tmp_path / "half")
        assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
        assert {p.dtype for p in HuggingFace(name=str(tmp_path / "half"))().parameters()} == {
            torch.float32
        }

    def test_a_run_loads_its_export(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("seed: 1")
        with pytest.raises(UserError, match="has no export/ yet"):
            HuggingFace(name=str(tmp_path))()
        HuggingFace(name=str(folder))().export(tmp_path / "export")
        assert HuggingFace(name=str(tmp_path))().tokenizer("1+1=")["input_ids"]
        (tmp_path / "export" / "config.yaml").write_text("of: something else")
        assert HuggingFace(name=str(tmp_path / "export"))().tokenizer("1+1=")["input_ids"]

    def test_attention_is_what_the_model_supports(self, folder: Path, tmp_path: Path) -> None:
        assert HuggingFace(name=str(folder))().model.config._attn_implementation == IMPLEMENTATION
        config = Gemma2Config(
            vocab_size=102,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
        )
        Gemma2ForCausalLM(config).save_pretrained(tmp_path / "gemma2")
        character_tokenizer().save_pretrained(tmp_path / "gemma2")
        gemma2 = str(tmp_path / "gemma2")
        assert HuggingFace(name=gemma2)().model.config._attn_implementation == "eager"
        assert error_message(HuggingFace(name=gemma2, attention="sdpa")).endswith(
            ": type policy.attention=eager"
        )
        assert "policy.attention=nope" in error_message(HuggingFace(name=gemma2, attention="nope"))

    def test_no_name(self) -> None:
        assert "policy=hf needs a model" in error_message(HuggingFace())

    def test_a_hub_that_cannot_be_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unreachable(*_: Any, **__: Any) -> None:
            raise OSError(
                "We couldn't connect to 'https://huggingface.co' to load the files, and "
                "couldn't find them in the cached files."
            )

        monkeypatch.setattr("rlmods.policy.hf.check_hub", lambda name: None)
        monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", unreachable)
        with pytest.raises(
            UserError,
            match=r"the Hugging Face Hub cannot be reached, .*; connect, or type a directory or a "
            r"run$",
        ):
            load("nobody/model")

    @pytest.mark.parametrize("name", ["nobody/no-such-model", "/no/such/directory"])
    def test_no_such_model(self, name: str) -> None:
        assert repr(name) in error_message(HuggingFace(name=name))

    def test_an_empty_directory(self, tmp_path: Path) -> None:
        assert str(tmp_path) in error_message(HuggingFace(name=str(tmp_path)))

    def test_a_directory_without_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        assert "safetensors" in error_message(HuggingFace(name=str(folder)))
        (folder / "model.safetensors").write_bytes(b"\xff" * 64)
        assert "cannot be loaded" in error_message(HuggingFace(name=str(folder)))

    def test_a_reward_model(self, folder: Path, tmp_path: Path) -> None:
        """With a tied output layer, transformers would load it without an error and generate
        nonsense."""
        ScalarModel.from_policy(HuggingFace(name=str(folder))()).export(tmp_path / "rm")
        assert "is a reward model, which cannot generate text" in error_message(
            HuggingFace(name=str(tmp_path / "rm"))
        )

    def test_missing_weights(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        save_file(
            {k: v for k, v in weights.items() if "layers.0.mlp" not in k},
            folder / "model.safetensors",
            {"format": "pt"},
        )
        assert "lacks weights (model.layers.0.mlp" in error_message(HuggingFace(name=str(folder)))

    def test_an_unknown_model_type(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | {"model_type": "abacus"}
        (folder / "config.json").write_text(json.dumps(config))
        assert "abacus" in error_message(HuggingFace(name=str(folder)))

    def test_code_in_a_folder_is_not_executed(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
        (folder / "evil.py").write_text(
            f"open({str(tmp_path / 'executed')!r}, 'w')\nclass C: pass\n"
        )
        names = {
            "AutoConfig": "evil.C",
            "AutoModelForCausalLM": "evil.C",
            "AutoModelForSequenceClassification": "evil.C",
        }
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps(config | {"model_type": "evil", "auto_map": names})
        )
        assert "it needs code of its own, which is never executed" in error_message(
            HuggingFace(name=str(folder))
        )
        (folder / "config.json").write_text(
            json.dumps(
                config
                | {
                    "architectures": ["XForSequenceClassification"],
                    "model_type": "evil",
                    "auto_map": names,
                }
            )
        )
        with pytest.raises(UserError, match="cannot load a reward model"):
            ScalarModel.load(folder)
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(
            json.dumps(
                tokenizer
                | {"auto_map": {"AutoTokenizer": ["evil.C", "evil.C"]}, "tokenizer_class": "C"}
            )
        )
        error_message(HuggingFace(name=str(folder)))
        assert not (tmp_path / "executed").exists()

    def test_pickled_weights_are_loaded_if_asked_for(self, folder: Path) -> None:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        assert "type policy.allow_pickle=true" in error_message(HuggingFace(name=str(folder)))
        assert HuggingFace(name=str(folder), allow_pickle=True)().tokenizer("1+1=")["input_ids"]

    @pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, "\x00"])
    def test_a_broken_configuration(self, content: str, folder: Path) -> None:
        (folder / "config.json").write_text(content)
        error_message(HuggingFace(name=str(folder)))
        with pytest.raises(
            UserError, match=r"config\.json: (cannot be read as JSON|must hold a JSON object)"
        ) as error:
            ScalarModel.load(folder)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("file", "content"),
        [
            ("model.safetensors", b"\xff" * 64),
            ("model.safetensors", (2**40).to_bytes(8, "little") + b"{}"),
            ("tokenizer.json", b'{"a": 1}'),
            ("config.json", {"hidden_size": 33}),
            ("config.json", {"hidden_size": "a"}),
            ("config.json", {"num_hidden_layers": None}),
            ("config.json", {"vocab_size": 7}),
            ("config.json", {"vocab_size": -7}),
        ],
    )
    def test_files_that_do_not_fit(
        self, file: str, content: bytes | dict[str, Any], folder: Path
    ) -> None:
        path = folder / file
        if isinstance(content, dict):
            content = json.dumps(json.loads(path.read_text()) | content).encode()
        path.write_bytes(content)
        assert "\n" not in error_message(HuggingFace(name=str(folder)))
        with pytest.raises(UserError) as error:
            ScalarModel.load(folder)
        assert "\n" not in str(error.value)


def test_a_template_that_reaches_for_python_is_named() -> None:
    tokenizer = Tiny(pretrained=False, hidden_size=32, num_layers=1)().tokenizer
    tokenizer.chat_template = "{{ messages.__class__.__mro__ }}"
    with pytest.raises(
        UserError,
        match=r"SecurityError.*: it reaches for what templates may not use.*: choose another model",
    ):
        render(tokenizer, [{"role": "system", "content": "a"}], "prompt 1")
