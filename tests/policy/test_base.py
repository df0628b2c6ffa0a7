"""The policy's log-probabilities against transformers, in value and gradient; dropout, encoding and
export."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from rlmods.errors import UserError
from rlmods.policy import HuggingFace, Policy, ScalarModel, output_layer
from rlmods.policy.chat_template import end_of_turn
from rlmods.policy.hf import load
from rlmods.policy.tiny import character_tokenizer
from rlmods.rollout import Local
from rlmods.training.collate import sft_batch
from rlmods.training.preferences import collate_preferences
from rlmods.types import Prompt, Response
from tests.support.models import (
    CHAT,
    CHAT_TEMPLATE,
    MODELS,
    PDROP,
    SHAPE,
    gpt2,
    gradient,
    llama,
    policy,
    rows,
    seeded,
    tokenizer_with_bos,
)

TEMPERATURES = [0.6, 1.0, 1.5]


def expected_logprobs(policy: Policy, tokens: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """Return log_softmax(model(ids).logits / T) at the mask, 0 elsewhere."""
    logprobs = (policy.model(input_ids=tokens).logits.float() / temperature).log_softmax(-1)
    picked = logprobs[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1)
    return torch.where(mask, torch.cat([torch.zeros(len(tokens), 1), picked], 1), 0.0)


class TestForward:
    @pytest.mark.parametrize("temperature", TEMPERATURES)
    @pytest.mark.parametrize("name", MODELS)
    def test_equals_log_softmax_in_value_and_gradient(self, name: str, temperature: float) -> None:
        lm = policy(MODELS[name]())
        tokens, mask = rows()
        actual, expected = (
            lm(tokens, mask, temperature=temperature)[0],
            expected_logprobs(lm, tokens, mask, temperature),
        )
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(
            gradient(lm, actual), gradient(lm, expected), rtol=1e-3, atol=1e-4
        )

    def test_column_t_depends_only_on_tokens_up_to_t(self) -> None:
        lm = policy()
        tokens, mask = rows()
        before = lm(tokens, mask)[0]
        changed = tokens.clone()
        changed[1, 6] = (changed[1, 6] + 1) % 102
        differs = (lm(changed, mask)[0] != before)[1]
        assert differs.tolist() == [False] * 6 + [True] * 7

    def test_the_first_column_is_never_scored(self) -> None:
        tokens, mask = rows()
        lm = policy()
        for x in lm(tokens, torch.ones_like(mask))[:2]:
            assert (x[:, 0] == 0).all()
            assert (x[:, 1:] != 0).all()

    def test_a_row_does_not_depend_on_other_rows_or_padding(self) -> None:
        lm = policy(gpt2())
        tokens, mask = rows()
        torch.testing.assert_close(
            lm(tokens[:1, :9], mask[:1, :9])[0], lm(tokens, mask)[0][:1, :9], rtol=0, atol=1e-5
        )

    def test_an_empty_mask_gives_zeros_with_zero_gradient(self) -> None:
        lm = policy()
        tokens, mask = rows()
        logprobs, entropy = lm(tokens, torch.zeros_like(mask), entropy=True)[:2]
        assert (logprobs == 0).all()
        (logprobs + entropy).sum().backward()
        assert all(p.grad is not None and (p.grad == 0).all() for p in lm.parameters())


@pytest.mark.parametrize("make", [policy, lambda: ScalarModel.from_policy(policy())])
def test_attention_of_cudnn_is_off_once_a_model_is_set_up(make: Any) -> None:
    """It builds a plan for each new shape: 0.1 to 0.4 s for each sampled token."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        make()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_entropy_is_that_of_the_distribution_at_each_token(temperature: float) -> None:
    lm = policy()
    tokens, mask = rows()
    entropy = lm(tokens, mask, temperature=temperature)[1]
    logprobs = (lm.model(input_ids=tokens).logits / temperature).log_softmax(-1)
    expected = -(logprobs.exp() * logprobs).sum(-1)[:, :-1]
    torch.testing.assert_close(
        entropy[:, 1:], torch.where(mask[:, 1:], expected, 0.0), rtol=0, atol=1e-4
    )
    assert (entropy >= 0).all()
    assert (entropy <= torch.tensor(102.0).log() + 1e-5).all()


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    """A GPT-2 checkpoint with dropout 0.5, several EOS ids and its own sampling settings."""
    folder = tmp_path / "dropped"
    model = gpt2(**PDROP)
    for name, value in {
        "do_sample": True,
        "top_k": 1,
        "temperature": 0.01,
        "repetition_penalty": 1.5,
        "eos_token_id": [1, 40],
    }.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


