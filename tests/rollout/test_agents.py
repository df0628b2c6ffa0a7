"""Responses of programs that send requests: their ids, masks, segments and limits, and that they
are a function of what the programs ask."""

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest
import torch

from rlmods.environment import Agent
from rlmods.environment.endpoint import endpoint
from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.policy.conversation import Conversation
from rlmods.reward import EnvironmentReward
from rlmods.reward.scores import grade
from rlmods.rollout import Local, MultiTurn
from rlmods.rollout.agents import Node
from rlmods.rollout.base import Context, Continuation, EncodedPrompt, TokenRollout
from rlmods.training.collate import collate
from rlmods.training.meter import Meter
from rlmods.training.metrics import log_lengths
from rlmods.training.segments import forward
from rlmods.types import Prompt, Response, Scores, ToolCall
from tests.support.agents import RELEASED, Running
from tests.support.environments import Script, forgetful
from tests.support.tiny_setup import policy

TEXTS = ("1+1=", "22-3=", "7=")
SAID = ["abc", "de"]
AGENTS = "tests.support.agents:"
FUTURE = "ignore:environment=agent. programs send several requests at once"


def prompts(meta: dict[str, Any] | None = None) -> list[Prompt]:
    return [Prompt(id=str(i), text=text, meta=meta or {}) for i, text in enumerate(TEXTS)]


def sample(
    environment: Any,
    *,
    samples: int = 4,
    data: Sequence[Prompt] | None = None,
    model: Policy | None = None,
    **settings: Any,
) -> list[Response]:
    rollout = MultiTurn(Local(**{"max_tokens": 8, "seed": 7} | settings), environment)
    rollout.sync(model or policy(), iteration=3)
    return rollout.generate(prompts() if data is None else data, samples=samples, iteration=3)


def play(name: str, *, data: Sequence[Prompt] | None = None, **options: Any) -> list[Response]:
    """Return responses of a program of `tests.support.agents`."""
    fields = {"max_turns", "max_tokens", "timeout_s", "workers", "parallel", "failure_reward"}
    own = {"max_tokens": 200} | {key: options.pop(key) for key in fields & options.keys()}
    return sample(Agent(agent=f"{AGENTS}{name}", **own), data=data, **options)


def bits(responses: Sequence[Response]) -> list[Any]:
    """Return all that training reads, exactly."""
    return [
        (r.prompt_tokens, r.tokens, r.behavior_logprobs, r.mask, r.cuts, r.turns, r.text, r.finish)
        for r in responses
    ]


def assert_on_policy(responses: Sequence[Response], model: Policy) -> None:
    """Check that the recorded log-probabilities are those that training computes for each token."""
    scores = Scores([0.0] * len(responses))
    group = torch.arange(len(responses))
    rows = collate(responses, scores, group, policy_version=0, pad_id=model.pad_id)
    logprobs = forward(model, rows).logprobs.detach()
    assert int(rows.mask.sum()) > 50
    torch.testing.assert_close(
        logprobs[rows.mask], rows.behavior_logprobs[rows.mask], rtol=0, atol=1e-4
    )


