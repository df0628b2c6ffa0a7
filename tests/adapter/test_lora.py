"""What is trained, what stands still, what the reference says, and what comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlmods.adapter import LoRA, NoAdapter
from rlmods.policy import HuggingFace, Tiny, injection
from rlmods.policy.adapted import AdaptedPolicy
from rlmods.policy.hf import load
from rlmods.types import UserError
from tests.policy.mixtures import mixture
from tests.policy.test_base import llama, policy, rows

from .policies import base, frozen, lora, moved

KINDS = ["llama", "gpt2"]
WHOLE = {"modules_to_save": ["lm_head", "norm"]}


def logprobs(policy: Any) -> torch.Tensor:
    with torch.no_grad():
        return policy(*rows()).logprobs


class TestStart:
    @pytest.mark.parametrize("init", ["default", "gaussian"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_the_base(self, kind: str, init: str) -> None:
        made = lora(kind, init=init)
        assert torch.equal(logprobs(made), logprobs(base(kind)))
        assert type(made.model) is type(base(kind).model)
        assert (made.eos_ids, made.context_length) == (base(kind).eos_ids, 64)

    @pytest.mark.parametrize("kind", KINDS)
    def test_only_the_adapter_is_trained(self, kind: str) -> None:
        made, layers = lora(kind), {"llama": 7, "gpt2": 4}[kind]
        assert {name for name, x in made.named_parameters() if x.requires_grad} == {
            name for name, _ in made.named_parameters() if ".lora_A.default." in name or ".lora_B.default." in name
        }
        assert len(made.trainable_tensors()) == 2 * 2 * layers
        assert not any("lm_head" in name for name in made.trainable_tensors())

    def test_targets(self) -> None:
        assert {name.split(".")[-3] for name in lora(targets=["q_proj", "v_proj"]).trainable_tensors()} == {"q_proj", "v_proj"}

    @pytest.mark.parametrize(("rslora", "scale"), [(False, 2.0), (True, 4.0)])
    def test_scale(self, rslora: bool, scale: float) -> None:
        made = lora(alpha=8, rslora=rslora)
        own = moved(made).trainable_tensors()
        name = "model.layers.0.mlp.up_proj"
        want = base().model.model.layers[0].mlp.up_proj.weight + scale * own[f"{name}.lora_B.weight"] @ own[f"{name}.lora_A.weight"]
        torch.testing.assert_close(dict(made.weights())[f"{name}.weight"], want)

    def test_is_float32_whatever_lies_under_it(self) -> None:
        under = base()
        made = lora(on=type(under)(under.model.to(torch.bfloat16), under.tokenizer))
        assert {x.dtype for x in made.trainable_tensors().values()} == {torch.float32}
        assert made.model.lm_head.weight.dtype == torch.bfloat16
        assert {x.dtype for _, x in made.weights()} == {torch.bfloat16}
        assert {x.dtype for x in made.frozen_copy().trainable_tensors().values()} == {torch.float32}

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"rank": 0}, "adapter.rank=0: must be a whole number"),
            ({"alpha": 0}, "adapter.alpha=0: must be above 0"),
            ({"targets": "q_proj"}, "a list of names: 'adapter.targets=[q_proj,v_proj]'"),
            ({"targets": []}, "all-linear or a list"),
            ({"init": "pissa"}, "one of default, gaussian"),
        ],
    )
    def test_settings_that_are_refused(self, settings: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match="adapter") as error:
            LoRA(**settings)
        assert says in str(error.value)

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"targets": ["q_proj", "w_proj"]}, "has no w_proj; its linear layers are down_proj, gate_proj, k_proj, o_proj"),
            ({"modules_to_save": ["head"]}, "adapter.modules_to_save: the model has no head"),
            ({"targets": ["lm_head"]}, "embed_tokens and lm_head share one weight, which no adapter can: drop lm_head"),
            ({"modules_to_save": ["embed_tokens"]}, "share one weight"),
            ({"targets": ["norm"]}, "adapter"),
        ],
    )
    def test_names_that_are_refused(self, settings: dict[str, Any], says: str) -> None:
        with pytest.raises(UserError) as error:
            LoRA(**settings)(Tiny(pretrained=False, hidden_size=32, num_layers=1)())
        assert says in str(error.value)
        assert "\n" not in str(error.value)

    def test_an_embedding_is_no_linear_layer(self) -> None:
        with pytest.raises(UserError, match=r"model\.embed_tokens is no linear layer"):
            lora(targets=["embed_tokens"])

    def test_experts_in_one_tensor_are_no_linear_layer(self) -> None:
        from peft import LoraConfig

        config = LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"])
        with pytest.raises(UserError, match=r"experts is no linear layer"):
            AdaptedPolicy(mixture("qwen3"), config)

    def test_modules_in_full_want_a_base_in_float32(self) -> None:
        with pytest.raises(UserError, match=r"type policy\.dtype=float32"):
            lora(on=policy(llama().to(torch.bfloat16)), modules_to_save=["mlp"])

    def test_without_peft(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(injection, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"pip install 'rlmods\[lora\]'"):
            LoRA()


class TestReference:
    @pytest.mark.parametrize("settings", [{}, WHOLE], ids=["lora", "modules_to_save"])
    @pytest.mark.parametrize("trained_before", [False, True])
    def test_stands_where_it_was_taken(self, trained_before: bool, settings: dict[str, Any]) -> None:
        made = lora(**settings)
        if trained_before:
            moved(made)
        start, reference = logprobs(made), made.frozen_copy()
        assert torch.equal(start, logprobs(base())) != trained_before
        assert torch.equal(logprobs(reference), start)
        moved(made, seed=1)
        assert torch.equal(logprobs(reference), start)
        assert not torch.allclose(logprobs(made), start)

    def test_has_no_dropout_either(self) -> None:
        """Of an adapter that was trained with it elsewhere."""
        made = lora()
        made.config.lora_dropout = 0.5
        reference = made.frozen_copy()
        assert torch.equal(logprobs(reference), logprobs(made))
        assert not any(module.training for module in made.modules())

    def test_is_never_trained_and_trains_nothing(self) -> None:
        made = lora()
        reference, trained = made.frozen_copy(), {name for name, x in made.named_parameters() if x.requires_grad}
        assert not any(x.requires_grad for x in reference.trainable_tensors().values())
        assert len(trained) == len(made.trainable_tensors())
        assert not reference(*rows()).logprobs.requires_grad
        assert {name for name, x in made.named_parameters() if x.requires_grad} == trained
        made(*rows()).logprobs.sum().backward()
        assert all(x.grad is None for x in reference.trainable_tensors().values())

    def test_speaks_only_while_it_is_asked(self) -> None:
        """Sampling goes through `model`, which is the policy's again, also after a forward that failed."""
        made = lora()
        reference, tokens = moved(made).frozen_copy(), rows()[0]
        moved(made, seed=1)
        with torch.no_grad():
            want = made.model(input_ids=tokens).logits
            reference(*rows())
            assert torch.equal(made.model(input_ids=tokens).logits, want)
            with pytest.raises(IndexError):
                reference(tokens, torch.ones(1, 99, dtype=torch.bool))
            assert torch.equal(made.model(input_ids=tokens).logits, want)

    def test_costs_an_adapter(self) -> None:
        made = lora()
        before = sum(x.numel() for x in made.parameters())
        reference = made.frozen_copy()
        assert reference.model is made.model
        assert sum(x.numel() for x in made.parameters()) - before == sum(x.numel() for x in made.trainable_tensors().values())

    @pytest.mark.parametrize("settings", [{}, WHOLE], ids=["lora", "modules_to_save"])
    def test_takes_over_what_it_is_given(self, settings: dict[str, Any]) -> None:
        made = lora(**settings)
        reference = made.frozen_copy()
        reference.load_tensors(moved(made).trainable_tensors())
        assert torch.equal(logprobs(reference), logprobs(made))
        assert not torch.allclose(logprobs(made), logprobs(base()))
        with pytest.raises(ValueError, match="on one side only"):
            reference.load_tensors({})


