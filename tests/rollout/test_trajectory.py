"""Responses of several turns that branch: their prefixes, episodes, entropies and budget."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlmods.branching import Entropy
from rlmods.rollout import Local, MultiTurn
from rlmods.training.collate import collate
from rlmods.training.meter import Meter
from rlmods.training.turns import log_turns
from rlmods.types import Branch, Prompt, Reply, Response, Scores, ToolCall, Turn
from tests.support.environments import Echo, Lines, Script
from tests.support.tiny_setup import policy

PROMPTS = [Prompt(id=str(i), text=text) for i, text in enumerate(("1+1=", "22-3=", "7="))]
NEVER = Entropy(num_initial=2, tau=1e9)
ALWAYS = Entropy(num_initial=1, tau=-1e9)
TWO = Script(["abc", "de"])


def sample(
    environment: Any,
    rule: Entropy | None,
    *,
    samples: int = 4,
    prompts: Sequence[Prompt] = PROMPTS,
    **settings: Any,
) -> list[Response]:
    rollout = MultiTurn(Local(**{"max_tokens": 8, "seed": 7} | settings), environment, rule)
    rollout.sync(policy(), iteration=3)
    return rollout.generate(prompts, samples=samples, iteration=3)


def groups(responses: list[Response], samples: int = 4) -> list[list[Response]]:
    return [responses[i : i + samples] for i in range(0, len(responses), samples)]


def test_without_branches_they_are_independent_responses() -> None:
    """Those of a rollout without a rule, although some are sampled after others have ended, in
    batches of other sizes."""
    expected = sample(Echo(), None)
    found = [
        replace(r, meta={key: r.meta[key] for key in r.meta.keys() - {"decisions"}})
        for r in sample(Echo(), NEVER)
    ]
    assert [replace(r, behavior_logprobs=()) for r in found] == [
        replace(r, behavior_logprobs=()) for r in expected
    ]
    for r, other in zip(found, expected, strict=True):
        assert r.behavior_logprobs == pytest.approx(other.behavior_logprobs, abs=1e-5)
    assert not any(r.branch for r in expected)


class TestPrefix:
    def test_is_that_of_the_parent(self) -> None:
        num_branches = 0
        for group in groups(sample(TWO, ALWAYS, max_tokens=40)):
            for r in group:
                if (branch := r.branch) is not None:
                    parent, shared = group[branch.parent], branch.shared
                    for name in ("tokens", "behavior_logprobs", "mask"):
                        assert getattr(r, name)[:shared] == getattr(parent, name)[:shared]
                    assert not r.mask[shared - 1]
                    assert r.mask[shared]
                    assert shared == next(turn.start for turn in r.turns if turn.start >= shared)
                    assert [t for t in r.turns if t.stop <= shared] == [
                        t for t in parent.turns if t.stop <= shared
                    ]
                    num_branches += 1
        assert num_branches == 9

    def test_logprobs_equal_teacher_forcing(self) -> None:
        responses, model = sample(TWO, ALWAYS, temperature=0.8, max_tokens=40), policy()
        rows = collate(
            responses,
            Scores([0.0] * 12),
            torch.arange(3).repeat_interleave(4),
            policy_version=0,
            pad_id=model.pad_id,
        )
        assert rows.origin is not None
        logprobs = model(rows.tokens, rows.mask, temperature=0.8).logprobs
        torch.testing.assert_close(
            logprobs[rows.mask], rows.behavior_logprobs[rows.mask], rtol=0, atol=1e-4
        )

    def test_neither_other_rows_nor_batch_size_matter(self) -> None:
        def ids(**settings: Any) -> list[tuple[Any, ...]]:
            return [
                (r.prompt.id, tuple(r.tokens), r.branch) for r in sample(Echo(), ALWAYS, **settings)
            ]

        expected = ids()
        assert ids(batch_size=1) == ids(batch_size=5) == expected
        assert ids(prompts=PROMPTS[:1]) + ids(prompts=PROMPTS[1:]) == expected

    def test_tokens_of_the_parent_are_not_sampled_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said, extend = [], Local.extend

        def spy(self: Local, contexts: Any, *, iteration: int) -> Any:
            found = extend(self, contexts, iteration=iteration)
            said.extend(len(c.tokens) for row in found for c in row)
            return found

        monkeypatch.setattr(Local, "extend", spy)
        responses = sample(TWO, ALWAYS, max_tokens=40)
        last = {(r.prompt.id, r.meta["sample"]): r for r in responses}
        assert sum(r.num_new for r in last.values()) == sum(said)
        assert sum(r.num_sampled for r in responses) > sum(said)


class TestEpisode:
    def test_goes_on_from_a_copy_at_the_branch(self) -> None:
        """What the environment has seen in an episode are the turns of its response, and what it
        replies follows from them."""
        episodes: list[Lines] = []

        class Watched(Lines):
            def reply(self, turn: Turn) -> Reply:
                if not any(x is self for x in episodes):
                    episodes.append(self)
                return super().reply(turn)

        class Watching(Script):
            def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Lines:
                made = super().start(prompt, key=key)
                return Watched(made.prompt, made.replies, made.seen)

        responses = sample(Watching(["abc", "de"]), ALWAYS, max_tokens=40)
        seen = Counter((e.prompt.id, *(turn.text for turn in e.seen)) for e in episodes)
        assert seen == Counter((r.prompt.id, *(turn.text for turn in r.turns)) for r in responses)

    def test_the_observation_follows_from_the_conversation_of_the_branch(self) -> None:
        model, prompts = policy(), [Prompt(id="0", messages=[{"role": "user", "content": "1+1="}])]
        model.tokenizer.chat_template = (
            "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if "
            "add_generation_prompt %}[assistant]{% endif %}"
        )
        rollout = MultiTurn(Local(max_tokens=6, seed=7), Script(["ab", "cd", "ef"]), ALWAYS)
        rollout.sync(model, iteration=0)
        for r in rollout.generate(prompts, samples=8, iteration=0):
            for turn, following, text in zip(
                r.turns, r.turns[1:], ("ab", "cd", "ef"), strict=False
            ):
                assert model.decode(
                    r.tokens[turn.stop : following.start], skip_special_tokens=False
                ).endswith(f"[user]{text}[assistant]")


def test_entropies_of_decisions_are_those_of_the_policy() -> None:
    rule, model, checked = Entropy(num_initial=2, num_tokens=3), policy(), 0
    size = math.log(model.model.get_input_embeddings().weight.shape[0])
    for group in groups(sample(TWO, rule, temperature=0.8, max_tokens=40)):
        for r in group:
            ids = torch.tensor([[*r.prompt_tokens, *r.tokens]])
            entropies = (
                model(ids, torch.ones_like(ids, dtype=torch.bool), temperature=0.8).entropy[
                    0, len(r.prompt_tokens) :
                ]
                / size
            )
            by_turn = {
                turn.start: float(entropies[turn.start : min(turn.stop, turn.start + 3)].mean())
                for turn in r.turns
            }
            for decision in r.meta.get("decisions", ()):
                assert decision["row"] == r.meta["sample"]
                assert decision["entropy"] == pytest.approx(by_turn[decision["position"]], abs=1e-4)
                assert decision["initial_entropy"] == pytest.approx(by_turn[0], abs=1e-4)
                assert decision["probability"] == pytest.approx(
                    0.5 + 0.2 * (decision["entropy"] - decision["initial_entropy"])
                )
                branched = [
                    x for x in group if x.branch == Branch(r.meta["sample"], decision["position"])
                ]
                assert len(branched) == decision["num_branches"]
                checked += 1
    assert checked > 6


def test_validation_does_not_branch() -> None:
    rollout = MultiTurn(Local(max_tokens=8, seed=7), TWO, ALWAYS).with_settings(temperature=0.5)
    rollout.sync(policy(), iteration=0)
    assert not any(r.branch for r in rollout.generate(PROMPTS, samples=4, iteration=0))


def test_metrics_of_branches() -> None:
    responses, meter = sample(TWO, ALWAYS, max_tokens=40), Meter(torch.device("cpu"))
    log_turns(meter, "train", responses)
    found = meter.compute()
    assert found["train/branched_fraction"] == 0.75
    assert found["train/shared_tokens"] == pytest.approx(
        sum(r.num_sampled - r.num_new for r in responses) / 12
    )
    meter = Meter(torch.device("cpu"))
    log_turns(meter, "train", sample(TWO, None))
    assert "train/branched_fraction" not in meter.compute()


def test_calls_before_the_branch_are_shared() -> None:
    calls = (ToolCall("calculator", result="3"),)
    turns = (Turn(0, 2, calls=calls), Turn(4, 6, calls=calls), Turn(8, 9))
    tokens, mask = list(range(9)), [True, True, False, False, True, True, False, False, True]
    root = Response(PROMPTS[0], tokens=tokens, mask=mask, turns=turns)
    branches = {shared: replace(root, branch=Branch(0, shared)) for shared in (0, 1, 2, 4, 8)}
    assert {shared: branch.num_shared_calls for shared, branch in branches.items()} == {
        0: 0,
        1: 0,
        2: 1,
        4: 1,
        8: 2,
    }
    assert root.num_shared_calls == 0
    meter = Meter(torch.device("cpu"))
    log_turns(meter, "train", [root, branches[4]])
    assert meter.compute()["train/shared_tool_calls"] == 0.5
