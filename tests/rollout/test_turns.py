"""Responses of several turns: their ids, masks, limits, and that each is a function of its key."""

import math
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from rlmods.environment import GuessNumber, SingleTurn
from rlmods.errors import UserError
from rlmods.needs import EnvironmentNeeds
from rlmods.policy.conversation import Conversation
from rlmods.reward import EnvironmentReward
from rlmods.rollout import Local, MultiTurn
from rlmods.rollout.base import Continuation
from rlmods.rollout.turns import Threads, num_added_tokens, over_turns
from rlmods.training.collate import collate
from rlmods.training.evaluation import with_settings
from rlmods.training.meter import Meter
from rlmods.training.turns import log_turns
from rlmods.types import Prompt, Reply, Response, Scores, ToolCall, Turn
from tests.support.environments import Echo, Lines, Script
from tests.support.tiny_setup import policy

PROMPTS = [Prompt(id=str(i), text=text) for i, text in enumerate(("1+1=", "22-3=", "7="))]


def sample(
    environment: Any,
    *,
    samples: int = 4,
    iteration: int = 3,
    prompts: Sequence[Prompt] = PROMPTS,
    **settings: Any,
) -> list[Response]:
    rollout = MultiTurn(Local(**{"max_tokens": 8, "seed": 7} | settings), environment)
    rollout.sync(policy(), iteration=iteration)
    return rollout.generate(prompts, samples=samples, iteration=iteration)


def ids(responses: Sequence[Response]) -> list[tuple[int, ...]]:
    return [tuple(r.tokens) for r in responses]


class TestTokens:
    def test_are_those_sampled_and_observed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is decoded and encoded again: the sampled ids are the engine's, and the others
        the observation's."""
        said: list[list[int]] = []
        extend = Local.extend

        def spy(self: Local, contexts: Any, *, iteration: int) -> Any:
            found = extend(self, contexts, iteration=iteration)
            said.extend(c.tokens for row in found for c in row)
            return found

        monkeypatch.setattr(Local, "extend", spy)
        responses = sample(Script(["abc", "de"], max_tokens=100))
        model = policy()
        assert {len(r.turns) for r in responses} > {3}
        for r in responses:
            assert r.mask is not None
            assert len(r.tokens) == len(r.mask) == len(r.behavior_logprobs) == r.turns[-1].stop
            for i, turn in enumerate(r.turns):
                assert list(r.tokens[turn.start : turn.stop]) in said
                assert all(r.mask[turn.start : turn.stop])
                stop = r.turns[i + 1].start if i + 1 < len(r.turns) else len(r.tokens)
                observed = r.tokens[turn.stop : stop]
                assert model.decode(observed, skip_special_tokens=False) == (
                    "" if i + 1 == len(r.turns) else ["\nabc\n", "\nde\n"][i]
                )
                assert not any(r.mask[turn.stop : stop])
                assert not any(r.behavior_logprobs[turn.stop : stop])
            assert r.text == r.turns[-1].text

    def test_logprobs_equal_teacher_forcing_over_all_turns(self) -> None:
        responses, model = sample(Echo(least=2), temperature=0.8), policy()
        scores = Scores([0.0] * len(responses))
        rows = collate(
            responses, scores, torch.arange(len(responses)), policy_version=0, pad_id=model.pad_id
        )
        assert not torch.equal(
            rows.mask,
            rows.mask
            & (torch.arange(rows.mask.shape[1]) >= rows.mask.int().argmax(1)[:, None])
            .cumprod(1)
            .bool(),
        )
        logprobs = model(rows.tokens, rows.mask, temperature=0.8).logprobs
        torch.testing.assert_close(
            logprobs[rows.mask], rows.behavior_logprobs[rows.mask], rtol=0, atol=1e-4
        )

    def test_every_turn_has_random_numbers_of_its_own(self) -> None:
        """Without a stop, turns of equal contexts would otherwise be equal."""
        model = policy()
        model.eos_ids = frozenset({1})
        # every token is equally likely, whatever the context
        model.model.get_output_embeddings().weight.data.zero_()
        rollout = MultiTurn(
            Local(max_tokens=4, seed=7, stop=list("0123456789abcdefghijklmnopqrstuvwxyz")),
            Script(["ab", "ab"]),
        )
        rollout.sync(model, iteration=0)
        responses = [
            r for r in rollout.generate(PROMPTS, samples=16, iteration=0) if len(r.turns) > 1
        ]
        turns = [[tuple(r.tokens[t.start : t.stop]) for t in r.turns] for r in responses]
        assert len(turns) > 5
        assert all(len(set(row)) == len(row) for row in turns)