class TestGradient:
    def gradients(self, checkpointing: bool) -> dict[str, torch.Tensor]:
        made = moved(lora(on=base(gradient_checkpointing=checkpointing)))
        made.train(checkpointing)
        calls = list[str]()
        made.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append("mlp"))
        made(*rows()).logprobs.sum().backward()
        assert len(calls) == 1 + checkpointing
        assert all((x.grad is not None) == x.requires_grad for x in made.parameters())
        return {name: x.grad for name, x in made.trainable_tensors().items() if x.grad is not None}

    def test_reaches_every_layer_and_checkpointing_changes_nothing(self) -> None:
        plain = self.gradients(False)
        assert len(plain) == 28
        assert min(float(x.norm()) for x in plain.values()) > 1e-4
        for name, x in self.gradients(True).items():
            torch.testing.assert_close(x, plain[name], rtol=1e-4, atol=1e-5)

    def test_is_that_of_the_product(self) -> None:
        """dL/dB = scale dL/dW A^T, and dL/dA = scale B^T dL/dW, where W is the merged weight."""
        made, name = moved(lora()), "model.layers.1.self_attn.q_proj"
        made(*rows()).logprobs.sum().backward()
        whole = base()
        whole.model.load_state_dict(dict(made.weights()))
        whole(*rows()).logprobs.sum().backward()
        gradient = whole.model.get_submodule(name).weight.grad
        a, b = made.trainable_tensors()[f"{name}.lora_A.weight"], made.trainable_tensors()[f"{name}.lora_B.weight"]
        torch.testing.assert_close(b.grad, 8.0 * gradient @ a.detach().T, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(a.grad, 8.0 * b.detach().T @ gradient, rtol=1e-3, atol=1e-4)


class TestExport:
    @pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own wrapper asks
    @pytest.mark.parametrize(
        "settings", [{}, {"rslora": True, "targets": ["q_proj", "down_proj"]}, WHOLE], ids=["plain", "rslora", "whole"]
    )
    def test_merged_equals_adapter_on_base(self, settings: dict[str, Any], tmp_path: Path) -> None:
        from peft import PeftModel

        made = lora(**settings)
        made.frozen_copy()
        moved(made, by=0.05).export(tmp_path)
        tokens, _ = rows()
        merged = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
        with torch.no_grad():
            want = made.model(input_ids=tokens).logits
            assert not torch.allclose(want, base().model(input_ids=tokens).logits, atol=1e-2)
            torch.testing.assert_close(merged(input_ids=tokens).logits, want, rtol=0, atol=1e-5)
            adapted = PeftModel.from_pretrained(base().model, tmp_path / "adapter").eval()
            torch.testing.assert_close(adapted(input_ids=tokens).logits, want, rtol=0, atol=1e-6)
        greedy = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        said = [model.generate(tokens[:, :4], attention_mask=torch.ones(4, 4).long(), **greedy) for model in (made.model, merged, adapted)]
        assert torch.equal(said[0], said[1])
        assert torch.equal(said[0], said[2])

    @pytest.mark.parametrize("kind", ["qwen3", "mixtral", "olmoe"])
    def test_of_a_mixture_the_experts_stay(self, kind: str, tmp_path: Path) -> None:
        made = moved(LoRA(rank=2)(mixture(kind)))
        assert not any("expert" in name for name in made.trainable_tensors())
        made.export(tmp_path)
        torch.testing.assert_close(logprobs(load(tmp_path)), logprobs(made), rtol=0, atol=1e-5)

    def test_conv1d(self, tmp_path: Path) -> None:
        made = moved(lora("gpt2"))
        made.export(tmp_path)
        torch.testing.assert_close(logprobs(load(tmp_path)), logprobs(made), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("settings", [{}, WHOLE], ids=["lora", "modules_to_save"])
    def test_leaves_the_network_as_it_is(self, settings: dict[str, Any], tmp_path: Path) -> None:
        made = moved(lora(**settings))
        before, said = {name: x.clone() for name, x in made.state_dict().items()}, logprobs(made)
        made.export(tmp_path)
        assert before.keys() == made.state_dict().keys()
        assert all(torch.equal(x, before[name]) for name, x in made.state_dict().items())
        assert torch.equal(logprobs(made), said)
        assert sum(x.requires_grad for x in made.parameters()) == len(made.trainable_tensors())

    def test_keeps_what_belongs_to_a_model(self, tmp_path: Path) -> None:
        under = base()
        under.tokenizer.chat_template = "{{ messages }}"
        under.model.generation_config.update(do_sample=True, top_k=7)
        lora(on=under).export(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["attention_dropout"] == 0.5
        assert config["architectures"] == ["LlamaForCausalLM"]
        assert json.loads((tmp_path / "generation_config.json").read_text())["top_k"] == 7
        assert load(tmp_path).tokenizer.chat_template == "{{ messages }}"

    @pytest.mark.parametrize("kind", KINDS)
    def test_weights_have_the_names_of_the_base(self, kind: str) -> None:
        made = lora(kind)
        made.frozen_copy()
        moved(made)
        weights, want = dict(made.weights()), base(kind).model.state_dict()
        assert list(weights) == list(want)
        changed = {name for name, x in weights.items() if not torch.equal(x, want[name])}
        assert len(changed) == len(made.trainable_tensors()) // 2
        state = {name: x.clone() for name, x in made.model.state_dict().items()}
        assert all(torch.equal(x, weights[name]) for name, x in made.weights(state))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """What a run with an adapter exports: rank 2 on a base that lies beside it."""
    Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(tmp_path / "base")
    moved(LoRA(rank=2)(load(tmp_path / "base"))).export(tmp_path / "run" / "export")
    (tmp_path / "run" / "config.yaml").write_text("seed: 1")
    return tmp_path / "run"


class TestWhereItStarts:
    def test_from_the_directory_of_an_adapter_it_goes_on(self, trained: Path) -> None:
        made: Any = LoRA(rank=2)(HuggingFace(name=str(trained / "export" / "adapter"))())
        assert made.base is not None
        merged = load(trained / "export")
        torch.testing.assert_close(logprobs(made), logprobs(merged), rtol=0, atol=1e-5)
        before, start = frozen(made), logprobs(made)
        reference = made.frozen_copy()
        assert torch.equal(logprobs(reference), start), "where training starts, not the base"
        assert not torch.allclose(start, logprobs(load(trained.parent / "base")))
        assert all(torch.equal(x, frozen(made)[name]) for name, x in before.items())
        assert json.loads((trained / "export" / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
            trained.parent / "base"
        )

    def test_the_base_is_what_it_was_trained_on(self, trained: Path) -> None:
        torch.manual_seed(1)
        Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(trained.parent / "base")
        with pytest.raises(UserError, match="was trained on other weights than"):
            load(trained / "export" / "adapter")

    def test_from_a_run_a_new_one_on_what_it_exported(self, trained: Path) -> None:
        made: Any = LoRA(rank=4)(HuggingFace(name=str(trained))())
        assert torch.equal(logprobs(made), logprobs(load(trained / "export")))
        assert all(bool((x == 0).all()) for name, x in made.trainable_tensors().items() if "lora_B" in name)

    def test_without_an_adapter_it_is_merged(self, trained: Path) -> None:
        made = NoAdapter()(HuggingFace(name=str(trained / "export" / "adapter"))())
        assert torch.equal(logprobs(made), logprobs(load(trained / "export")))
        assert all(x.requires_grad for x in made.parameters())
        assert list(made.state_dict()) == list(load(trained / "export").state_dict())

    @pytest.mark.parametrize("settings", [WHOLE, {"targets": ["q_proj"]}, {"modules_to_save": ["mlp"]}], ids=["whole", "targets", "mlp"])
    def test_merging_is_exact(self, settings: dict[str, Any]) -> None:
        made = moved(lora(**settings))
        want = {name: x.clone() for name, x in made.weights()}
        whole = made.merged()
        assert whole.trainable_tensors().keys() == base().trainable_tensors().keys()
        assert all(torch.equal(x, want[name]) for name, x in whole.model.state_dict().items())
        assert whole.dropout == base().dropout

    def test_a_tokenizer_beside_the_adapter_is_its(self, trained: Path) -> None:
        tokenizer = load(trained.parent / "base").tokenizer
        tokenizer.chat_template, tokenizer.eos_token = "{{ messages }}", "?"
        tokenizer.save_pretrained(trained / "export" / "adapter")
        made = load(trained / "export" / "adapter")
        assert made.tokenizer.chat_template == "{{ messages }}"
        assert tokenizer.convert_tokens_to_ids("?") in made.eos_ids

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({}, "type adapter.rank=2"),
            ({"rank": 2, "alpha": 4}, "type adapter.alpha=32"),
            ({"rank": 2, "rslora": True}, "type adapter.rslora=false"),
            ({"rank": 2, "targets": ["q_proj"]}, "type adapter.targets=["),
            ({"rank": 2, "modules_to_save": ["norm"]}, "type adapter.modules_to_save=[]"),
        ],
    )
    def test_of_another_shape(self, settings: dict[str, Any], says: str, trained: Path) -> None:
        with pytest.raises(UserError) as error:
            LoRA(**settings)(load(trained / "export" / "adapter"))
        assert says in str(error.value)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"base_model_name_or_path": None}, "does not name its base"),
            ({"peft_type": "IA3"}, "is not supported"),
            ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa"),
            ({"r": 3}, "does not fit its base"),
            ({"target_modules": ["q_proj"]}, "does not fit its base"),
            ({"use_dora": True}, "which is not supported"),
            ({"base_model_name_or_path": "no/such"}, "'no/such' cannot be loaded"),
        ],
    )
    def test_what_cannot_be_gone_on_with(self, change: dict[str, Any], says: str, trained: Path) -> None:
        file = trained / "export" / "adapter" / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        with pytest.raises(UserError) as error:
            load(file.parent)
        assert says in str(error.value)
        assert "\n" not in str(error.value)