class TestEqualsPlainRollout:
    """A program that says what an environment says gets the responses of the environment."""

    @pytest.mark.parametrize(
        "name", ["script", "plain_script", "delayed_script", "over_http", "over_responses"]
    )
    def test_of_plain_text(self, name: str) -> None:
        data = prompts({"texts": SAID})
        expected = sample(Script(SAID, max_tokens=200), data=data)
        found = play(name, data=data)
        self.assert_equal(found, expected)
        assert {len(r.turns) for r in found} >= {2, 3}

    @pytest.mark.parametrize("max_tokens", [36, 200])
    def test_of_a_chat_whose_template_rewrites_turns(self, max_tokens: int) -> None:
        """The limit does not count what the context after a cut repeats."""
        data = [
            replace(x, text=None, messages=[{"role": "user", "content": x.text or ""}])
            for x in prompts({"texts": SAID})
        ]
        game = Script(SAID, max_tokens=max_tokens)
        expected = sample(game, data=data, model=forgetful(policy()))
        found = play("script", data=data, model=forgetful(policy()), max_tokens=max_tokens)
        self.assert_equal(found, expected)
        assert any(r.cuts for r in found)

    def test_at_limits(self) -> None:
        data = prompts({"texts": SAID * 3})
        found = play("script", data=data, max_turns=2, max_tokens=26)
        expected = sample(Script(SAID * 3, max_turns=2, max_tokens=26), data=data)
        self.assert_equal(found, expected)
        assert {r.finish for r in found} == {"length"}
        assert {r.meta.get("out_of_turns") for r in found} == {None, True}

    def assert_equal(self, found: Sequence[Response], expected: Sequence[Response]) -> None:
        for ours, plain in zip(found, expected, strict=True):
            assert ours.prompt_tokens == plain.prompt_tokens
            assert ours.tokens == plain.tokens
            assert ours.mask == plain.mask
            assert ours.cuts == plain.cuts
            assert ours.text == plain.text
            assert ours.finish == plain.finish
            assert ours.behavior_logprobs == pytest.approx(plain.behavior_logprobs, abs=1e-6)
            spans = [(turn.start, turn.stop, turn.text, turn.raw) for turn in plain.turns]
            assert [(turn.start, turn.stop, turn.text, turn.raw) for turn in ours.turns] == spans
            observed = [[m["content"] for m in turn.observed] for turn in plain.turns]
            assert [[m["content"] for m in turn.observed] for turn in ours.turns] == observed


class TestSegments:
    def test_of_conversations_are_what_was_read_and_sampled(self) -> None:
        model = policy()
        for r in play("forgets"):
            assert r.session is not None
            assert (r.session.requests, r.session.cuts, r.session.branches) == (5, 1, 0)
            assert len(r.cuts) == 1
            texts = [model.decode(r.tokens[turn.start : turn.stop]) for turn in r.turns]
            whole = [*r.prompt_tokens, *r.tokens[: r.cuts[0]]]
            first, second, third, last, end = texts
            said = f"{r.prompt.text}{first}\nab\n{second}\ncd\n{third}"
            assert model.decode(whole) == said
            summary = f"so {r.turns[0].text}{last}\nef\n{end}"
            assert model.decode(r.tokens[r.cuts[0] :]) == summary
            assert r.text == r.turns[-1].text
            assert [turn.reward for turn in r.turns] == [1.0, None, 3.0, 2.0, 4.0]

    def test_are_trained_on_policy(self) -> None:
        assert_on_policy(play("forgets"), policy())

    @pytest.mark.filterwarnings(FUTURE)
    @pytest.mark.parametrize("parallel", [False, True])
    def test_of_parallel_requests_are_branches(self, parallel: bool) -> None:
        responses = play("committee", parallel=parallel)
        assert_on_policy(responses, policy())
        for r in responses:
            assert r.session is not None
            assert (r.session.requests, r.session.cuts, r.session.branches) == (5, 2, 1)
            assert len(r.cuts) == 3
            assert len(r.turns) == 5
            last = r.turns[-1]
            assert r.tokens[last.stop :] == []

    def test_of_equal_requests_differ(self) -> None:
        responses = play("retries", samples=16)
        assert_on_policy(responses, policy())
        turns = [[tuple(r.tokens[t.start : t.stop]) for t in r.turns] for r in responses]
        assert sum(first != second for first, second in turns) > 40
        assert all(r.session and r.session.branches == 1 for r in responses)


def test_a_conversation_may_have_more_turns_than_calls_of_functions() -> None:
    model = policy()
    prompt = Prompt(id="a", text="1")
    node: Node | None = None
    for i in range(3000):
        node = Node(
            parent=node,
            encoded=EncodedPrompt(prompt, [7], 0, 1),
            read=[2 * i],
            num_new=0,
            is_cut=i == 1000,
            conversation=Conversation.begin(model, prompt),
            heard=(),
            observed=(),
            stop=(),
            sample=0,
        )
        node.continuation = Continuation([2 * i + 1], [-1.0], stopped=True)
    assert node is not None
    assert node.context() == list(range(2000, 5999))