class TestKeys:
    def test_one_turn_is_what_the_rollout_samples_by_itself(self) -> None:
        rollout = Local(max_tokens=8, seed=7)
        rollout.sync(policy(), iteration=3)
        alone = rollout.generate(PROMPTS, samples=4, iteration=3)
        assert [replace(r, mask=None, turns=()) for r in sample(Script())] == alone

    def test_neither_other_rows_nor_batch_size_matter(self) -> None:
        expected = ids(sample(Echo()))
        assert ids(sample(Echo(), batch_size=1)) == ids(sample(Echo(), batch_size=5)) == expected
        assert (
            ids(sample(Echo(), prompts=PROMPTS[:1])) + ids(sample(Echo(), prompts=PROMPTS[1:]))
            == expected
        )
        assert [s for i, s in enumerate(expected) if i % 4 < 2] == ids(sample(Echo(), samples=2))

    def test_seed_iteration_and_occurrence_change_samples(self) -> None:
        base = ids(sample(Echo(least=3)))
        assert not set(base) & set(ids(sample(Echo(least=3), seed=8)))
        assert not set(base) & set(ids(sample(Echo(least=3), iteration=4)))
        twice = ids(sample(Echo(least=3), prompts=[*PROMPTS, *PROMPTS]))
        assert twice[:12] == base
        assert not set(base) & set(twice[12:])

    def test_the_environment_gets_a_key_of_its_own_for_each_episode(self) -> None:
        keys = []

        class Keys(Script):
            def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Lines:
                keys.append(key)
                return super().start(prompt, key=key)

        sample(Keys(), prompts=[PROMPTS[0], PROMPTS[0]], samples=2)
        assert keys == [(7, "0", 0, 0, 3), (7, "0", 0, 1, 3), (7, "0", 1, 0, 3), (7, "0", 1, 1, 3)]


@dataclass(frozen=True)
class Different(Echo):
    """Shows each sample another prompt."""

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Any:
        return super().start(replace(prompt, text=f"{key[3]}:"), key=key)


def test_samples_may_have_different_prompts() -> None:
    responses, model = sample(Different(), prompts=PROMPTS[:1]), policy()
    assert [model.decode(r.prompt_tokens) for r in responses] == ["0:", "1:", "2:", "3:"]
    assert {r.prompt.text for r in responses} == {"1+1="}


class ToldLines(Lines):
    def end(self) -> Reply:
        return Reply(None, 5.0, [ToolCall("end", {}, "")])


class Told(Script):
    """`Script` whose episodes are told if a limit ends them."""

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> ToldLines:
        return ToldLines(prompt, super().start(prompt, key=key).replies, [])


class TestLimits:
    def test_of_turns(self) -> None:
        responses = sample(Script(["a"] * 9, max_turns=2))
        assert max(len(r.turns) for r in responses) == 2
        assert all(r.turns[-1].stop == len(r.tokens) for r in responses)
        assert {r.finish for r in responses} == {"length"}
        assert {r.overlong for r in responses} == {True, False}
        assert all(r.overlong == (r.turns[-1].finish == "length") for r in responses)

    def test_of_the_tokens_of_a_turn(self) -> None:
        """A truncated turn is the last one, which the environment grades."""
        for r in (responses := sample(Script(["a"] * 2), samples=16, max_tokens=3)):
            assert all(turn.finish == "stop" for turn in r.turns[:-1])
            assert all(turn.stop - turn.start <= 3 for turn in r.turns)
            assert r.finish == (
                "length" if r.turns[-1].finish == "length" or len(r.turns) < 3 else "stop"
            )
        assert {r.finish for r in responses} == {"stop", "length"}

    @pytest.mark.parametrize("limit", [12, 20])
    def test_of_all_tokens(self, limit: int) -> None:
        responses = sample(Script(["abcd"] * 8, max_tokens=limit), samples=8)
        assert max(len(r.tokens) for r in responses) <= limit
        assert all(r.overlong == (r.finish == "length") for r in responses)
        assert any(len(r.turns) > 1 for r in responses)
        assert all(r.mask is not None and r.mask[-1] for r in responses)

    def test_of_the_context(self) -> None:
        rollout = MultiTurn(
            Local(max_tokens=8, seed=7), Script(["abcd"] * 30, max_turns=31, max_tokens=1000)
        )
        rollout.sync(policy(context_length=24), iteration=0)
        responses = rollout.generate(PROMPTS, samples=8, iteration=0)
        assert max(len(r.prompt_tokens) + len(r.tokens) for r in responses) <= 24

    @pytest.mark.parametrize(
        "limits", [{"max_turns": 2}, {"max_turns": 3}, {"max_tokens": 16}, {}], ids=str
    )
    def test_episodes_are_told_if_one_ends_them(self, limits: dict[str, int]) -> None:
        """Also if the last turn is truncated; not if the last reply, the third, ended the
        episode."""
        responses = sample(Told(["."] * 2, **limits), samples=8)
        for r in responses:
            *earlier, last = r.turns
            assert last.reward == (1.0 if len(r.turns) == 3 else 5.0)
            assert [call.name for call in last.calls] == ([] if len(r.turns) == 3 else ["end"])
            assert all(turn.reward is None and not turn.calls for turn in earlier)
            assert r.finish == ("stop" if len(r.turns) == 3 and last.finish == "stop" else "length")
        assert any(r.turns[-1].reward == 5.0 for r in responses)

    def test_an_episode_that_is_only_measured_is_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended: list[Any] = []
        monkeypatch.setattr(ToldLines, "end", lambda self: ended.append(self))
        assert num_added_tokens(policy(), MultiTurn(Local(), Told()), PROMPTS) == 0
        assert len(ended) == 1

    @pytest.mark.parametrize("reward", [math.nan, math.inf])
    def test_a_reward_that_is_not_finite_is_a_crash(self, reward: float) -> None:
        class Bad(Script):
            def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Lines:
                return Lines(prompt, [Reply([], reward)], [])

        responses = sample(Bad())
        for response in responses:
            [call] = response.turns[0].calls
            assert (call.error, response.turns[0].reward) == ("crash", None)
        assert set(EnvironmentReward()(responses).values) == {None}

    def test_a_reward_of_numpy_is_a_plain_number(self) -> None:
        """A checkpoint of responses sampled ahead that holds others cannot be loaded."""

        class Counted(Script):
            def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Lines:
                return Lines(prompt, [Reply(None, np.float64(0.5))], [])

        rewards = [turn.reward for r in sample(Counted()) for turn in r.turns]
        assert {(type(reward), reward) for reward in rewards} == {(float, 0.5)}


