"""Weights that are read after the network was built are those that transformers loads."""

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    conversion_mapping,
    core_model_loading,
)
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    Transpose,
    WeightConverter,
)

from rlmods.adapter import LoRA
from rlmods.config import build
from rlmods.distributed import deferred
from rlmods.distributed.strategy import shards
from rlmods.errors import UserError
from rlmods.policy import AdaptedPolicy, Policy, ScalarModel
from rlmods.policy.files import fingerprint
from rlmods.policy.hf import load
from rlmods.policy.tiny import Tiny, character_tokenizer
from rlmods.reference import Model
from tests.support import mixtures, ranks
from tests.support.composed import composed
from tests.support.deferred_ranks import LARGE
from tests.support.mixtures import routes

SIZES: dict[str, Any] = {
    "vocab_size": 103,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 33,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""Sizes of which some are odd: shards of two ranks differ."""
SMALL_GPT2 = {
    "vocab_size": 103,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
SMALL_OPT = {
    "vocab_size": 103,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 33,
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)),
    "scaled rope": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    ),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, query_pre_attn_scalar=8)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SMALL_GPT2)),
    "opt": lambda: OPTForCausalLM(OPTConfig(**SMALL_OPT, word_embed_proj_dim=32)),
}
MANY_EXPERTS = {"num_experts": 11, "hidden_size": 16, "moe_intermediate_size": 8}
"""More experts than one digit counts. The first values of a weight, whose hash is the fingerprint,
are those of several experts."""
MIXTURES: dict[str, Callable[[], Any]] = {
    "qwen3_moe": lambda: mixtures.random_model("qwen3", **MANY_EXPERTS),
    "tied experts": lambda: mixtures.random_model("qwen3", tie_word_embeddings=True),
    "mixtral": lambda: mixtures.random_model("mixtral"),
    "olmoe": lambda: mixtures.random_model("olmoe"),
    "qwen2_moe": lambda: mixtures.random_model("qwen2"),
    "deepseek_v3": lambda: mixtures.random_model("deepseek_v3"),
    "gpt_oss": lambda: mixtures.random_model("gpt_oss"),
}
MODELS |= MIXTURES


def save(model: Any, folder: Path, **options: Any) -> Path:
    """Write a model with a tokenizer, and settings of generation that its configuration does not
    have."""
    model.generation_config.temperature, model.generation_config.do_sample = 0.5, True
    model.save_pretrained(folder, **options)
    character_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return save(MODELS["tied"](), tmp_path / "model")


def both(make: Callable[[], nn.Module]) -> tuple[Any, Any]:
    """The network as it is loaded, and deferred."""
    networks = []
    for defer in (False, True):
        torch.manual_seed(0)
        with deferred.defer_loading(defer):
            networks.append(make())
    return networks[0], networks[1]


def assert_same(loaded: nn.Module, read: nn.Module) -> None:
    expected, actual = loaded.state_dict(), read.state_dict()
    assert list(actual) == list(expected)
    for (name, x), y in zip(actual.items(), expected.values(), strict=True):
        assert x.dtype == y.dtype, name
        assert torch.equal(x, y), name
    for (name, x), (other, y) in zip(read.named_buffers(), loaded.named_buffers(), strict=True):
        assert (name, x.dtype) == (other, y.dtype)
        assert torch.equal(x, y), name
    assert [(n, p.requires_grad) for n, p in read.named_parameters()] == [
        (n, p.requires_grad) for n, p in loaded.named_parameters()
    ]


class TestBuild:
    @pytest.mark.parametrize("file", [None, "extra.safetensors"])
    def test_versions_of_transformers(
        self, file: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before 5.23, configurations do not list the extra files of a model."""
        if file is None:
            monkeypatch.delattr(PreTrainedConfig, "extra_files", raising=False)
        else:
            monkeypatch.setattr(LlamaConfig, "extra_files", (file,), raising=False)
        with deferred.defer_loading(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert deferred.is_deferred(load(folder)) == (file is None)

    @pytest.mark.parametrize("kind", MODELS)
    def test_weights_and_buffers(self, kind: str, tmp_path: Path) -> None:
        save(MODELS[kind](), tmp_path)
        loaded, made = both(lambda: load(tmp_path))
        assert deferred.is_deferred(made)
        assert all(x.is_meta for x in made.parameters())
        deferred.read(made)
        assert not deferred.is_deferred(made)
        assert_same(loaded, made)
        made.check()
        assert made.packs == loaded.packs
        tokens, mask = torch.tensor([[3, 4, 5]]), torch.tensor([[False, True, True]])
        assert torch.equal(made(tokens, mask).logprobs, loaded(tokens, mask).logprobs)

    @pytest.mark.parametrize("kind", [kind for kind in MIXTURES if kind != "gpt_oss"])
    @pytest.mark.parametrize("merged", [False, True])
    def test_experts(self, kind: str, merged: bool, tmp_path: Path) -> None:
        """The files have the experts one by one, or in one tensor. What is exported has the names
        of these files."""
        save(MIXTURES[kind](), tmp_path / "model", save_original_format=not merged)
        stored = load_file(tmp_path / "model" / "model.safetensors")
        assert any(".experts.7." in name for name in stored) != merged
        loaded, made = both(lambda: load(tmp_path / "model"))
        assert deferred.is_deferred(made)
        assert made.is_mixture
        for count in ("num_experts", "num_chosen"):
            assert getattr(made.routers, count) == getattr(loaded.routers, count)
        deferred.read(made)
        assert_same(loaded, made)
        made.check()
        tokens, mask = torch.tensor([[3, 4, 5]]), torch.tensor([[False, True, True]])
        outputs = [x(tokens, mask, routed_experts=routes(x, tokens)) for x in (loaded, made)]
        assert torch.equal(outputs[1].logprobs, outputs[0].logprobs)
        assert torch.equal(outputs[1].routed_experts, outputs[0].routed_experts)
        made.export(tmp_path / "export")
        exported = load_file(tmp_path / "export" / "model.safetensors")
        assert exported.keys() == stored.keys()
        assert all(torch.equal(x, stored[name]) for name, x in exported.items())

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_rank_reads_its_experts_one_matrix_at_a_time(
        self, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(MIXTURES["qwen3_moe"](), tmp_path)
        loaded, made = both(lambda: load(tmp_path, dtype=dtype))
        sizes, files, read = [], set(), deferred.Stored.read

        def count(self: deferred.Stored, file: Any, rows: slice | None = None) -> torch.Tensor:
            values = read(self, file, rows)
            sizes.append(values.numel())
            files.add(file)
            return values

        monkeypatch.setattr(deferred.Stored, "read", count)
        experts = made.model.model.layers[1].mlp.experts
        for name, num_matrices in (("gate_up_proj", 2), ("down_proj", 1)):
            stored = vars(experts)[deferred.ATTRIBUTE][name]
            values = torch.empty(4, *stored.shape[1:])
            stored.read_into(values, start=6)
            expected = loaded.model.get_submodule("model.layers.1.mlp.experts").get_parameter(name)
            assert torch.equal(values, expected[6:10].float())
            assert sizes == [8 * 16] * 4 * num_matrices
            assert len(files) == 1  # opened once
            sizes.clear()
            files.clear()

    def test_several_files(self, tmp_path: Path) -> None:
        save(MODELS["llama"](), tmp_path, max_shard_size="20KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 2
        loaded, made = both(lambda: load(tmp_path))
        assert deferred.is_deferred(made)
        deferred.read(made)
        assert_same(loaded, made)

    def test_configurations(self, folder: Path, tmp_path: Path) -> None:
        loaded, made = both(lambda: load(folder))
        deferred.read(made)
        assert made.eos_ids == loaded.eos_ids
        assert made.model.name_or_path == loaded.model.name_or_path
        for policy, out in ((loaded, tmp_path / "a"), (made, tmp_path / "b")):
            policy.export(out)
        assert (
            json.loads((tmp_path / "a" / "generation_config.json").read_text())["temperature"]
            == 0.5
        )
        for file in (tmp_path / "a").glob("*.json"):
            assert (tmp_path / "b" / file.name).read_text() == file.read_text(), file.name

    def test_an_older_model_has_settings_of_generation_in_its_configuration(
        self, folder: Path
    ) -> None:
        (folder / "generation_config.json").unlink()
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"temperature": 0.25}))
        loaded, made = both(lambda: load(folder))
        assert made.model.generation_config.to_dict() == loaded.model.generation_config.to_dict()


class TestCopies:
    """Networks that start from the policy's weights read the same files."""

    @pytest.mark.parametrize(
        ("copied", "dtype"),
        [
            (copy.deepcopy, "float32"),
            (Policy.frozen_copy, "bfloat16"),
            (ScalarModel.from_policy, "float32"),
            (ScalarModel.from_policy, "bfloat16"),
            (LoRA(rank=4), "bfloat16"),
        ],
        ids=["copy", "reference", "critic", "critic of 16 bits", "adapter"],
    )
    @pytest.mark.parametrize("kind", ["tied", "qwen3_moe", "mixtral"])
    def test_equals_a_copy_of_loaded_weights(
        self, copied: Any, dtype: str, kind: str, tmp_path: Path
    ) -> None:
        folder = save(MODELS[kind](), tmp_path / "model")
        loaded, made = both(lambda: copied(load(folder, dtype=dtype)))
        assert deferred.is_deferred(made)
        assert fingerprint(made) == fingerprint(loaded)
        assert getattr(made, "base_fingerprint", None) == getattr(loaded, "base_fingerprint", None)
        deferred.read(made)
        assert_same(loaded, made)

    def test_saved_buffers(self, tmp_path: Path) -> None:
        """Biases of routers."""
        save(MODELS["deepseek_v3"](), tmp_path)
        for copied in (Policy.frozen_copy, ScalarModel.from_policy):
            loaded, made = both(lambda copied=copied: copied(load(tmp_path)))
            deferred.read(made)
            assert_same(loaded, made)

    def test_a_second_adapter(self, folder: Path) -> None:
        loaded, made = both(lambda: LoRA(rank=4)(load(folder)).frozen_copy())
        deferred.read(made)
        assert_same(loaded, made)
        assert made.trainable_tensors().keys() == loaded.trainable_tensors().keys()

    def test_a_loaded_adapter(self, folder: Path, tmp_path: Path) -> None:
        trained = LoRA(rank=4, targets=["q_proj"])(load(folder))
        with torch.no_grad():
            for x in trained.trainable_tensors().values():
                x.add_(0.5)
        trained.export(tmp_path / "run")
        loaded, made = both(lambda: load(tmp_path / "run" / "adapter"))
        assert isinstance(made, AdaptedPolicy)
        deferred.read(made)
        assert_same(loaded, made)
        adapter = str(tmp_path / "run" / "adapter")
        for merged in (
            lambda: load(adapter).merged(),
            lambda: ScalarModel.from_policy(load(adapter)),
            lambda: Model(name=adapter)(Tiny()()),
        ):
            with pytest.warns(UserWarning, match="every rank loads all weights"):
                networks = both(merged)
            assert_same(*networks)


class TestFullLoad:
    """Weights that are not in the files as the network has them are loaded by transformers, and a
    line says so."""

    def assert_loads(self, reason: str, **options: Any) -> None:
        with (
            deferred.defer_loading(),
            pytest.warns(UserWarning, match=rf"every rank loads all weights .* \({reason}\)"),
        ):
            made = load(**options)
        assert not deferred.is_deferred(made)
        assert_same(load(**options), made)
        with deferred.defer_loading(shards=False):  # warnings are errors
            load(**options)

    def test_other_names(self, folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file(
            {name.removeprefix("model."): x for name, x in load_file(file).items()},
            file,
            {"format": "pt"},
        )
        self.assert_loads(r"its files do not have model.embed_tokens.weight once .*", name=folder)

    @pytest.mark.parametrize(
        "operations",
        [
            [MergeModulelist(0), Concatenate(1), Transpose(0, 1)],
            [MergeModulelist(0), Concatenate(0)],
            [MergeModulelist(1), Concatenate(1)],
            [type("Other", (MergeModulelist,), {})(0), Concatenate(1)],
            [Concatenate(1)],
        ],
        ids=str,
    )
    def test_other_conversions(
        self, operations: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(MIXTURES["qwen3_moe"](), tmp_path)
        mapping = conversion_mapping.get_model_conversion_mapping

        def changed(model: nn.Module) -> Any:
            conversions = mapping(model)
            converter = next(x for x in conversions if isinstance(x, WeightConverter))
            converter.operations = operations
            return conversions

        monkeypatch.setattr(conversion_mapping, "get_model_conversion_mapping", changed)
        name = "model.layers.0.mlp.experts.gate_up_proj"
        self.assert_loads(f"transformers converts {name}", name=tmp_path)

    def test_another_version_of_transformers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(MIXTURES["qwen3_moe"](), tmp_path)
        monkeypatch.delattr(core_model_loading, "Concatenate")
        reason = "this version of transformers converts weights otherwise"
        self.assert_loads(reason, name=tmp_path)

    def test_experts_twice(self, tmp_path: Path) -> None:
        """One by one, and in one tensor, of which transformers takes one."""
        model = MIXTURES["qwen3_moe"]()
        save(model, tmp_path)
        file = tmp_path / "model.safetensors"
        save_file(load_file(file) | model.state_dict(), file, {"format": "pt"})
        with pytest.raises(deferred.CannotDeferError, match="gate_up_proj once"):
            deferred.build(str(tmp_path), model.config, {"dtype": torch.float32}, {})

    @pytest.mark.parametrize("missing", [".experts.3.up_proj.weight", ".experts.10."])
    def test_missing_experts(self, missing: str, tmp_path: Path) -> None:
        save(MIXTURES["qwen3_moe"](), tmp_path)
        file = tmp_path / "model.safetensors"
        kept = {name: x for name, x in load_file(file).items() if missing not in name}
        save_file(kept, file, {"format": "pt"})
        messages = []
        for defer in (False, True):
            with deferred.defer_loading(defer), pytest.raises(UserError) as error:
                load(tmp_path)
            messages.append(str(error.value))
        assert messages[0] == messages[1]

    @pytest.mark.parametrize("answer", ["an error", "logits only"])
    def test_routers_that_do_not_run_alone(
        self, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(MIXTURES["qwen3_moe"](), tmp_path)
        router = type(load(tmp_path).routers.modules[0])
        forward, alone = router.forward, []

        def changed(self: Any, hidden: torch.Tensor) -> Any:
            if isinstance(self.weight, nn.Parameter):
                return forward(self, hidden)
            alone.append(self)
            if answer == "an error":
                raise TypeError
            return hidden

        monkeypatch.setattr(router, "forward", changed)
        self.assert_loads("its routers cannot be tried without weights", name=tmp_path)
        assert len(alone) == 2  # the first router in each of two loads: it may be large

    def test_pickle(self, folder: Path) -> None:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        self.assert_loads("its weights are not safetensors", name=folder, allow_pickle=True)

    def test_a_quantized_model(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | {
            "quantization_config": {"quant_method": "gptq", "bits": 4}
        }
        (folder / "config.json").write_text(json.dumps(config))
        messages = []
        for defer in (False, True):
            with deferred.defer_loading(defer), pytest.raises(UserError) as error:
                load(folder)
            messages.append(str(error.value))
        assert messages[0] == messages[1]


class TestRun:
    @pytest.mark.parametrize(
        ("strategy", "device", "expected"),
        [
            ("fsdp", "cpu", True),
            ("ddp", "cpu", False),
            ("default", "cpu", False),
            ("ddp", "cuda", True),
            ("default", "cuda", True),
        ],
    )
    def test_loading_is_deferred_by_the_strategy_and_the_device(
        self,
        strategy: str,
        device: str,
        expected: bool,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(build, "device_type", lambda accelerator: device)
        monkeypatch.setattr(build, "select_device", lambda accelerator, devices: None)
        made = composed("algo=sft", f"trainer={strategy}", f"run_dir={tmp_path}")
        assert shards(made.config.trainer.get("strategy")) == (strategy == "fsdp")
        assert deferred.is_deferred(build.load(made).learner.policy) == expected

    def test_the_architecture_is_checked_after_the_weights_are_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        learner: Any = build.load(
            composed("algo=grpo", "trainer=fsdp", f"run_dir={tmp_path}")
        ).learner
        deferred.read(learner.policy)
        deferred.read(learner.reference.policy)
        checked: list[Policy] = []
        monkeypatch.setattr(
            type(learner.rollout), "check_policy", lambda _, policy: checked.append(policy)
        )
        monkeypatch.setattr(
            "rlmods.policy.base.packing_agrees",
            lambda model, device: model is not learner.policy.model,
        )
        assert learner.microbatches.packs()
        learner._check_networks()
        assert checked == [learner.policy]
        assert (
            learner.policy.packs,
            learner.reference.policy.packs,
            learner.microbatches.packs(),
        ) == (False, True, False)
        learner._check_networks()
        assert len(checked) == 1

    @pytest.mark.slow
    def test_two_ranks(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        save(MODELS["tied"]().bfloat16(), tmp_path / "bfloat16")
        save(MODELS["llama"](), tmp_path / "files", max_shard_size="20KB")
        large = SIZES | {
            "hidden_size": 512,
            "intermediate_size": 2048,
            "vocab_size": 2048,
            "head_dim": 128,
        }
        large["num_hidden_layers"] = (LARGE - 2 * 2048 * 512) // (512 * (3 * 2048 + 3 * 512)) + 1
        model = LlamaForCausalLM(LlamaConfig(**large))
        assert sum(x.numel() for x in model.parameters()) >= LARGE
        save(model, tmp_path / "large")
        save(mixtures.random_model("mixtral", num_local_experts=3), tmp_path / "experts")
        alone = {"num_experts": 1, "num_experts_per_tok": 1, "tie_word_embeddings": True}
        save(mixtures.random_model(**alone).bfloat16(), tmp_path / "one expert")
        sizes = {"hidden_size": 512, "moe_intermediate_size": 232, "num_experts": 16}
        experts = mixtures.random_model(**sizes)
        assert sum(x.numel() for x in experts.parameters()) >= LARGE
        save(experts, tmp_path / "large experts")
        ranks.run("tests.support.deferred_ranks", [str(tmp_path)], timeout_s=540)
