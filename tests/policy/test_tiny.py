"""The tiny policy: its tokenizer, random initialisation, and the accuracy of the shipped
weights."""

import string
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch

from rlmods.data import Arithmetic
from rlmods.errors import UserError
from rlmods.policy import Tiny
from rlmods.policy.scalar import SHIPPED as REWARD_MODELS
from rlmods.policy.tiny import FOLDER, WORDS, character_tokenizer
from rlmods.reward.accuracy import verify
from rlmods.rollout import Local
from rlmods.types import Prompt

SHIPPED = get_args(get_type_hints(Tiny)["weights"])
shipped = pytest.mark.skipif(
    not (FOLDER / "tiny" / "config.json").exists(),
    reason="no weights in rlmods/policy/weights/tiny",
)


class TestCharacterTokenizer:
    PRINTABLE = string.printable.split("\t")[0]

    @pytest.mark.parametrize(
        "text",
        ["12+34=", "<think>a b\n\nC</think> <answer>-5.0</answer>", PRINTABLE, "a<b>c</d>", " "],
    )
    def test_round_trip(self, text: str) -> None:
        tokenizer = character_tokenizer()
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text

    def test_tags_and_characters_are_one_token_each(self) -> None:
        tokenizer = character_tokenizer()
        assert [tokenizer(word)["input_ids"] for word in WORDS[2:]] == [[2], [3], [4], [5]]
        assert len(tokenizer("<answer>46</answer>")["input_ids"]) == 4
        assert len(tokenizer("12 + 3")["input_ids"]) == 6

    def test_an_unknown_character_is_a_question_mark(self) -> None:
        tokenizer = character_tokenizer()
        assert tokenizer.decode(tokenizer("1é2\t")["input_ids"]) == "1?2?"

    def test_characters_that_it_cannot_spell_are_named(self) -> None:
        model = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
        prompts = [
            Prompt(id="a", text="2×3=?"),
            Prompt(id="b", messages=[{"role": "user", "content": "é\t"}]),
        ]
        with pytest.warns(
            UserWarning, match=r"4 characters .* '\\t' as '\?', '½' as '\?', '×' as '\?'; for"
        ):
            model.warn_of_unknown_characters(["½"], prompts)
        model.warn_of_unknown_characters(["2?"], [Prompt(id="c", text=self.PRINTABLE)])

    def test_decoding_omits_padding_and_end_of_text(self) -> None:
        assert (
            character_tokenizer().decode([0, 0, 4, 6, 5, 1, 0], skip_special_tokens=True)
            == "<answer>0</answer>"
        )


class TestRandom:
    SMALL = Tiny(pretrained=False, hidden_size=64, num_layers=1, context_length=32)

    def weights(self, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in self.SMALL().parameters()])

    def test_depends_on_the_seed(self) -> None:
        assert torch.equal(self.weights(1), self.weights(1))
        assert not torch.equal(self.weights(1), self.weights(2))

    def test_has_the_requested_size(self) -> None:
        lm = self.SMALL()
        config = lm.model.config
        assert (config.hidden_size, config.num_hidden_layers, lm.context_length) == (64, 1, 32)
        assert config.vocab_size == len(lm.tokenizer)
        assert lm.eos_ids == {1}
        assert lm.pad_id == 0

    def test_experts_replace_the_dense_layers(self) -> None:
        lm = replace(self.SMALL, num_experts=4)()
        assert (lm.routers.num_experts, lm.routers.num_chosen, len(lm.routers.modules)) == (4, 2, 1)
        assert not self.SMALL().routers

    def test_a_size_with_shipped_weights_is_rejected(self) -> None:
        with pytest.raises(
            UserError,
            match=r"policy\.num_layers=2 is for random weights: type policy\.pretrained=false",
        ):
            Tiny(num_layers=2)()


@shipped
class TestShipped:
    def test_weights_are_small(self) -> None:
        files = list(FOLDER.rglob("*.safetensors"))
        assert {file.parent.name for file in files} == {*SHIPPED, *REWARD_MODELS}
        assert sum(file.stat().st_size for file in files) < 12 * 2**20

    @pytest.mark.parametrize("weights", SHIPPED)
    def test_models_have_at_most_six_million_parameters(self, weights: str) -> None:
        policy = Tiny(weights=weights)()
        assert sum(x.numel() for x in policy.parameters()) <= 6_000_000
        assert bool(policy.routers) == (weights == "experts")

    def test_saved_tokenizer_equals_the_one_in_code(self) -> None:
        text = "".join(WORDS[2:]) + "12+34=\n Zz~é"
        assert Tiny()().tokenizer(text)["input_ids"] == character_tokenizer()(text)["input_ids"]

    @pytest.mark.slow
    def test_solves_some_but_not_all_validation_prompts(self) -> None:
        prompts = Arithmetic()().val
        assert {p.meta["level"] for p in prompts} == {2}
        rollout = Local(max_tokens=16, temperature=0.0)
        rollout.sync(Tiny()(), iteration=0)
        responses = rollout.generate(prompts, samples=1, iteration=0)
        num_correct = sum(verify(r.text, str(r.prompt.answer)) for r in responses)
        assert 0.2 <= num_correct / len(prompts) <= 0.6
