"""Log-probabilities against plain transformers, in value and gradient; what is loaded, encoded and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from rlmods.policy import Policy, base
from rlmods.policy.hf import load
from rlmods.policy.tiny import character_tokenizer
from rlmods.rollout import Local
from rlmods.types import Prompt, Response, UserError

TEMPERATURES = [0.6, 1.0, 1.5]
SHAPE: dict[str, Any] = {
    "vocab_size": 102, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
GPT2: dict[str, Any] = {"vocab_size": 102, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": None}
PDROP = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}


def seeded(kind: Any, config: Any) -> Any:
    """Weights large enough for distributions that are neither flat nor certain, and that depend on positions."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config)
        for name, x in model.named_parameters():
            if x.ndim == 2:
                x.data.normal_(std=0.5 if "wpe" in name else 0.25)
    return model.eval()


def llama(**change: Any) -> Any:
    return seeded(LlamaForCausalLM, LlamaConfig(**SHAPE | change))


def gpt2(**change: Any) -> Any:
    return seeded(GPT2LMHeadModel, GPT2Config(**GPT2 | {"eos_token_id": 1} | change))


MODELS = {"llama": llama, "gpt2": gpt2}


def policy(model: Any = None, **options: Any) -> Policy:
    return Policy(llama() if model is None else model, character_tokenizer(), **options)


def rows() -> tuple[Tensor, Tensor]:
    """Right-padded rows and a mask with a hole in it and a row without loss."""
    tokens = torch.randint(2, 102, (4, 13), generator=torch.Generator().manual_seed(3))
    mask = torch.zeros(4, 13, dtype=torch.bool)
    mask[0, 3:9] = True
    mask[0, 5] = False
    mask[1, 1:13] = True
    mask[2, 12] = True
    return tokens, mask


def plain(policy: Policy, tokens: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """log_softmax(model(ids).logits / T) at the mask, 0 elsewhere."""
    logprobs = (policy.model(input_ids=tokens).logits.float() / temperature).log_softmax(-1)
    picked = logprobs[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1)
    return torch.where(mask, torch.cat([torch.zeros(len(tokens), 1), picked], 1), 0.0)


def gradient(policy: Policy, x: Tensor) -> Tensor:
    """Gradient of a weighted sum: different weights for different tokens."""
    policy.zero_grad()
    (x * torch.linspace(-1, 2, x.numel()).view(x.shape)).sum().backward()
    flat = torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in policy.parameters()])
    assert flat.norm() > 1e-3
    return flat


