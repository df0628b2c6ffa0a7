"""Lengths of rows: only what a bound does not decide is encoded, with the same result."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import normalizers

from rlmods.errors import UserError
from rlmods.policy import Tiny
from rlmods.rollout import Local, MultiTurn
from rlmods.rollout.turns import num_added_tokens
from rlmods.training import lengths
from rlmods.training.lengths import (
    check_context,
    check_room,
    forward_length,
    length_above,
    longest_rows,
    longest_texts,
    row_bound,
    row_length,
    short_prompts,
)
from rlmods.types import Prompt
from tests.support.control_tokens import CHAT, Model

NORMALIZERS = {"none": None, "NFC": normalizers.NFC()}
MODELS = {name: Model(normalizer=part) for name, part in NORMALIZERS.items()}
TEXTS = st.text(st.sampled_from("ab <é\u0958\u1f82|im_end|>\n") | st.characters(codec="utf-8"))
ROWS = st.tuples(TEXTS, st.booleans(), st.lists(TEXTS, max_size=3))


def row_of(text: str, is_chat: bool, candidates: list[str]) -> Prompt:
    meta = {"candidates": candidates}
    if not is_chat:
        return Prompt(id="p", text=text, meta=meta)
    return Prompt(id="p", messages=[{"role": "user", "content": text}], meta=meta)


def small() -> Any:
    return Tiny(pretrained=False, hidden_size=32, num_layers=1, context_length=16)()


class Counted(Model):
    """Counts encodings."""

    num_encoded = 0
    context_length = 64

    def encode(self, *args: Any, **options: Any) -> list[int]:
        self.num_encoded += 1
        return super().encode(*args, **options)


def texts(*sizes: int) -> list[Prompt]:
    return [Prompt(id=str(i), text="x" * size) for i, size in enumerate(sizes)]


class TestBound:
    @pytest.mark.parametrize("name", MODELS)
    @given(drawn=ROWS, columns=st.sampled_from([(), ("candidates",)]))
    @settings(max_examples=200, deadline=None)
    def test_is_never_exceeded(self, name: str, drawn: Any, columns: tuple[str, ...]) -> None:
        row = row_of(*drawn)
        bound = row_bound(MODELS[name], row, columns)
        assert bound is not None
        assert row_length(MODELS[name], row, columns) <= bound

    def test_is_reached_by_characters_that_the_normalizer_divides(self) -> None:
        prompt = Prompt(id="p", text="\U0001d160")
        assert MODELS["NFC"].token_bound(prompt) == len(MODELS["NFC"].encode(prompt)) == 12

    def test_is_exact_for_a_tokenizer_of_characters(self) -> None:
        policy = small()
        for text in ("1+2=", "", "12"):
            prompt = Prompt(id="p", text=text)
            assert policy.token_bound(prompt) == len(policy.encode(prompt))

    @pytest.mark.parametrize(
        "content", ["{{ m['content'] * 2 }}", "{{ m['content'] | tojson }}", "{{ missing() }}"]
    )
    def test_a_template_that_does_not_write_contents_as_they_are(self, content: str) -> None:
        model = Model(CHAT.replace("{{ m['content'] | trim }}", content))
        assert (
            model.token_bound(Prompt(id="p", messages=[{"role": "user", "content": "x"}])) is None
        )

    def test_messages_with_other_fields(self) -> None:
        message = {"role": "user", "content": "x", "name": "y"}
        assert Model().token_bound(Prompt(id="p", messages=[message])) is None

    def test_a_normalizer_that_writes_longer_texts(self) -> None:
        model = Model(normalizer=normalizers.NFKC())
        prompt = Prompt(id="p", text="\ufdfa")
        assert len(model.encode(prompt)) > 3 * len("\ufdfa".encode())
        assert model.token_bound(prompt) is None


class TestLimit:
    @given(drawn=ROWS, limit=st.integers(0, 40), columns=st.sampled_from([(), ("candidates",)]))
    @settings(max_examples=200, deadline=None)
    def test_equals_the_encoded_length(
        self, drawn: Any, limit: int, columns: tuple[str, ...]
    ) -> None:
        row = row_of(*drawn)
        model = MODELS["none"]
        length = row_length(model, row, columns)
        assert length_above(model, row, limit, columns) == (length if length > limit else 0)

    def test_encodes_what_the_bound_does_not_decide(self) -> None:
        model = Counted()
        assert [p.id for p in short_prompts(model, texts(3, 9, 4, 8), 8)] == ["0", "2", "3"]
        assert model.num_encoded == 1

    def test_a_known_length_is_not_looked_at_again(self) -> None:
        model = Counted()
        check_context(model, texts(30, 60), 10, known=54)
        assert not model.num_encoded
        with pytest.raises(UserError, match="prompt 1 has 60 tokens"):
            check_context(model, texts(30, 60), 10, known=55)

    def test_the_limit_of_an_engine_counts(self) -> None:
        rollout = SimpleNamespace(max_tokens=5, max_length=10)
        check_room(small(), rollout, [Prompt(id="p", text="12345")], filters=False)
        with pytest.raises(UserError, match=r"6 tokens; .* exceeds rollout\.max_length of 10"):
            check_room(small(), rollout, [Prompt(id="p", text="123456")], filters=False)


class TestLongest:
    def test_equals_all_rows_sorted(self) -> None:
        model = Model()
        rows = texts(3, 9, 4, 8)
        assert [p.id for p in longest_rows(model, rows, 2)] == ["1", "3"]
        assert longest_texts(model, rows, (), None) == (9, 1)

    def test_candidates_are_padded_to_the_longest(self) -> None:
        model = Model()
        pair = Prompt(id="pair", text="x", meta={"candidates": ["x", "xxxx"]})
        single = Prompt(id="single", text="x" * 8, meta={"candidates": ["x"]})
        assert forward_length(model, pair, ("candidates",)) == 2 * (1 + 4 + 1)
        assert forward_length(model, pair, ()) == 1 + 1
        assert longest_rows(model, [single, pair], 1, ("candidates",)) == [pair]
        assert longest_texts(model, [single, pair], ("candidates",), None) == (8, 5)

    def test_encodes_a_part_of_a_large_data_set(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(lengths, "NUM_ENCODED", 4)
        model = Counted()
        rows = texts(*range(20), 50, *range(20))
        assert [len(p.text or "") for p in longest_rows(model, rows, 3)] == [50, 19, 19]
        assert model.num_encoded == 4


class Described:
    """An environment whose prompts begin with instructions."""

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Any:
        instructed = Prompt(id=prompt.id, text=f"1234{prompt.text}")
        return SimpleNamespace(prompt=instructed, tools=(), reply=None)


class TestContext:
    def test_prompt_and_answer_have_to_fit(self) -> None:
        prompts = [Prompt(id="short", text="1"), Prompt(id="long", text="1" * 11)]
        check_context(small(), prompts, 5)
        with pytest.raises(
            UserError,
            match=r"prompt long has 11 tokens; .*context of 16: .* smaller rollout\.max_tokens",
        ):
            check_context(small(), prompts, 6)
        with pytest.raises(
            UserError,
            match=r"type data\.max_prompt_tokens=10 to leave out 1 of 2 prompts, or a smaller "
            r"rollout\.max_tokens",
        ):
            check_context(small(), prompts, 6, filters=True)
        with pytest.raises(
            UserError, match=r"shorten the prompt or type a smaller rollout\.max_tokens"
        ):
            # it would leave out every prompt
            check_context(small(), prompts[1:], 6, filters=True)

    def test_an_empty_prompt(self) -> None:
        with pytest.raises(UserError, match="prompt nothing is empty"):
            check_context(small(), [Prompt(id="nothing", text="")], 1)

    def test_what_an_environment_adds_counts(self) -> None:
        policy, prompt = small(), Prompt(id="short", text="1")
        check_context(policy, [prompt], 12, num_added=3)
        with pytest.raises(
            UserError,
            match=r"prompt short has 4 tokens; .*: shorten the prompt or type a smaller "
            r"environment\.max_tokens",
        ):
            check_context(policy, [prompt], 13, "environment.max_tokens", num_added=3)
        rollout = MultiTurn(Local(), Described())
        assert num_added_tokens(policy, rollout, [prompt, prompt]) == 4
        assert (
            num_added_tokens(policy, rollout, [])
            == num_added_tokens(policy, Local(), [prompt])
            == 0
        )