class TestDropout:
    @pytest.mark.parametrize("kind", ["gpt2", "llama"])
    def test_scoring_is_the_same_in_train_and_eval_mode(self, kind: str) -> None:
        lm = policy(gpt2(**PDROP) if kind == "gpt2" else llama(attention_dropout=0.5))
        tokens, mask = rows()
        expected = lm.eval()(tokens, mask)[0]
        lm.train()
        assert lm.model.training
        for _ in range(3):
            assert torch.equal(lm(tokens, mask)[0], expected)

    def test_a_frozen_copy_keeps_its_weights_and_is_not_trained(self) -> None:
        lm = policy(gpt2(**PDROP))
        tokens, mask = rows()
        reference = lm.frozen_copy()
        before = lm(tokens, mask)[0]
        with torch.no_grad():
            next(lm.parameters()).add_(1.0)
        assert torch.equal(reference(tokens, mask)[0], before)
        assert not torch.equal(lm(tokens, mask)[0], before)
        assert not any(p.requires_grad for p in reference.parameters())
        assert all(p.requires_grad for p in lm.parameters())


class TestEosIds:
    def test_come_from_generation_config_and_tokenizer(self, dropped: Path) -> None:
        assert load(dropped).eos_ids == {1, 40}

    def test_a_model_without_any_is_rejected(self) -> None:
        tokenizer = character_tokenizer()
        tokenizer.eos_token = None
        with pytest.raises(UserError, match="no end-of-text token"):
            Policy(llama(eos_token_id=None), tokenizer)

    def test_padding_falls_back_on_an_eos_id(self) -> None:
        tokenizer = character_tokenizer()
        tokenizer.pad_token = None
        assert Policy(llama(), tokenizer).pad_id == 1

    def test_encoded_responses_end_with_an_eos_id(self) -> None:
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
    calls: list[int] = []
    layer = (on.model.model.layers if name == "llama" else on.model.transformer.h)[0]
    layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    expected = gradient(off, off(tokens, mask, temperature=0.8)[0])
    actual = gradient(on, on(tokens, mask, temperature=0.8)[0])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2, "the layer was not recomputed: checkpointing is not active"