class Whole:
    """A rollout that cannot continue token ids."""


class Stops(Script):
    """`Script` in which a text ends turns."""

    needs = EnvironmentNeeds(stop=("7",))


class TestWithEnvironment:
    """What the rollout and the environment say to each other."""

    def test_texts_of_both_end_a_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stops, extend = [], Local.extend

        def spy(self: Local, contexts: Any, *, iteration: int) -> Any:
            stops.append(self.stop)
            return extend(self, contexts, iteration=iteration)

        monkeypatch.setattr(Local, "extend", spy)
        sample(Stops(), stop=["3"])
        sample(Script(), stop=["3"])
        assert stops == [("3", "7"), ("3",)]

    @pytest.mark.slow
    def test_the_conversation_is_told_whether_a_turn_has_its_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told, observe = Counter[bool](), Conversation.observe

        def spy(self: Any, model: Any, reply: str, ended: bool, messages: Any) -> Any:
            told[ended] += 1
            return observe(self, model, reply, ended, messages)

        monkeypatch.setattr(Conversation, "observe", spy)
        responses = sample(Script(["a"] * 3), samples=16, stop=list("abcdefghijklmnop"))
        assert told == Counter(
            r.tokens[turn.stop - 1] in policy().eos_ids for r in responses for turn in r.turns[:-1]
        )
        assert len(told) == 2


def test_failed_calls_are_counted_by_their_kind() -> None:
    errors = (None, "malformed", "error", "unknown", "timeout")
    calls = tuple(ToolCall("x", {}, "", error, seconds=0.5) for error in errors)  # type: ignore[arg-type]
    response = Response(
        PROMPTS[0],
        tokens=range(5),
        mask=[True, False, False, True, True],
        turns=(Turn(0, 1, calls=calls), Turn(3, 5)),
    )
    meter = Meter(torch.device("cpu"))
    log_turns(meter, "train", [response])
    found = {name.removeprefix("train/"): value for name, value in meter.compute().items()}
    assert found == {
        "turns": 2,
        "tool_calls": 5,
        "tool_errors": 3,
        "malformed_calls": 1,
        "tool_s": 2.5,
        "observation_tokens": 2,
        "cut_fraction": 0,
    }


