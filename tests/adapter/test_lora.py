"""LoRA: trained and frozen tensors, the reference, gradients, export and loading."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlmods.adapter import LoRA, NoAdapter
from rlmods.errors import UserError
from rlmods.policy import HuggingFace, Policy, Tiny, adapted
from rlmods.policy.hf import load
from tests.support.mixtures import mixture
from tests.support.models import rows

from .policies import base, frozen_tensors, lora, perturbed

KINDS = ["llama", "gpt2"]


def logprobs(policy: Any) -> torch.Tensor:
    with torch.no_grad():
        return policy(*rows()).logprobs


class TestInitialisation:
    @pytest.mark.parametrize("init", ["default", "gaussian"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_equals_the_base(self, kind: str, init: str) -> None:
        lm = lora(kind, init=init)
        assert torch.equal(logprobs(lm), logprobs(base(kind)))
        assert type(lm.model) is type(base(kind).model)
        assert (lm.eos_ids, lm.context_length) == (base(kind).eos_ids, 64)

    @pytest.mark.parametrize("kind", KINDS)
    def test_only_the_adapter_is_trained(self, kind: str) -> None:
        lm, layers = lora(kind), {"llama": 7, "gpt2": 4}[kind]
        assert {name for name, x in lm.named_parameters() if x.requires_grad} == {
            name
            for name, _ in lm.named_parameters()
            if ".lora_A.default." in name or ".lora_B.default." in name
        }
        assert len(lm.trainable_tensors()) == 2 * 2 * layers
        assert not any("lm_head" in name for name in lm.trainable_tensors())

    def test_targets(self) -> None:
        assert {
            name.split(".")[-3] for name in lora(targets=["q_proj", "v_proj"]).trainable_tensors()
        } == {"q_proj", "v_proj"}

    @pytest.mark.parametrize(("rslora", "scale"), [(False, 2.0), (True, 4.0)])
    def test_scale(self, rslora: bool, scale: float) -> None:
        lm = lora(alpha=8, rslora=rslora)
        tensors = perturbed(lm).trainable_tensors()
        name = "model.layers.0.mlp.up_proj"
        expected = (
            base().model.model.layers[0].mlp.up_proj.weight
            + scale * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
        )
        torch.testing.assert_close(dict(lm.weights())[f"{name}.weight"], expected)

    def test_is_float32_for_any_base(self) -> None:
        base_policy = base()
        lm = lora(on=Policy(base_policy.model.to(torch.bfloat16), base_policy.tokenizer))
        assert {x.dtype for x in lm.trainable_tensors().values()} == {torch.float32}
        assert lm.model.lm_head.weight.dtype == torch.bfloat16
        assert {x.dtype for _, x in lm.weights()} == {torch.bfloat16}
        assert {x.dtype for x in lm.frozen_copy().trainable_tensors().values()} == {torch.float32}

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"targets": "q_proj"}, "a list of names: 'adapter.targets=[q_proj,v_proj]'"),
            ({"targets": []}, "all-linear or a list"),
        ],
    )
    def test_invalid_settings_are_rejected(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match="adapter") as error:
            LoRA(**settings)
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {"targets": ["q_proj", "w_proj"]},
                "has no w_proj; its linear layers are down_proj, gate_proj, k_proj, o_proj",
            ),
            (
                {"targets": ["lm_head"]},
                "lm_head shares its weight with the embeddings, which cannot be adapted: remove "
                "lm_head",
            ),
            ({"targets": ["norm"]}, "adapter"),
        ],
    )
    def test_invalid_module_names_are_rejected(
        self, settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(UserError) as error:
            LoRA(**settings)(Tiny(pretrained=False, hidden_size=32, num_layers=1)())
        assert message in str(error.value)
        assert "\n" not in str(error.value)

    def test_an_embedding_is_rejected(self) -> None:
        with pytest.raises(UserError, match=r"model\.embed_tokens is not a linear layer"):
            lora(targets=["embed_tokens"])

    def test_without_peft(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(adapted, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"pip install 'rlmods\[lora\]'"):
            LoRA()


class TestReference:
    @pytest.mark.parametrize("trained", [False, True])
    def test_keeps_the_weights_of_its_creation(self, trained: bool) -> None:
        lm = lora()
        if trained:
            perturbed(lm)
        initial, reference = logprobs(lm), lm.frozen_copy()
        assert torch.allclose(initial, logprobs(base()), rtol=0, atol=1e-5) != trained
        assert torch.equal(logprobs(reference), initial)
        perturbed(lm, seed=1)
        assert torch.equal(logprobs(reference), initial)
        assert not torch.allclose(logprobs(lm), initial)

    def test_has_no_dropout(self) -> None:
        """Also if the loaded adapter was trained with dropout."""
        lm = lora()
        lm.config.lora_dropout = 0.5
        reference = lm.frozen_copy()
        assert torch.equal(logprobs(reference), logprobs(lm))
        assert not any(module.training for module in lm.modules())

    def test_has_no_gradient_and_does_not_change_what_is_trained(self) -> None:
        lm = lora()
        reference, trained = (
            lm.frozen_copy(),
            {name for name, x in lm.named_parameters() if x.requires_grad},
        )
        assert not any(x.requires_grad for x in reference.trainable_tensors().values())
        assert len(trained) == len(lm.trainable_tensors())
        assert not reference(*rows()).logprobs.requires_grad
        assert {name for name, x in lm.named_parameters() if x.requires_grad} == trained
        lm(*rows()).logprobs.sum().backward()
        assert all(x.grad is None for x in reference.trainable_tensors().values())

    def test_is_active_only_in_its_own_forward(self) -> None:
        """Sampling uses `model`, where the policy's adapter must be active, also after a forward
        that raised."""
        lm = lora()
        reference, tokens = perturbed(lm).frozen_copy(), rows()[0]
        perturbed(lm, seed=1)
        with torch.no_grad():
            expected = lm.model(input_ids=tokens).logits
            reference(*rows())
            assert torch.equal(lm.model(input_ids=tokens).logits, expected)
            with pytest.raises((IndexError, RuntimeError, ValueError)):
                reference(tokens, torch.ones(1, 99, dtype=torch.bool))
            assert torch.equal(lm.model(input_ids=tokens).logits, expected)

    def test_adds_only_the_parameters_of_an_adapter(self) -> None:
        lm = lora()
        before = sum(x.numel() for x in lm.parameters())
        reference = lm.frozen_copy()
        assert reference.model is lm.model
        assert sum(x.numel() for x in lm.parameters()) - before == sum(
            x.numel() for x in lm.trainable_tensors().values()
        )

    def test_loads_tensors(self) -> None:
        lm = lora()
        reference = lm.frozen_copy()
        reference.load_tensors(perturbed(lm).trainable_tensors())
        assert torch.equal(logprobs(reference), logprobs(lm))
        assert not torch.allclose(logprobs(lm), logprobs(base()))
        with pytest.raises(ValueError, match="and None there"):
            reference.load_tensors({})


class TestGradient:
    def gradients(self, checkpointing: bool) -> dict[str, torch.Tensor]:
        lm = perturbed(lora(on=base(gradient_checkpointing=checkpointing)))
        lm.train(checkpointing)
        calls = list[str]()
        lm.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append("mlp"))
        lm(*rows()).logprobs.sum().backward()
        assert len(calls) == 1 + checkpointing
        assert all((x.grad is not None) == x.requires_grad for x in lm.parameters())
        return {name: x.grad for name, x in lm.trainable_tensors().items() if x.grad is not None}

    def test_reaches_every_layer_with_and_without_checkpointing(self) -> None:
        plain = self.gradients(False)
        assert len(plain) == 28
        assert min(float(x.norm()) for x in plain.values()) > 1e-4
        for name, x in self.gradients(True).items():
            torch.testing.assert_close(x, plain[name], rtol=1e-4, atol=1e-5)

    def test_equals_that_of_the_product(self) -> None:
        """dL/dB = scale dL/dW A^T, and dL/dA = scale B^T dL/dW, where W is the merged weight."""
        lm, name = perturbed(lora()), "model.layers.1.self_attn.q_proj"
        lm(*rows()).logprobs.sum().backward()
        merged = base()
        merged.model.load_state_dict(dict(lm.weights()))
        merged(*rows()).logprobs.sum().backward()
        gradient = merged.model.get_submodule(name).weight.grad
        a, b = (
            lm.trainable_tensors()[f"{name}.lora_A.weight"],
            lm.trainable_tensors()[f"{name}.lora_B.weight"],
        )
        torch.testing.assert_close(b.grad, 8.0 * gradient @ a.detach().T, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(a.grad, 8.0 * b.detach().T @ gradient, rtol=1e-3, atol=1e-4)


class TestExport:
    # from peft's own wrapper
    @pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
    @pytest.mark.parametrize(
        "settings",
        [{}, {"rslora": True, "targets": ["q_proj", "down_proj"]}],
        ids=["plain", "rslora"],
    )
    def test_merged_equals_adapter_on_base(self, settings: dict[str, Any], tmp_path: Path) -> None:
        from peft import PeftModel

        lm = lora(**settings)
        lm.frozen_copy()
        perturbed(lm, std=0.05).export(tmp_path)
        tokens, _ = rows()
        merged = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
        with torch.no_grad():
            expected = lm.model(input_ids=tokens).logits
            assert not torch.allclose(expected, base().model(input_ids=tokens).logits, atol=1e-2)
            torch.testing.assert_close(merged(input_ids=tokens).logits, expected, rtol=0, atol=1e-5)
            adapted = PeftModel.from_pretrained(base().model, tmp_path / "adapter").eval()
            torch.testing.assert_close(
                adapted(input_ids=tokens).logits, expected, rtol=0, atol=1e-6
            )
        greedy = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        responses = [
            model.generate(tokens[:, :4], attention_mask=torch.ones(4, 4).long(), **greedy)
            for model in (lm.model, merged, adapted)
        ]
        assert torch.equal(responses[0], responses[1])
        assert torch.equal(responses[0], responses[2])

    @pytest.mark.parametrize("kind", ["qwen3", "mixtral", "olmoe"])
    def test_experts_of_a_mixture_are_not_adapted(self, kind: str, tmp_path: Path) -> None:
        lm = perturbed(LoRA(rank=2)(mixture(kind)))
        assert not any("expert" in name for name in lm.trainable_tensors())
        lm.export(tmp_path)
        torch.testing.assert_close(logprobs(load(tmp_path)), logprobs(lm), rtol=1e-5, atol=1e-5)

    def test_conv1d(self, tmp_path: Path) -> None:
        lm = perturbed(lora("gpt2"))
        lm.export(tmp_path)
        torch.testing.assert_close(logprobs(load(tmp_path)), logprobs(lm), rtol=0, atol=1e-5)

    def test_does_not_change_the_network(self, tmp_path: Path) -> None:
        lm = perturbed(lora())
        before, logprobs_before = (
            {name: x.clone() for name, x in lm.state_dict().items()},
            logprobs(lm),
        )
        lm.export(tmp_path)
        assert before.keys() == lm.state_dict().keys()
        assert all(torch.equal(x, before[name]) for name, x in lm.state_dict().items())
        assert torch.equal(logprobs(lm), logprobs_before)
        assert sum(x.requires_grad for x in lm.parameters()) == len(lm.trainable_tensors())

    @pytest.mark.parametrize("kind", KINDS)
    def test_weights_have_the_names_of_the_base(self, kind: str) -> None:
        lm = lora(kind)
        lm.frozen_copy()
        perturbed(lm)
        weights, expected = dict(lm.weights()), base(kind).model.state_dict()
        assert list(weights) == list(expected)
        changed = {name for name, x in weights.items() if not torch.equal(x, expected[name])}
        assert len(changed) == len(lm.trainable_tensors()) // 2
        state = {name: x.clone() for name, x in lm.model.state_dict().items()}
        assert all(torch.equal(x, weights[name]) for name, x in lm.weights(state))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Return a run that exported an adapter of rank 2; its base is in the directory next to it."""
    Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(tmp_path / "base")
    perturbed(LoRA(rank=2)(load(tmp_path / "base"))).export(tmp_path / "run" / "export")
    (tmp_path / "run" / "config.yaml").write_text("seed: 1")
    return tmp_path / "run"