class TestAutocast:
    def uses_old_weights(self, lm: Policy) -> bool:
        """Return True if a forward after a change of weights still uses the old ones."""
        tokens, mask = rows()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            before = lm(tokens, mask)[0]
            with torch.no_grad():
                lm.model.model.layers[0].mlp.up_proj.weight.mul_(2.0)
            return torch.equal(before, lm(tokens, mask)[0])

    def without_gradient(self, lm: Policy) -> list[str]:
        """Return the weights without a gradient after a forward under no_grad in the same block."""
        tokens, mask = rows()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                lm(tokens, mask)
            lm(tokens, mask)[0].sum().backward()
        return [name for name, p in lm.named_parameters() if p.grad is None or not p.grad.any()]

    def test_log_probs_are_float32(self) -> None:
        tokens, mask = rows()
        lm = policy()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logprobs, entropy = lm(tokens, mask)[:2]
        assert logprobs.dtype == entropy.dtype == torch.float32
        exact = lm(tokens, mask)[0]
        assert not torch.equal(logprobs, exact)
        torch.testing.assert_close(logprobs, exact, rtol=0, atol=0.3)

    @pytest.mark.parametrize("half", ["autocast", "weights"])
    def test_logits_are_not_rounded(self, half: str) -> None:
        """Logits of this size would be rounded to multiples of 1/2 in bfloat16; the exact ones come
        from the same hidden states. Both factors are numbers of bfloat16: processors that have
        16-bit products round factors, not sums."""

        def round_states(model: Any, args: Any, output: Any) -> None:
            output.last_hidden_state = output.last_hidden_state.bfloat16().float()

        lm, (tokens, mask) = policy(), rows()
        weight = lm.model.lm_head.weight.data
        weight.copy_(weight.mul(20).bfloat16())
        if half == "autocast":
            lm.model.base_model.register_forward_hook(round_states)
        lm = lm if half == "autocast" else Policy(lm.model.bfloat16(), lm.tokenizer)
        lm.packs = False  # packed hidden states are rounded differently
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half == "autocast"):
            hidden = lm.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
            expected = (hidden.double() @ lm.model.lm_head.weight.double().t()).log_softmax(-1)[
                :, :-1
            ]
            logprobs = lm(tokens, mask)[0]
            following = lm.next_logits(tokens).double().log_softmax(-1)
            last = (hidden[:, -1].double() @ lm.model.lm_head.weight.double().t()).log_softmax(-1)
        expected = torch.where(
            mask[:, 1:], expected.gather(-1, tokens[:, 1:, None]).squeeze(-1), 0.0
        )
        assert expected.min() < -20
        torch.testing.assert_close(logprobs[:, 1:].double(), expected, rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(following, last, rtol=1e-5, atol=1e-3)

    @pytest.mark.parametrize("chunk", [2**23, 3 * 102])
    def test_casts_are_not_cached(self, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(output_layer.LOGITS_PER_CHUNK, "cpu", chunk)
        assert not self.uses_old_weights(policy())
        assert self.without_gradient(policy()) == []


HEADS: dict[str, Any] = {
    "softcapping": lambda: seeded(
        Gemma2ForCausalLM,
        Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=2.0, attn_implementation="eager"),
    ),
    "scaling": lambda: seeded(GraniteForCausalLM, GraniteConfig(**SHAPE, logits_scaling=3.0)),
    "scale": lambda: seeded(CohereForCausalLM, CohereConfig(**SHAPE, logit_scale=0.25)),
    "tied": lambda: llama(tie_word_embeddings=True),
}


class Doubled(LlamaForCausalLM):
    """Doubles its logits, without any trace in its configuration."""

    factor = 2.0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits = self.factor * out.logits
        return out


class Larger(Doubled):
    """Makes its logits 2 % larger: more than float32 rounds, and less than 16 bits may."""

    factor = 1.02


class TestHead:
    @pytest.mark.parametrize("name", HEADS)
    def test_known_transformations_are_applied(self, name: str) -> None:
        lm = policy(HEADS[name]())
        tokens, mask = rows()
        actual, expected = (
            lm(tokens, mask, temperature=0.7)[0],
            expected_logprobs(lm, tokens, mask, 0.7),
        )
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(
            gradient(lm, actual), gradient(lm, expected), rtol=1e-3, atol=1e-4
        )

    def test_weights_of_16_bits_may_round_the_logits(self) -> None:
        assert policy(llama().to(torch.bfloat16)).model.dtype == torch.bfloat16

    @pytest.mark.parametrize("kind", [Doubled, Larger])
    def test_unknown_transformations_are_rejected(self, kind: type[Doubled]) -> None:
        with pytest.raises(UserError, match=f"{kind.__name__} transforms its logits"):
            policy(seeded(kind, LlamaConfig(**SHAPE)))


class TestExport:
    def test_transformers_loads_the_same_model_tokenizer_and_generation_config(
        self, dropped: Path, tmp_path: Path
    ) -> None:
        lm = load(dropped)
        with torch.no_grad():
            next(lm.parameters()).add_(0.1)
        lm.export(tmp_path / "out")
        tokens, _ = rows()
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert {name: getattr(loaded.config, name) for name in PDROP} == PDROP
        assert torch.equal(loaded(input_ids=tokens).logits, lm.model(input_ids=tokens).logits)
        text = "12+34=<answer>46</answer>\n"
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
        original = AutoTokenizer.from_pretrained(dropped)
        assert (
            tokenizer(text)["input_ids"]
            == original(text)["input_ids"]
            == lm.tokenizer(text)["input_ids"]
        )
        assert tokenizer.padding_side == original.padding_side
        before, after = (
            json.loads((f / "generation_config.json").read_text())
            for f in (dropped, tmp_path / "out")
        )
        assert after == before
        assert after["eos_token_id"] == [1, 40]
        assert load(tmp_path / "out").eos_ids == lm.eos_ids

    def test_of_a_generation_config_that_transformers_refuses_to_write(
        self, tmp_path: Path
    ) -> None:
        """Some checkpoints on the hub have one. The export comes after hours of training."""
        policy().export(tmp_path / "hub")
        path = tmp_path / "hub/generation_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": 0.6}))
        load(tmp_path / "hub").export(tmp_path / "run")
        exported = json.loads((tmp_path / "run/generation_config.json").read_text())
        assert exported["temperature"] == 0.6
        load(tmp_path / "run")