@pytest.mark.slow
class TestRepeats:
    def test_whatever_the_moments_of_requests(self) -> None:
        data = prompts({"texts": SAID})
        assert bits(play("delayed_script", data=data)) == bits(play("script", data=data))

    def test_whatever_the_moments_of_parallel_requests(self) -> None:
        expected = bits(play("committee", parallel=True))
        for _ in range(3):
            assert bits(play("delayed_committee", parallel=True)) == expected

    def test_whatever_runs_at_once(self) -> None:
        data = prompts({"texts": SAID})
        expected = [r.tokens for r in play("script", data=data)]
        assert [r.tokens for r in play("script", data=data, workers=1)] == expected
        assert [r.tokens for r in play("script", data=data, batch_size=3)] == expected
        assert [r.tokens for r in play("script", data=data, workers=5)] == expected

    def test_but_not_in_another_occurrence_or_iteration(self) -> None:
        rollout = MultiTurn(Local(max_tokens=8, seed=7), Agent(agent=f"{AGENTS}script"))
        rollout.sync(policy(), iteration=3)
        first = rollout.generate(prompts(), samples=4, iteration=3)
        again = rollout.generate(prompts(), samples=4, iteration=3)
        other = rollout.generate(prompts(), samples=4, iteration=4)
        tokens = [[tuple(r.tokens) for r in responses] for responses in (first, again, other)]
        assert len({*tokens[0], *tokens[1], *tokens[2]}) == 36

    def test_several_requests_at_once_are_noted(self) -> None:
        with pytest.warns(UserWarning, match=r"type environment\.parallel=true"):
            play("committee")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            play("committee", parallel=True)


class TestWorkers:
    @pytest.fixture(autouse=True)
    def count(self) -> None:
        Running.now = 0
        Running.most = 0

    def test_no_more_programs_run_at_once(self) -> None:
        responses = play("counted", data=prompts({"texts": SAID}), workers=2)
        assert len(responses) == 12
        assert Running.most == 2

    def test_programs_end_with_an_error_of_the_run(self) -> None:
        def fail(text: str) -> str:
            raise ZeroDivisionError

        agent = Agent(agent=f"{AGENTS}counted", timeout_s=60.0)
        rollout = MultiTurn(Says(reply=fail), agent)
        rollout.sync(policy(), iteration=0)
        with pytest.raises(ZeroDivisionError):
            rollout.generate(prompts(), samples=2, iteration=0)
        assert Running.most == 6
        end = time.monotonic() + 10
        while Running.now and time.monotonic() < end:
            time.sleep(0.01)
        assert Running.now == 0


@dataclass
class Says(TokenRollout):
    """Says what `reply` makes of the text so far, and ends with EOS."""

    reply: Callable[[str], str] = str

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        model = self.synced
        found = []
        for context in contexts:
            text = self.reply(model.decode(context.tokens, skip_special_tokens=False))
            ids = [*model.encode_response(text, finished=False), model.eos_id]
            continuation = Continuation(ids, [-1.0] * len(ids), stopped=True)
            found.append([continuation for _ in context.samples])
        return found


CHATML = (
    "{% if tools %}<tools>{{ tools[0]['function']['name'] }}</tools>{% endif %}"
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}"
    "{% for c in m['tool_calls'] %}<tool_call>{{ c['function']['name'] }}</tool_call>{% endfor %}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""A chat template with tools in the format `hermes`."""