class TestLoad:
    def test_the_directory_of_an_adapter_continues_its_training(self, trained: Path) -> None:
        lm: Any = LoRA(rank=2)(HuggingFace(name=str(trained / "export" / "adapter"))())
        assert lm.base_fingerprint is not None
        merged = load(trained / "export")
        torch.testing.assert_close(logprobs(lm), logprobs(merged), rtol=0, atol=1e-5)
        before, initial = frozen_tensors(lm), logprobs(lm)
        reference = lm.frozen_copy()
        assert torch.equal(logprobs(reference), initial), (
            "the reference is the loaded adapter, not the base"
        )
        assert not torch.allclose(initial, logprobs(load(trained.parent / "base")))
        assert all(torch.equal(x, frozen_tensors(lm)[name]) for name, x in before.items())
        assert json.loads((trained / "export" / "adapter" / "adapter_config.json").read_text())[
            "base_model_name_or_path"
        ] == str(trained.parent / "base")

    def test_a_changed_base_is_rejected(self, trained: Path) -> None:
        torch.manual_seed(1)
        Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(trained.parent / "base")
        with pytest.raises(UserError, match="was not trained on the current weights of"):
            load(trained / "export" / "adapter")

    def test_a_run_gets_a_new_adapter_on_its_merged_export(self, trained: Path) -> None:
        lm: Any = LoRA(rank=4)(HuggingFace(name=str(trained))())
        assert torch.equal(logprobs(lm), logprobs(load(trained / "export")))
        assert all(
            bool((x == 0).all()) for name, x in lm.trainable_tensors().items() if "lora_B" in name
        )

    def test_no_adapter_merges_the_loaded_one(self, trained: Path) -> None:
        lm = NoAdapter()(HuggingFace(name=str(trained / "export" / "adapter"))())
        assert torch.equal(logprobs(lm), logprobs(load(trained / "export")))
        assert all(x.requires_grad for x in lm.parameters())
        assert list(lm.state_dict()) == list(load(trained / "export").state_dict())

    @pytest.mark.parametrize(
        "settings",
        [{}, {"targets": ["q_proj"]}],
        ids=["all", "targets"],
    )
    def test_merging_is_exact(self, settings: dict[str, Any]) -> None:
        lm = perturbed(lora(**settings))
        expected = {name: x.clone() for name, x in lm.weights()}
        lm.control_tokens_in_data = True
        merged = lm.merged()
        assert merged.control_tokens_in_data
        assert merged.trainable_tensors().keys() == base().trainable_tensors().keys()
        assert all(torch.equal(x, expected[name]) for name, x in merged.model.state_dict().items())
        assert merged.dropout == base().dropout

    def test_a_tokenizer_saved_with_the_adapter_is_used(self, trained: Path) -> None:
        tokenizer = load(trained.parent / "base").tokenizer
        tokenizer.chat_template, tokenizer.eos_token = "{{ messages }}", "?"
        tokenizer.save_pretrained(trained / "export" / "adapter")
        lm = load(trained / "export" / "adapter")
        assert lm.tokenizer.chat_template == "{{ messages }}"
        assert tokenizer.convert_tokens_to_ids("?") in lm.eos_ids

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({}, "type adapter.rank=2"),
            ({"rank": 2, "alpha": 4}, "type adapter.alpha=32"),
            ({"rank": 2, "rslora": True}, "type adapter.rslora=false"),
            ({"rank": 2, "targets": ["q_proj"]}, "type adapter.targets=["),
        ],
    )
    def test_other_settings_than_the_loaded_adapter_are_rejected(
        self, settings: dict[str, Any], message: str, trained: Path
    ) -> None:
        with pytest.raises(UserError) as error:
            LoRA(**settings)(load(trained / "export" / "adapter"))
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"base_model_name_or_path": None}, "does not name its base"),
            ({"peft_type": "IA3"}, "is not supported"),
            ({"modules_to_save": ["norm"]}, "(modules_to_save=['norm']) is not supported"),
            ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa"),
            ({"r": 3}, "does not fit its base"),
            ({"target_modules": ["q_proj"]}, "does not fit its base"),
            (
                {"target_parameters": ["mlp.experts.gate_up_proj"]},
                "(target_parameters=['mlp.experts.gate_up_proj']) is not supported",
            ),
            ({"use_dora": True}, "(use_dora=True) is not supported"),
            ({"alora_invocation_tokens": [1]}, "has more than W + B A"),
            ({"base_model_name_or_path": "no/such"}, "'no/such' cannot be loaded"),
        ],
    )
    def test_unsupported_adapters_are_rejected(
        self, change: dict[str, Any], message: str, trained: Path
    ) -> None:
        file = trained / "export" / "adapter" / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        with pytest.raises(UserError) as error:
            load(file.parent)
        assert message in str(error.value)
        assert "\n" not in str(error.value)
