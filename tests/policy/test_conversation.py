"""Observations extend the ids of a conversation by what the chat template writes, and never hold a
special token that it does not write."""

import copy

import pytest
from hypothesis import given, settings, strategies as st

from rlmods.errors import UserError
from rlmods.policy.conversation import Conversation
from rlmods.policy.text import REMOVED
from rlmods.types import Prompt
from tests.support.control_tokens import ADDED, CHAT, SPECIAL, TOOL_TOKENS, Model

CHATML = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace(
    "{{ m['content'] }}",
    "{{ m['content'] if loop.last or m['role'] != 'assistant' else "
    "m['content'].split('</think>')[-1] }}",
)
"""Leaves out the thoughts of earlier turns."""
ROLES = CHATML.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') "
    "}}{% endif %}",
)
OPENED = THINKING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""Begins the thoughts of a turn, and leaves out those of earlier ones."""
WHOLE = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""Begins the thoughts of a turn, and writes those of earlier turns if they have a beginning."""
FIELD = WHOLE.replace(
    "{{ m['content'] }}",
    "{% if m['role'] == 'assistant' %}<think>\n{{ m['reasoning_content'] | default('') "
    "}}\n</think>\n\n{% endif %}{{ m['content'] }}",
)
"""Begins the thoughts of a turn, and writes those of earlier turns if they are in a field of their
own."""
PROMPT = Prompt(id="a", messages=[{"role": "user", "content": "1+1?"}])
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def user(content: str, role: str = "user") -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def chat(template: str = CHATML) -> tuple[Model, Conversation]:
    model = Model(template)
    model.eos_ids = frozenset({model.id("<|end|>"), model.id("<|im_end|>")})
    return model, Conversation.begin(model, PROMPT)