class TestForward:
    @pytest.mark.parametrize("temperature", TEMPERATURES)
    @pytest.mark.parametrize("name", MODELS)
    def test_equals_log_softmax_in_value_and_gradient(self, name: str, temperature: float) -> None:
        made = policy(MODELS[name]())
        tokens, mask = rows()
        have, want = made(tokens, mask, temperature=temperature)[0], plain(made, tokens, mask, temperature)
        assert have.dtype == torch.float32
        torch.testing.assert_close(have, want, rtol=0, atol=1e-5)
        torch.testing.assert_close(gradient(made, have), gradient(made, want), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("chunk", [1, 3, 19])
    def test_chunks_change_neither_value_nor_gradient(self, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
        made = policy()
        tokens, mask = rows()
        whole, whole_entropy = made(tokens, mask, temperature=0.7, entropy=True)[:2]
        want = gradient(made, whole + whole_entropy)
        monkeypatch.setattr(base, "LOGITS_PER_CHUNK", chunk * 102)
        calls: list[int] = []
        score = made._score_chunk
        monkeypatch.setattr(made, "_score_chunk", lambda h, *rest: calls.append(len(h)) or score(h, *rest))
        have, entropy = made(tokens, mask, temperature=0.7, entropy=True)[:2]
        assert max(calls) <= chunk
        torch.testing.assert_close(have, whole, rtol=0, atol=1e-6)
        torch.testing.assert_close(entropy, whole_entropy, rtol=0, atol=1e-5)
        torch.testing.assert_close(gradient(made, have + entropy), want, rtol=1e-3, atol=1e-4)

    def test_column_t_reads_the_tokens_before_t_and_only_those(self) -> None:
        made = policy()
        tokens, mask = rows()
        before = made(tokens, mask)[0]
        changed = tokens.clone()
        changed[1, 6] = (changed[1, 6] + 1) % 102
        moved = (made(changed, mask)[0] != before)[1]
        assert moved.tolist() == [False] * 6 + [True] * 7

    def test_the_first_column_is_never_scored(self) -> None:
        tokens, mask = rows()
        made = policy()
        for x in made(tokens, torch.ones_like(mask))[:2]:
            assert (x[:, 0] == 0).all()
            assert (x[:, 1:] != 0).all()

    def test_padding_ids_do_not_matter(self) -> None:
        made = policy(gpt2())
        tokens, mask = rows()
        garbage = tokens.clone()
        garbage[0, 9:] = 101
        torch.testing.assert_close(made(garbage, mask)[0], made(tokens, mask)[0], rtol=0, atol=0)

    def test_a_row_does_not_depend_on_its_neighbours_or_the_width(self) -> None:
        made = policy(gpt2())
        tokens, mask = rows()
        torch.testing.assert_close(made(tokens[:1, :9], mask[:1, :9])[0], made(tokens, mask)[0][:1, :9], rtol=0, atol=1e-5)

    def test_no_loss_anywhere_gives_zeros_that_backpropagate(self) -> None:
        made = policy()
        tokens, mask = rows()
        logprobs, entropy = made(tokens, torch.zeros_like(mask), entropy=True)[:2]
        assert (logprobs == 0).all()
        (logprobs + entropy).sum().backward()
        assert all(p.grad is not None and (p.grad == 0).all() for p in made.parameters())


class TestEntropy:
    @pytest.mark.parametrize("temperature", TEMPERATURES)
    def test_is_that_of_the_distribution_the_token_came_from(self, temperature: float) -> None:
        made = policy()
        tokens, mask = rows()
        entropy = made(tokens, mask, temperature=temperature)[1]
        logprobs = (made.model(input_ids=tokens).logits / temperature).log_softmax(-1)
        want = -(logprobs.exp() * logprobs).sum(-1)[:, :-1]
        torch.testing.assert_close(entropy[:, 1:], torch.where(mask[:, 1:], want, 0.0), rtol=0, atol=1e-4)
        assert (entropy >= 0).all()
        assert (entropy <= torch.tensor(102.0).log() + 1e-5).all()

    def test_carries_a_gradient_only_if_asked(self) -> None:
        made = policy()
        tokens, mask = rows()
        assert not made(tokens, mask)[1].requires_grad
        gradient(made, made(tokens, mask, entropy=True)[1])
        with torch.no_grad():
            assert not made(tokens, mask, entropy=True)[1].requires_grad


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    """A GPT-2 checkpoint whose configuration says dropout 0.5, with several EOS ids and sampling settings of its own."""
    folder = tmp_path / "dropped"
    model = gpt2(**PDROP)
    for name, value in {"do_sample": True, "top_k": 1, "temperature": 0.01, "repetition_penalty": 1.5, "eos_token_id": [1, 40]}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


class TestDropout:
    @pytest.mark.parametrize("kind", ["gpt2", "llama"])
    def test_scoring_is_the_same_in_train_and_eval_mode(self, kind: str) -> None:
        made = policy(gpt2(**PDROP) if kind == "gpt2" else llama(attention_dropout=0.5))
        tokens, mask = rows()
        want = made.eval()(tokens, mask)[0]
        made.train()
        assert made.model.training
        for _ in range(3):
            assert torch.equal(made(tokens, mask)[0], want)

    def test_is_there_without_the_policy(self) -> None:
        tokens, _ = rows()
        for model in (gpt2(**PDROP), llama(attention_dropout=0.5)):
            model.train()
            assert not torch.equal(model(input_ids=tokens).logits, model(input_ids=tokens).logits)

    def test_export_writes_it_and_the_live_one_stays_off(self, dropped: Path, tmp_path: Path) -> None:
        made = load(dropped)
        tokens, mask = rows()
        want = made(tokens, mask)[0]
        made.export(tmp_path / "out")
        written = json.loads((tmp_path / "out" / "config.json").read_text())
        assert {name: written[name] for name in PDROP} == PDROP
        assert [getattr(made.model.config, name) for name in PDROP] == [0.0, 0.0, 0.0]
        assert torch.equal(made.train()(tokens, mask)[0], want)

    def test_a_frozen_copy_keeps_its_weights_and_its_peace(self) -> None:
        made = policy(gpt2(**PDROP))
        tokens, mask = rows()
        twin = made.frozen_copy()
        before = made(tokens, mask)[0]
        with torch.no_grad():
            next(made.parameters()).add_(1.0)
        assert torch.equal(twin(tokens, mask)[0], before)
        assert not torch.equal(made(tokens, mask)[0], before)
        assert not any(p.requires_grad for p in twin.parameters())
        assert all(p.requires_grad for p in made.parameters())


class TestEnds:
    def test_every_id_of_generation_config_and_tokenizer(self, dropped: Path) -> None:
        assert load(dropped).eos_ids == {1, 40}

    def test_the_configuration_counts_too(self) -> None:
        assert policy(llama(eos_token_id=[7, 8])).eos_ids == {1, 7, 8}

    def test_none_at_all_is_refused(self) -> None:
        tokenizer = character_tokenizer()
        tokenizer.eos_token = None
        with pytest.raises(UserError, match="no end-of-text token"):
            Policy(llama(eos_token_id=None), tokenizer)

    def test_padding_falls_back_on_an_end(self) -> None:
        tokenizer = character_tokenizer()
        tokenizer.pad_token = None
        assert Policy(llama(), tokenizer).pad_id == 1

    def test_a_response_to_imitate_ends_with_an_id_that_ends_it(self) -> None:
        tokenizer = character_tokenizer()
        assert policy().encode_response("7")[-1] == 1
        tokenizer.eos_token = None
        ids = Policy(llama(eos_token_id=5), tokenizer).encode_response("7")
        assert ids[-1] == 5


@pytest.mark.parametrize("name", MODELS)
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    tokens, mask = rows()
    off, on = policy(MODELS[name]()), policy(MODELS[name](), gradient_checkpointing=True)
    off.train(), on.train()
    reads: list[int] = []
    layer = (on.model.model.layers if name == "llama" else on.model.transformer.h)[0]
    layer.mlp.register_forward_pre_hook(lambda *_: reads.append(1))
    want = gradient(off, off(tokens, mask, temperature=0.8)[0])
    have = gradient(on, on(tokens, mask, temperature=0.8)[0])
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
    assert len(reads) == 2, "the layer was not recomputed: checkpointing is off"


class TestAutocast:
    def stale(self, made: Policy) -> bool:
        """Whether a forward after a change of weights still uses the old ones."""
        tokens, mask = rows()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            before = made(tokens, mask)[0]
            with torch.no_grad():
                made.model.lm_head.weight.mul_(2.0)
            return torch.equal(before, made(tokens, mask)[0])

    def lost(self, made: Policy) -> list[str]:
        """Weights without a gradient after a forward under no_grad in the same block."""
        tokens, mask = rows()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                made(tokens, mask)
            made(tokens, mask)[0].sum().backward()
        return [name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()]

    def test_log_probs_are_float32(self) -> None:
        tokens, mask = rows()
        made = policy()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logprobs, entropy = made(tokens, mask)[:2]
        assert logprobs.dtype == entropy.dtype == torch.float32
        exact = made(tokens, mask)[0]
        assert not torch.equal(logprobs, exact)
        torch.testing.assert_close(logprobs, exact, rtol=0, atol=0.3)

    def test_new_weights_are_seen(self) -> None:
        assert not self.stale(policy())

    def test_gradients_survive_a_forward_without(self) -> None:
        assert self.lost(policy()) == []

    def test_chunks_take_part(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(base, "LOGITS_PER_CHUNK", 3 * 102)
        assert not self.stale(policy())
        assert self.lost(policy()) == []

    def test_a_cache_of_casts_would_keep_old_weights(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = torch.autocast

        def cached(device: str, **options: Any) -> Any:
            return real(device, **options | {"cache_enabled": True})

        monkeypatch.setattr(torch, "autocast", cached)
        assert self.stale(policy())


HEADS: dict[str, Any] = {
    "softcapping": lambda: seeded(
        Gemma2ForCausalLM, Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=2.0, attn_implementation="eager")
    ),
    "scaling": lambda: seeded(GraniteForCausalLM, GraniteConfig(**SHAPE, logits_scaling=3.0)),
    "scale": lambda: seeded(CohereForCausalLM, CohereConfig(**SHAPE, logit_scale=0.25)),
    "tied": lambda: llama(tie_word_embeddings=True),
}


class Doubled(LlamaForCausalLM):
    """Does to its logits what no configuration says."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits = 2 * out.logits
        return out


class TestHead:
    @pytest.mark.parametrize("name", HEADS)
    def test_known_transformations_match(self, name: str) -> None:
        made = policy(HEADS[name]())
        tokens, mask = rows()
        have, want = made(tokens, mask, temperature=0.7)[0], plain(made, tokens, mask, 0.7)
        torch.testing.assert_close(have, want, rtol=0, atol=1e-5)
        torch.testing.assert_close(gradient(made, have), gradient(made, want), rtol=1e-3, atol=1e-4)

    def test_unknown_ones_are_refused(self) -> None:
        with pytest.raises(UserError, match="Doubled changes its logits"):
            policy(seeded(Doubled, LlamaConfig(**SHAPE)))


class TestExport:
    def test_transformers_loads_the_same_model_tokenizer_and_generation_config(self, dropped: Path, tmp_path: Path) -> None:
        made = load(dropped)
        with torch.no_grad():
            next(made.parameters()).add_(0.1)
        made.export(tmp_path / "out")
        tokens, _ = rows()
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert torch.equal(again(input_ids=tokens).logits, made.model(input_ids=tokens).logits)
        text = "12+34=<answer>46</answer>\n"
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
        original = AutoTokenizer.from_pretrained(dropped)
        assert tokenizer(text)["input_ids"] == original(text)["input_ids"] == made.tokenizer(text)["input_ids"]
        assert tokenizer.padding_side == original.padding_side
        was, now = (json.loads((f / "generation_config.json").read_text()) for f in (dropped, tmp_path / "out"))
        assert now == was
        assert now["eos_token_id"] == [1, 40]
        assert load(tmp_path / "out").eos_ids == made.eos_ids

    def test_a_generation_config_that_transformers_will_not_write(self, tmp_path: Path) -> None:
        model = llama()
        model.save_pretrained(tmp_path / "in")
        character_tokenizer().save_pretrained(tmp_path / "in")
        config = json.loads((tmp_path / "in" / "generation_config.json").read_text()) | {"do_sample": False, "temperature": 0.5}
        (tmp_path / "in" / "generation_config.json").write_text(json.dumps(config))
        load(tmp_path / "in").export(tmp_path / "out")
        assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["temperature"] == 0.5


def tokenizer_with_bos(template: str | None) -> PreTrainedTokenizerFast:
    """Adds <s> by itself, as Llama's does."""
    inner = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<s>": 2, "a": 3, "b": 4}, unk_token="b"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.add_special_tokens(["<pad>", "</s>", "<s>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.chat_template = template
    return made


class TestEncode:
    CHAT = Prompt(id="c", messages=[{"role": "user", "content": "ab"}])
    TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}b{% endif %}"

    def test_one_beginning_of_text_and_the_turn_to_answer(self) -> None:
        made = Policy(llama(), tokenizer_with_bos(self.TEMPLATE))
        assert made.encode(self.CHAT) == [2, 3, 4, 4]
        assert made.encode(Prompt(id="t", text="ab")) == [2, 3, 4]
        assert made.encode_response("ab") == [3, 4, 1]

    def test_a_template_without_it_is_left_alone(self) -> None:
        made = Policy(llama(), tokenizer_with_bos(self.TEMPLATE.replace("{{ bos_token }}", "")))
        assert made.encode(self.CHAT) == [3, 4, 4]

    def test_chat_without_a_template_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"prompt c: .*data\.chat=false"):
            policy().encode(self.CHAT)

    def test_decode_leaves_out_what_only_the_machine_reads(self) -> None:
        made = policy()
        assert made.decode([*made.encode_response("<answer>1 , 2</answer>"), 0, 0]) == "<answer>1 , 2</answer>"


RAGGED = [Prompt(id=f"p{i}", text=("12+34-5=" * 4)[:length]) for i, length in enumerate([1, 9, 4, 17, 2])]


def scored(made: Policy, responses: list[Response], temperature: float) -> Tensor:
    """The trainer's log-probabilities of all sampled tokens, from one padded batch."""
    width = max(len(r.prompt_tokens) + len(r.tokens) for r in responses)
    tokens = torch.full((len(responses), width), made.pad_id)
    mask = torch.zeros(len(responses), width, dtype=torch.bool)
    for i, r in enumerate(responses):
        start, end = len(r.prompt_tokens), len(r.prompt_tokens) + len(r.tokens)
        tokens[i, :end] = torch.tensor([*r.prompt_tokens, *r.tokens])
        mask[i, start:end] = True
    with torch.no_grad():
        return made(tokens, mask, temperature=temperature)[0][mask]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["hostile_gpt2", "llama", "checkpointed", "softcapping"])
def test_the_sampler_says_what_the_trainer_says(kind: str, training: bool, temperature: float, dropped: Path) -> None:
    makers: dict[str, Any] = {
        "hostile_gpt2": lambda: load(dropped),
        "llama": lambda: policy(llama(attention_dropout=0.5)),
        "checkpointed": lambda: policy(llama(attention_dropout=0.5), gradient_checkpointing=True),
        "softcapping": lambda: policy(HEADS["softcapping"]()),
    }
    made = makers[kind]().train(training)
    rollout = Local(max_tokens=20, temperature=temperature, seed=5)
    rollout.sync(made, iteration=0)
    responses = rollout.generate(RAGGED, samples=4, iteration=0)
    said = torch.tensor([x for r in responses for x in r.behavior_logprobs])
    assert len(said) > 100
    assert len({tuple(r.tokens) for r in responses}) > 10
    torch.testing.assert_close(said, scored(made, responses, temperature), rtol=0, atol=1e-4)