class TestTools:
    def play(self, model: Policy, reply: Callable[[str], str]) -> Response:
        agent = Agent(agent=f"{AGENTS}uses_tool", max_tokens=400)
        rollout = MultiTurn(Says(max_tokens=200, reply=reply), agent)
        rollout.sync(model, iteration=0)
        data = [Prompt(id="a", text="1+2=")]
        [response] = rollout.generate(data, samples=1, iteration=0)
        return response

    def test_in_the_format_of_the_template(self) -> None:
        def reply(text: str) -> str:
            call = 'x<tool_call>{"name": "add", "arguments": {"terms": "1 2"}}</tool_call>'
            return "3" if "[tool]3" in text else call

        model = policy()
        model.tokenizer.chat_template = CHATML
        response = self.play(model, reply)
        text = model.decode([*response.prompt_tokens, *response.tokens], skip_special_tokens=False)
        assert text == (
            "<tools>add</tools>[user]1+2=[assistant]"
            'x<tool_call>{"name": "add", "arguments": {"terms": "1 2"}}</tool_call><eos>'
            "[tool]3[assistant]3<eos>"
        )
        assert response.cuts == ()
        assert [turn.reward for turn in response.turns] == [None, 1.0]
        assert response.turns[0].calls == (ToolCall("add", {"terms": "1 2"}),)

    def test_in_tags(self) -> None:
        def reply(text: str) -> str:
            return "3" if "<result>3</result>" in text else "<add>1 2</add>"

        model = policy()
        response = self.play(model, reply)
        text = model.decode([*response.prompt_tokens, *response.tokens], skip_special_tokens=False)
        assert text == "1+2=<add>1 2</add><eos>\n<result>3</result>\n3<eos>"


def test_choices_are_branches_and_the_chosen_one_goes_on() -> None:
    model = policy()
    responses = play("chooses")
    assert_on_policy(responses, model)
    for r in responses:
        assert r.session is not None
        assert (r.session.requests, r.session.cuts, r.session.branches) == (2, 0, 2)
        assert len(r.turns) == 4
        assert len(r.cuts) == 2
        assert len({turn.text for turn in r.turns[:3]}) > 1
        last = r.turns[-1]
        assert last.stop - last.start <= 5
        assert set(last.text[:-1]).isdisjoint("01234")
        assert r.tokens[: r.cuts[0]] != r.tokens[r.cuts[1] + len(r.prompt_tokens) : last.start]