class TestChat:
    @pytest.mark.parametrize("template", [CHATML, CHAT])
    def test_ids_are_those_of_the_whole_conversation(self, template: str) -> None:
        """Where contents and template do not merge, encoding all of it at once gives the same
        ids."""
        model, conversation = chat(template)
        ids = model.encode(PROMPT)
        for reply, observation in (("2", "no"), ("it is 3", "yes: 3"), ("<think>x</think>2", "ok")):
            ids += [*model._ids(reply), model.id("<|im_end|>")]
            observed = conversation.observe(model, reply, True, user(observation))
            assert observed.context is None
            ids += observed.tokens
        messages = [
            *PROMPT.messages,
            *(
                m
                for r, o in (("2", "no"), ("it is 3", "yes: 3"), ("<think>x</think>2", "ok"))
                for m in ({"role": "assistant", "content": r}, {"role": "user", "content": o})
            ),
        ]  # type: ignore[misc]
        assert model.text(ids) == model.text(model.encode(Prompt(id="b", messages=messages)))

    def test_a_turn_that_was_not_ended_is_ended_by_the_observation(self) -> None:
        model, conversation = chat()
        ended, cut = (
            copy.deepcopy(conversation).observe(model, "2", ended, user("no")).tokens
            for ended in (True, False)
        )
        assert cut == [model.id("<|im_end|>"), *ended]

    def test_a_template_that_rewrites_earlier_turns_gives_a_context_of_its_own(self) -> None:
        """The ids of the conversation as the template writes it, of which the last are those of the
        observation."""
        model, conversation = chat(THINKING)
        so_far: list[dict[str, str]] = [*PROMPT.messages]  # type: ignore[list-item]
        for reply in ("<think>hm</think>2", "4", "<think>so</think>3"):
            observed = conversation.observe(model, reply, True, user("no"))
            so_far += [{"role": "assistant", "content": reply}, *user("no")]
            assert (observed.context is None) == ("think" not in reply)
            assert (
                model.text(observed.tokens)
                == "\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n"
            )
            if observed.context is not None:
                assert observed.context == model.encode(Prompt(id="b", messages=so_far))
                assert observed.context[-len(observed.tokens) :] == observed.tokens
                assert (
                    observed.context[: len(model.encode(PROMPT)) - 2] == model.encode(PROMPT)[:-2]
                )

    def test_a_template_without_the_reply_gives_one_too(self) -> None:
        model, conversation = chat(
            CHATML.replace(
                "{{ m['content'] }}", "{{ '' if m['role'] == 'assistant' else m['content'] }}"
            )
        )
        observed = conversation.observe(model, "2", True, user("no"))
        assert observed.context == observed.tokens
        assert "assistant\n<|im_end|>" in model.text(observed.tokens)

    @pytest.mark.parametrize("template", [WHOLE, FIELD])
    def test_thoughts_that_the_template_begins_are_no_cut(self, template: str) -> None:
        model, conversation = chat(template)
        for reply, answer in (("hm\n</think>\n\n2", "no"), ("well\n</think>\n\n3", "yes")):
            observed = conversation.observe(model, reply, True, user(answer))
            assert observed.context is None
            assert (
                model.text(observed.tokens)
                == f"\n<|im_start|>user\n{answer}<|im_end|>\n<|im_start|>assistant\n<think>\n"
            )
        assert conversation.text.count("hm\n</think>\n\n2<|im_end|>") == 1

    def test_thoughts_that_it_begins_and_leaves_out_later_are_a_cut(self) -> None:
        model, conversation = chat(OPENED)
        observed = conversation.observe(model, "hm\n</think>\n\n2", True, user("no"))
        assert observed.context is not None
        assert "hm" not in model.text(observed.context)
        assert model.text(observed.context).endswith(
            "assistant\n\n\n2<|im_end|>\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n<think>\n"
        )

    def test_thoughts_of_the_policy_itself_may_be_in_a_field(self) -> None:
        model, conversation = chat(
            FIELD.replace("assistant\n<think>\n{% endif %}", "assistant\n{% endif %}")
        )
        assert (
            conversation.observe(model, "<think>\nhm\n</think>\n\n2", True, user("no")).context
            is None
        )
        assert (
            conversation.observe(model, "<think>\n</think>\n\n3", True, user("no")).context is None
        )

    def test_tools_are_shown_by_the_template(self) -> None:
        model, _ = chat()
        assert '"name": "f"' in model.text(model.encode(PROMPT, [TOOL]))
        conversation = Conversation.begin(model, PROMPT, [TOOL])
        observed = conversation.observe(model, "2", True, user("3", "tool"))
        assert (
            model.text(observed.tokens)
            == "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_a_role_that_the_template_refuses_is_an_error(self) -> None:
        model, conversation = chat(ROLES)
        with pytest.raises(
            UserError,
            match=r"the reply of the environment: the chat template of this model fails .*no tools",
        ):
            conversation.observe(model, "2", True, user("3", "tool"))

    def test_a_copy_goes_on_by_itself(self) -> None:
        model, conversation = chat()
        conversation.observe(model, "2", True, user("no"))
        branch = copy.deepcopy(conversation)
        first, second = (
            conversation.observe(model, "3", True, user("a")),
            branch.observe(model, "3", True, user("a")),
        )
        assert first == second
        conversation.observe(model, "4", True, user("b"))
        assert len(branch.messages or ()) + 2 == len(conversation.messages or ())


HOSTILE = st.lists(
    st.sampled_from(
        [*SPECIAL, *ADDED, *TOOL_TOKENS, "<|im_", "end|>", "<", "x", "\n", "\ue000", "\x00", "é"]
    ),
    max_size=8,
)


class TestText:
    @settings(max_examples=60, deadline=None)
    @given(HOSTILE)
    def test_never_becomes_a_special_or_added_token(self, pieces: list[str]) -> None:
        text = "".join(pieces)
        model, conversation = chat()
        plain = copy.deepcopy(conversation).observe(model, "2", True, user("")).tokens
        observed = conversation.observe(model, "2", True, user(text)).tokens
        added = set(model._added_tokens.values())
        assert [i for i in observed if i in added] == [i for i in plain if i in added]
        assert model.text(observed) == model.text(plain).replace("user\n", "user\n" + text, 1)

    @settings(max_examples=60, deadline=None)
    @given(HOSTILE)
    def test_neither_in_a_context_of_its_own(self, pieces: list[str]) -> None:
        """Observations spell no added token in it, and turns, which may repeat what a tool printed,
        no control token."""
        text, added = "".join(pieces), set(Model()._added_tokens.values())
        model, conversation = chat(THINKING)
        conversation.observe(model, "2", True, user(text))
        observed = conversation.observe(model, "<think></think>" + text, True, user(text))
        if "</think>" in text:
            return
        assert observed.context is not None
        assert (
            len(model.controls(observed.context))
            == len(model.controls(model.encode(PROMPT))) + 4 * 2
        )
        assert not added & set(observed.tokens) - {model.id("<|im_start|>"), model.id("<|im_end|>")}
        assert model.text(observed.context).count(text) >= 3

    @settings(max_examples=60, deadline=None)
    @given(HOSTILE)
    def test_of_plain_prompts_neither(self, pieces: list[str]) -> None:
        text, model = "".join(pieces), Model(None)
        observed = (
            Conversation.begin(model, Prompt(id="a", text="1+1="))
            .observe(model, "2", True, user(text))
            .tokens
        )
        assert not set(model._added_tokens.values()) & set(observed)
        assert model.text(observed) == f"\n{text}\n"

    def test_of_which_the_normalizer_makes_a_token_is_removed(self) -> None:
        from tokenizers import normalizers

        model = Model(CHATML, normalizers.Replace("@", "<tool_call>"))
        model.eos_ids = frozenset({model.id("<|im_end|>")})
        observed = Conversation.begin(model, PROMPT).observe(model, "2", True, user("a@b")).tokens
        assert REMOVED in model.text(observed)
        assert model.id("<tool_call>") not in observed