class TestRollout:
    def test_is_the_same_object_for_single_turns(self) -> None:
        rollout = Local()
        assert over_turns(rollout, SingleTurn()) is rollout
        assert isinstance(over_turns(rollout, GuessNumber()), MultiTurn)

    def test_settings_are_those_of_the_inner_rollout(self) -> None:
        rollout = MultiTurn(Local(max_tokens=8, seed=7), GuessNumber(max_tokens=50))
        greedy = with_settings(rollout, temperature=0.0, top_p=1.0, top_k=0)
        assert (greedy.temperature, greedy.rollout.temperature, rollout.temperature) == (
            0.0,
            0.0,
            1.0,
        )
        assert (
            greedy.max_tokens,
            greedy.rollout.batch_size,
            greedy.needs.ahead,
            greedy.top_p,
            greedy.top_k,
        ) == (
            50,
            256,
            0,
            1.0,
            0,
        )

    def test_another_without_extend_is_refused(self) -> None:
        with pytest.raises(
            UserError,
            match=r"Whole samples responses of one turn only .*: type environment=single_turn",
        ):
            MultiTurn(Whole(), Echo())

    def test_reports_progress(self) -> None:
        calls: list[tuple[int, int, int]] = []
        rollout = MultiTurn(Local(max_tokens=8, seed=7), Echo())
        rollout.on_tokens = lambda *progress: calls.append(progress)
        rollout.sync(policy(), iteration=0)
        responses = rollout.generate(PROMPTS, samples=4, iteration=0)
        assert {total for _, total, _ in calls} == {12}
        assert [tokens for *_, tokens in calls] == sorted(tokens for *_, tokens in calls)
        assert calls[-1][2] == sum(r.num_sampled for r in responses)
        assert rollout.rollout.on_tokens is None


class Scripted(Local):
    """Samples the texts of a script, one in each turn."""

    script: Iterator[str]

    def extend(self, contexts: Any, *, iteration: int) -> Any:
        tokens = [*self.synced.encode(Prompt(id="", text=next(self.script))), 1]
        return [
            [Continuation(tokens, [-1.0] * len(tokens), True) for _ in context.samples]
            for context in contexts
        ]


@pytest.mark.parametrize(
    ("guesses", "turns", "reward"),
    [(["4"], 1, 1.0), (["9", "2", "4"], 3, 0.8), (["x", "5", "3"], 3, -0.3)],
)
def test_guessing(guesses: list[str], turns: int, reward: float) -> None:
    rollout = Scripted()
    rollout.script = iter(guesses)
    game = MultiTurn(rollout, GuessNumber(max_turns=3, turn_penalty=0.1))
    model = policy()
    model.eos_ids = frozenset({1})
    game.sync(model, iteration=0)
    [response] = game.generate([Prompt(id="a", text="guess:", answer="4")], samples=1, iteration=0)
    assert len(response.turns) == turns
    assert sum(turn.reward or 0 for turn in response.turns) == pytest.approx(reward)
    assert response.finish == ("stop" if guesses[-1] == "4" else "length")
    replies = model.decode(response.tokens)
    for guess in guesses[: turns - 1]:
        assert {"9": "lower", "2": "higher", "x": "no number", "5": "lower"}[guess] in replies


def test_sharded_weights_are_gathered_once_for_all_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks wait for each other there, and may need different numbers of turns."""
    entered = []

    @contextmanager
    def unsharded(module: Any) -> Iterator[None]:
        entered.append(module)
        yield

    monkeypatch.setattr("rlmods.policy.fused.unsharded", unsharded)
    assert {len(r.turns) for r in sample(Script(["abc", "de"], max_tokens=100))} > {3}
    assert len(entered) == 1


def test_results_and_exceptions() -> None:
    with Threads(2) as threads:
        futures = [threads.submit(divmod, 7, x) for x in (2, 0, 3)]
        assert futures[0].result(5) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            futures[1].result(5)
        assert futures[2].result(5) == (2, 1)


def test_calls_at_once_are_no_more_than_the_count() -> None:
    active, peak, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal active, peak
        with lock:
            active += 1
            peak = max(peak, active)
        time.sleep(0.02)
        with lock:
            active -= 1

    with Threads(3) as threads:
        for future in [threads.submit(work) for _ in range(40)]:
            future.result(5)
    assert peak == 3


def test_calls_that_wait_have_no_thread() -> None:
    blocked = threading.Event()
    before = threading.active_count()
    with Threads(4) as threads:
        futures = [threads.submit(blocked.wait, 30) for _ in range(1000)]
        assert threading.active_count() <= before + 4
        blocked.set()
        assert all(future.result(30) for future in futures)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_leaving_waits_for_no_call_and_cancels_those_that_have_not_begun() -> None:
    hanging, begun = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        hanging.wait(30)

    start = time.monotonic()
    with suppress(KeyboardInterrupt), Threads(1) as threads:
        threads.submit(hang)
        late = threads.submit(pow, 2, 3)
        begun.wait(5)
        raise KeyboardInterrupt
    assert time.monotonic() - start < 5
    with pytest.raises(CancelledError):
        late.result(5)
    hanging.set()


@pytest.mark.slow
def test_a_call_that_hangs_does_not_keep_the_process() -> None:
    program = (
        "import time; from rlmods.rollout.turns import Threads\nwith Threads(1) as "
        "t: t.submit(time.sleep, 600); time.sleep(0.1)"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    assert time.monotonic() - start < 50