def test_texts_never_become_control_tokens() -> None:
    model = policy()
    for r in play("spells_control_tokens"):
        read = [i for i, is_sampled in zip(r.tokens, r.mask or (), strict=True) if not is_sampled]
        control = {model.eos_id, model.pad_id}
        ended = [turn for turn in r.turns if turn.finish == "length"]
        assert len(control.intersection(read)) <= len(ended)
        assert "<eos><pad>?" in model.decode(r.tokens, skip_special_tokens=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:environment=agent. .* had no key of a running session")
def test_hostile_clients_beside_a_run_change_nothing() -> None:
    data = prompts({"texts": SAID})
    expected = bits(play("script", data=data))
    url = endpoint("127.0.0.1", 0).base_url
    stopped = threading.Event()
    statuses: set[int] = set()

    def attack(i: int) -> None:
        headers = {"Authorization": f"Bearer {i}"}
        while not stopped.is_set():
            with suppress(httpx2.HTTPError):
                body = {"messages": [{"role": "user", "content": "x" * i * 1000}]}
                reply = httpx2.post(f"{url}/chat/completions", headers=headers, json=body)
                statuses.add(reply.status_code)

    with ThreadPoolExecutor(8) as pool:
        for i in range(8):
            pool.submit(attack, i)
        try:
            for name in ("delayed_script", "over_http"):
                assert bits(play(name, data=data)) == expected
        finally:
            stopped.set()
    Agent(agent=f"{AGENTS}script").notes()
    assert statuses == {401}


@pytest.mark.slow
class TestFailures:
    def play(self, **options: Any) -> list[Response]:
        data = [Prompt(id=str(i), text="1+1=") for i in range(6)]
        return play("every_third_fails", data=data, timeout_s=1.0, max_turns=4, **options)

    def test_are_recorded(self) -> None:
        responses = self.play(samples=1)
        records = [r.session for r in responses]
        kinds = [record and record.failure for record in records]
        assert kinds == ["crash", "timeout", "silent", "crash", None, None]
        errors = [record and record.error for record in records]
        assert errors[0] == "KeyError: 'no such thing'"
        assert errors[1] == "no request and no end within 1 s"
        assert errors[3] == (
            "ValueError: returned 'well done': a reward is a finite number, a list of them, or None"
        )
        assert responses[4].finish == "length"
        assert records[4] is not None
        assert records[4].requests == 4
        assert records[4].refused == 1
        assert [len(r.tokens) > 0 for r in responses] == [False, False, False, True, True, True]

    def test_are_not_scored_or_get_their_own_reward(self) -> None:
        responses = self.play(samples=1)
        assert grade(EnvironmentReward(), responses).values == [None] * 5 + [0.5]
        responses = self.play(samples=1, failure_reward=-1.0)
        scores = grade(EnvironmentReward(by_turn=True), responses)
        assert scores.values == [-1.0] * 4 + [None, 0.5]
        assert scores.correct == [False] * 4 + [None, False]
        assert scores.tokens is not None
        assert scores.tokens[3] == [None] * (len(responses[3].tokens) - 1) + [-1.0]

        def constant(responses: Sequence[Response]) -> list[float]:
            return [3.0] * len(responses)

        assert grade(constant, responses).values == [-1.0] * 4 + [3.0, 3.0]

    def test_of_all_sessions_are_an_error(self) -> None:
        with pytest.raises(
            UserError, match=r"all 12 sessions of .*:crashes failed, the first by crash: KeyError"
        ):
            play("crashes")

    def test_a_plain_function_does_not_hold_up_the_run(self) -> None:
        with pytest.raises(UserError, match="the first by timeout: no request and no end within"):
            play("sleeps", timeout_s=0.1)

    def test_a_plain_function_that_hangs_is_left_and_counted(self) -> None:
        """The others go on, and the run ends while it still hangs."""
        data = [Prompt(id=f"{name}", text="1+1=") for name in ("hangs", "ends", "hangs too")]
        before = time.monotonic()
        try:
            responses = play("may_hang", data=data, samples=2, timeout_s=0.5)
            took = time.monotonic() - before
        finally:
            RELEASED.set()
        assert took < 20
        kinds = [r.session and r.session.failure for r in responses]
        assert kinds == ["timeout", "timeout", None, None, "timeout", "timeout"]
        assert [len(r.turns) for r in responses] == [1] * 6
        meter = Meter()
        log_lengths(meter, "train", responses)
        assert meter.compute()["train/timeout_fraction"] == pytest.approx(4 / 6)
        assert grade(EnvironmentReward(), responses).values == [None, None, 1.0, 1.0, None, None]

    def test_a_program_that_asks_again_after_each_refusal_is_ended(self) -> None:
        with pytest.raises(UserError, match="the first by timeout: no request and no end within"):
            play("stubborn", timeout_s=0.3, max_turns=2, data=prompts()[:2], samples=1)

    def test_rewards_of_turns_that_were_not_answered_are_a_crash(self) -> None:
        with pytest.raises(UserError, match="the first by crash: returned 2 rewards for 1 turn"):
            play("gives_more_rewards_than_turns")

    def test_of_a_single_prompt_does_not_end_the_run(self) -> None:
        """It may be the last one of the validation, or a hard one."""
        for r in play("sleeps", timeout_s=0.1, data=prompts()[:1], samples=2):
            assert r.session is not None
            assert r.session.failure == "timeout"

    def test_a_refusal_is_an_exception_of_the_program(self) -> None:
        for r in play("ignores_refusals", max_tokens=30):
            assert r.session is not None
            assert r.session.failure is None
            assert r.finish == "length"
            assert r.turns[-1].reward == 0.25
            assert sum(turn.stop - turn.start for turn in r.turns) <= 30