class TestEncode:
    def test_beginning_of_text_is_added_once_and_the_generation_prompt_at_the_end(self) -> None:
        lm = Policy(llama(), tokenizer_with_bos(CHAT_TEMPLATE))
        assert lm.encode(CHAT) == [2, 3, 4, 4]
        assert lm.encode(Prompt(id="t", text="ab")) == [2, 3, 4]
        assert lm.encode_response("ab") == [3, 4, 1]

    @pytest.mark.parametrize(
        ("added", "text", "ids"),
        [
            ("<s> $A </s>", "ab", [2, 3, 4]),
            ("$A </s>", "ab", [3, 4]),
            ("<s> $A </s> </s>", "a", [2, 3]),
            ("<s> $A </s>", "", [2]),
        ],
    )
    def test_end_of_text_that_the_tokenizer_appends_is_left_out_of_prompts(
        self, added: str, text: str, ids: list[int]
    ) -> None:
        tokenizer = tokenizer_with_bos(None, added)
        lm = Policy(llama(), tokenizer)
        assert lm.encode(Prompt(id="t", text=text)) == ids
        assert ("</s>" in added) == (tokenizer("b")["input_ids"][-1] == 1)
        rollout = Local(max_tokens=1)
        rollout.sync(lm, iteration=0)
        assert (
            list(
                rollout.generate([Prompt(id="t", text=text)], samples=1, iteration=0)[
                    0
                ].prompt_tokens
            )
            == ids
        )
        assert lm.encode_response("ab") == [3, 4, 1]

    def test_a_template_without_beginning_of_text_gets_none(self) -> None:
        lm = Policy(llama(), tokenizer_with_bos(CHAT_TEMPLATE.replace("{{ bos_token }}", "")))
        assert lm.encode(CHAT) == [3, 4, 4]

    def test_chat_without_a_template_is_rejected(self) -> None:
        with pytest.raises(UserError, match=r"prompt c: .*data\.chat=false"):
            policy().encode(CHAT)

    def test_decode_omits_special_tokens(self) -> None:
        lm = policy()
        assert (
            lm.decode([*lm.encode_response("<answer>1 , 2</answer>"), 0, 0])
            == "<answer>1 , 2</answer>"
        )


GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start>{{ m['role'] }}:{{ m['content'] "
    "}}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant:{% if terse %}b{% endif %}{% endif %}"
)
"""Turns end with a token of their own, not with the tokenizer's `eos_token`."""


def tokenizer_with_turns(template: str | None = GEMMA) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose special tokens <start> and <end>, ids 5 and 6, mark turns."""
    tokenizer = tokenizer_with_bos(template)
    tokenizer.add_tokens([AddedToken("<start>", special=True), AddedToken("<end>", special=True)])
    return tokenizer


class TestEndOfTurn:
    CHAT = Prompt(id="c", messages=[{"role": "user", "content": "ab"}])
    TEXT = Prompt(id="t", text="ab")

    def test_is_the_token_of_the_template_after_chat_messages_only(self) -> None:
        for lm in (
            Policy(llama(), tokenizer_with_turns()),
            ScalarModel.from_policy(Policy(llama(), tokenizer_with_turns())),
        ):
            assert lm.encode_response("ab", CHAT) == [3, 4, 6]
            assert lm.encode_response("ab", self.TEXT) == lm.encode_response("ab") == [3, 4, 1]
            assert lm.encode_response("ab", CHAT, finished=False) == [3, 4]
            assert lm.eos_ids == {1, 6}

    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            (None, None),
            ("{% for m in messages %}{{ m['content'] }} {{ eos_token }}{% endfor %}", 1),
            ("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n\n{% endfor %}", None),
            ("{% for m in messages %}{{ m['role'] }}{% endfor %}", None),
            (
                "{% if messages[-1]['role'] == 'assistant' %}{{ raise_exception('no reply "
                "here') }}{% endif %}",
                None,
            ),
            (GEMMA, 6),
        ],
    )
    def test_of_a_template(self, template: str | None, expected: int | None) -> None:
        tokenizer = tokenizer_with_turns(template)
        assert end_of_turn(tokenizer) == expected
        assert Policy(llama(), tokenizer).encode_response("a", CHAT) == [
            3,
            1 if expected is None else expected,
        ]

    def test_ends_a_sampled_response(self) -> None:
        lm = Policy(llama(), tokenizer_with_turns())
        lm.head = lambda hidden: torch.zeros(*hidden.shape[:-1], 102).index_fill(
            -1, torch.tensor(6), 99.0
        )  # type: ignore[method-assign]
        rollout = Local(max_tokens=4)
        rollout.sync(lm, iteration=0)
        [response] = rollout.generate([CHAT], samples=1, iteration=0)
        assert (list(response.tokens), response.finish, response.text) == ([6], "stop", "")

    def test_ends_the_rows_of_sft_preferences_and_process_rewards(self) -> None:
        lm = Policy(llama(), tokenizer_with_turns())
        meta = {
            "response": "ab",
            "candidates": ("ab", "b"),
            "ranks": (0, 1),
            "finished": (True, False),
        }
        meta |= {"steps": ("a", "b"), "step_labels": (1.0, 0.0)}
        for prompt, end in ((replace(CHAT, meta=meta), 6), (replace(self.TEXT, meta=meta), 1)):
            rows = sft_batch([prompt], lm, 0)
            assert rows.tokens[rows.mask].tolist() == [3, 4, end]
            pairs = collate_preferences([prompt], lm)
            assert [pairs.tokens[0, k][pairs.mask[0, k]].tolist() for k in range(2)] == [
                [3, 4, end],
                [4],
            ]


class TestTemplateVariables:
    CHAT = Prompt(id="c", messages=[{"role": "user", "content": "ab"}])

    def test_reach_the_template_and_stay_with_exports_and_reward_models(
        self, tmp_path: Path
    ) -> None:
        Policy(llama(), tokenizer_with_turns()).export(tmp_path / "plain")
        plain, terse = (
            load(tmp_path / "plain"),
            load(tmp_path / "plain", chat_template_kwargs={"terse": True}),
        )
        assert terse.encode(CHAT) == [*plain.encode(CHAT), 4]
        terse.export(tmp_path / "terse")
        ScalarModel.from_policy(terse).export(tmp_path / "scores")
        for loaded in (
            load(tmp_path / "terse"),
            ScalarModel.load(tmp_path / "scores"),
            HuggingFace(str(tmp_path / "terse"))(),
        ):
            assert loaded.encode(CHAT) == terse.encode(CHAT)
        assert load(tmp_path / "terse", chat_template_kwargs={"terse": False}).encode(
            CHAT
        ) == plain.encode(CHAT)

    @pytest.mark.parametrize("name", ["enable_thinkin", "add_generation_prompt", "tokenize"])
    def test_that_the_template_does_not_use_are_refused(self, name: str, tmp_path: Path) -> None:
        Policy(llama(), tokenizer_with_turns()).export(tmp_path)
        with pytest.raises(
            UserError,
            match="policy.chat_template_kwargs: the chat template of this model does not use "
            f"{name}: drop it",
        ):
            HuggingFace(str(tmp_path), chat_template_kwargs={name: True})()


RAGGED = [
    Prompt(id=f"p{i}", text=("12+34-5=" * 4)[:length]) for i, length in enumerate([1, 9, 4, 17, 2])
]


def trainer_logprobs(lm: Policy, responses: list[Response], temperature: float) -> Tensor:
    """Return the trainer's log-probabilities of all sampled tokens, from one padded batch."""
    width = max(len(r.prompt_tokens) + len(r.tokens) for r in responses)
    tokens = torch.full((len(responses), width), lm.pad_id)
    mask = torch.zeros(len(responses), width, dtype=torch.bool)
    for i, r in enumerate(responses):
        start, end = len(r.prompt_tokens), len(r.prompt_tokens) + len(r.tokens)
        tokens[i, :end] = torch.tensor([*r.prompt_tokens, *r.tokens])
        mask[i, start:end] = True
    with torch.no_grad():
        return lm(tokens, mask, temperature=temperature)[0][mask]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["gpt2_with_dropout", "llama", "checkpointed", "softcapping"])
def test_sampler_and_trainer_logprobs_agree(
    kind: str, training: bool, temperature: float, dropped: Path
) -> None:
    makers: dict[str, Any] = {
        "gpt2_with_dropout": lambda: load(dropped),
        "llama": lambda: policy(llama(attention_dropout=0.5)),
        "checkpointed": lambda: policy(llama(attention_dropout=0.5), gradient_checkpointing=True),
        "softcapping": lambda: policy(HEADS["softcapping"]()),
    }
    lm = makers[kind]().train(training)
    rollout = Local(max_tokens=20, temperature=temperature, seed=5)
    rollout.sync(lm, iteration=0)
    responses = rollout.generate(RAGGED, samples=4, iteration=0)
    sampler_logprobs = torch.tensor([x for r in responses for x in r.behavior_logprobs])
    assert len(sampler_logprobs) > 100
    assert len({tuple(r.tokens) for r in responses}) > 10
    torch.testing.assert_close(
        sampler_logprobs, trainer_logprobs(lm, responses, temperature), rtol=0, atol=1e-4
    )
