"""Sampling of the next batch while the current one is graded and trained on."""

import io
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from rlmods.algo import Batch
from rlmods.callbacks import IterationCheckpoint
from rlmods.correction import Truncated
from rlmods.errors import UserError
from rlmods.needs import RolloutNeeds
from rlmods.rollout import Local
from rlmods.sampling import Dynamic
from rlmods.training.extensions import Extension, SampleAhead, sample_ahead
from rlmods.types import Branch, Prompt, Response, Scores, SessionRecord, ToolCall, Turn
from tests.support.fake_engine import FakeEngine
from tests.support.tiny_setup import SPLITS, even, extension, fit, half_flat, learner

NUM_ITERATIONS = 4


@pytest.fixture(autouse=True)
def polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_ahead, "POLL_S", 0.01)


def pipelined(**changes: Any) -> Any:
    """Return a learner that samples ahead."""
    return learner(**{"rollout": FakeEngine(ahead=1), "correction": Truncated()} | changes)


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def in_background() -> bool:
    return threading.current_thread() is not threading.main_thread()


class InlineThread:
    """Thread that does its work when it is started."""

    def __init__(self, target: Callable[[], None], **options: Any) -> None:
        self.start = target


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in rows]


class TestSchedule:
    def test_the_next_batch_is_sampled_while_this_one_is_graded(self) -> None:
        """The reward waits until the engine is asked for the next batch; the last iteration has
        none."""
        num_graded = 0

        def reward(responses: list[Response]) -> Scores:
            nonlocal num_graded
            num_graded += 1
            wait_for(lambda: len(engine.calls.prompts) == min(num_graded + 1, NUM_ITERATIONS))
            return even(responses)

        engine = FakeEngine(ahead=1)
        fit(pipelined(rollout=engine, reward=reward), NUM_ITERATIONS)
        assert engine.calls.threads == ["MainThread", *(NUM_ITERATIONS - 1) * ["sample-ahead"]]

    def test_prompts_are_those_of_a_run_that_does_not(self) -> None:
        runs = {ahead: FakeEngine(ahead=ahead) for ahead in (0, 1)}
        for engine in runs.values():
            fit(pipelined(rollout=engine), 8)
        assert runs[0].calls.prompts == runs[1].calls.prompts
        assert (
            len({prompt for prompts in runs[1].calls.prompts for prompt in prompts})
            == len(SPLITS.train)
            < 8 * 4
        )
        assert set(runs[0].calls.threads) == {"MainThread"}

    def test_the_thread_computes_what_the_main_thread_would(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threaded = pipelined(rollout=FakeEngine(ahead=1, duration_s=0.05))
        rows = fit(threaded, NUM_ITERATIONS)
        monkeypatch.setattr(sample_ahead, "Thread", InlineThread)
        inline = pipelined()
        assert untimed(fit(inline, NUM_ITERATIONS)) == untimed(rows)
        for name, x in inline.state_dict().items():
            assert torch.equal(x, threaded.state_dict()[name]), name

    def test_weights_do_not_change_while_the_engine_samples(self) -> None:
        """The engine samples until the main thread waits for it, and reports progress, at which
        callbacks may end the run."""
        threads: list[str] = []

        def before(copy: FakeEngine) -> None:
            if in_background():
                num_reports = len(threads)
                wait_for(lambda: len(threads) > num_reports or made.trainer.interrupted)

        class Reports(L.Callback):
            def on_train_start(self, trainer: L.Trainer, learner: Any) -> None:
                learner.rollout.on_tokens = lambda *_: threads.append(
                    threading.current_thread().name
                )

        made = pipelined(rollout=FakeEngine(ahead=1, before=before))
        fit(made, NUM_ITERATIONS, callbacks=(Reports(),))
        assert made.iteration == NUM_ITERATIONS
        assert set(threads) == {"MainThread"}

    def test_extensions_work_while_the_engine_samples(self) -> None:
        """At the end of an iteration, such as those that train reward models."""
        num_ended = 0

        class Works(Extension):
            def before_iteration_end(self) -> None:
                nonlocal num_ended
                num_ended += 1

        def before(copy: FakeEngine) -> None:
            if in_background():
                wait_for(lambda: num_ended == len(engine.calls.prompts) - 1, timeout_s=5)

        engine = FakeEngine(ahead=1, before=before)
        made = pipelined(rollout=engine)
        made.add_extension(Works())
        fit(made, 3)
        assert num_ended == 3


class TestStaleness:
    def test_is_one_iteration_and_the_first_ratio_is_one(self) -> None:
        rows = fit(pipelined(), NUM_ITERATIONS)
        assert [row["train/staleness_max"] for row in rows] == [0, 1, 1, 1]
        assert [row["train/stale_fraction"] for row in rows] == [0, 1, 1, 1]
        assert all(row["train/ratio_max"] == 1 and row["train/kl_old"] == 0 for row in rows)
        assert all("train/sampler_logprob_gap" in row for row in rows)
        assert ["train/ahead_logprob_gap" in row for row in rows] == [False, True, True, True]

    def test_further_draws_of_an_iteration_are_of_its_own_policy(self) -> None:
        """Four of six groups are kept of a batch: iterations take 2, 1 and 2 batches."""
        made = pipelined(
            sampling=Dynamic(), reward=half_flat, batch=Batch(prompts=6, samples=2), surplus="keep"
        )
        rows = fit(made, 3)
        assert [row["train/draws"] for row in rows] == [2, 1, 2]
        assert [row["train/staleness_max"] for row in rows] == [0, 1, 1]
        # None of six groups; two that were kept and four that were sampled ahead; four that were
        # sampled ahead, and two of a further draw.
        assert [row["train/stale_fraction"] for row in rows] == pytest.approx([0, 1, 4 / 6])
        assert made.rollout.calls.threads == ["MainThread", *3 * ["sample-ahead"], "MainThread"]


class TestComparison:
    """Of sampler and policy, when both have the same weights."""

    def test_is_of_a_few_tokens_once_an_iteration(self) -> None:
        limits: list[int] = []
        engine = FakeEngine(
            ahead=1, max_tokens=20, before=lambda copy: limits.append(copy.max_tokens)
        )
        made = pipelined(
            rollout=engine,
            sampling=Dynamic(),
            reward=half_flat,
            batch=Batch(prompts=6, samples=2),
            surplus="keep",
        )
        fit(made, 3)
        assert limits.count(sample_ahead.MAX_COMPARED_TOKENS) == 2
        assert made.rollout.calls.num_compared == 2 * sample_ahead.NUM_COMPARED

    def test_an_engine_with_the_weights_of_the_policy_agrees(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sample_ahead, "Thread", InlineThread)
        rows = fit(pipelined(rollout=Copying(max_tokens=8)), 3)
        assert all(row["train/sampler_logprob_gap"] < 1e-4 for row in rows)


@dataclass
class Copying(Local):
    """A rollout that samples from the weights it was last synced with."""

    needs = RolloutNeeds(ahead=True)

    def sync(self, policy: Any, *, iteration: int) -> None:
        super().sync(policy.frozen_copy(), iteration=iteration)


class Policies(L.Callback):
    """Copies of the policy before each iteration."""

    def __init__(self) -> None:
        self.policies: list[Any] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, learner: Any, batch: Any, batch_idx: int
    ) -> None:
        self.policies.append(learner.policy.frozen_copy())


def test_the_correction_compares_the_policy_of_the_iteration_with_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample_ahead, "Thread", InlineThread)
    batches: list[Any] = []

    class Recorded(Truncated):
        def __call__(self, old_logprobs: Any, behavior_logprobs: Any, mask: Any) -> Any:
            weights = super().__call__(old_logprobs, behavior_logprobs, mask)
            batches.append((old_logprobs, behavior_logprobs, mask, weights))
            return weights

    policies, made = (
        Policies(),
        pipelined(rollout=Copying(max_tokens=8), correction=Recorded(high=1.05)),
    )
    seen: list[Any] = []
    made.add_old_logprobs = lambda batch, first: (
        seen.append(batch),
        type(made).add_old_logprobs(made, batch, first),
    )[1]
    rows = fit(made, 3, callbacks=(policies,))
    for i, (batch, row) in enumerate(zip(seen, rows, strict=True)):
        now, before = (
            policies.policies[max(0, i - age)](batch.tokens, batch.mask).logprobs.detach()
            for age in (0, 1)
        )
        torch.testing.assert_close(
            batch.behavior_logprobs[batch.mask], before[batch.mask], rtol=0, atol=1e-4
        )
        log_ratio = (now - before)[batch.mask]
        assert row[
            "train/ahead_logprob_gap" if i else "train/sampler_logprob_gap"
        ] == pytest.approx(float(log_ratio.abs().mean()), abs=1e-4)
        assert row["train/correction_mean"] == pytest.approx(
            float(log_ratio.exp().clamp(max=1.05).mean()), abs=1e-4
        )
    assert rows[1]["train/ahead_logprob_gap"] > 1e-2
    assert rows[0]["train/sampler_logprob_gap"] < 1e-4
    assert len(batches) == 3


class TestFailures:
    def test_an_error_in_the_thread_ends_the_run(self) -> None:
        def before(copy: FakeEngine) -> None:
            if in_background():
                raise UserError("rollout: no server is left")

        made = pipelined(rollout=FakeEngine(ahead=1, before=before))
        with pytest.raises(UserError, match=r"^rollout: no server is left$"):
            fit(made, NUM_ITERATIONS)
        assert made.iteration == 0

    def test_the_thread_ends_with_the_run(self) -> None:
        def before(copy: FakeEngine) -> None:
            if in_background():
                copy.duration_s = 1e9

        def reward(responses: list[Response]) -> Scores:
            wait_for(lambda: len(engine.calls.prompts) == 2)
            raise UserError("the reward fails")

        engine = FakeEngine(ahead=1, before=before)
        with pytest.raises(UserError, match="the reward fails"):
            fit(pipelined(rollout=engine, reward=reward), NUM_ITERATIONS)
        wait_for(lambda: engine.calls.num_running == 0)


class TestState:
    def rows(self, num_prompts: int) -> tuple[Any, list[Prompt]]:
        """Return an extension with responses to these prompts of one rank."""
        made = pipelined(batch=Batch(prompts=num_prompts, samples=2))
        made.rollout.sync(made.policy, iteration=0)
        prompts = [
            replace(prompt, time=i % 2) for i, prompt in enumerate(SPLITS.train[:num_prompts])
        ]
        ahead = extension(made, SampleAhead)
        ahead._responses = made.sample_responses(made.rollout, prompts)
        return ahead, prompts

    @pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2)])
    def test_any_number_of_ranks_gets_the_responses_to_its_prompts(
        self, before: int, after: int
    ) -> None:
        whole, prompts = self.rows(6)
        expected = whole._take(prompts)
        size = 6 // before * 2
        states = []
        for rank in range(before):
            whole._responses = expected[rank * size : (rank + 1) * size]
            states.append(whole.rank_state())
        found: list[Response] = []
        for rank in range(after):
            own = prompts[rank * 6 // after : (rank + 1) * 6 // after]
            ahead, _ = self.rows(6 // after)
            ahead.load_rank_states(states, rank, after)
            found += ahead._take(own)
        assert found == expected

    def test_responses_to_other_prompts_are_sampled_again(self) -> None:
        ahead, prompts = self.rows(4)
        with pytest.warns(
            UserWarning, match="not those to this batch of prompts: sampling them again"
        ):
            assert ahead._take(prompts[::-1]) == []
        ahead, prompts = self.rows(4)
        del ahead._responses[-1]
        with pytest.warns(UserWarning, match="sampling them again"):
            assert ahead._take(prompts) == []

    @pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
    def test_a_run_resumes_with_or_without_sampling_ahead(
        self, tmp_path: Path, before: int, after: int
    ) -> None:
        fit(
            pipelined(rollout=FakeEngine(ahead=before)),
            2,
            callbacks=(IterationCheckpoint(tmp_path, every=0),),
        )
        made = pipelined(rollout=FakeEngine(ahead=after))
        fit(made, 4, resume=tmp_path / "iteration_000002.ckpt")
        assert made.iteration == 4
        assert made.rollout.calls.threads == [
            "MainThread",
            "sample-ahead" if after else "MainThread",
        ]

    def test_saved_responses_are_plain(self) -> None:
        """An engine may return objects in `meta`."""
        ahead, [prompt] = self.rows(1)
        calls = (ToolCall("f", {"x": [1]}, "2", None, 0.1),)
        meta = {"sample": 1, "iteration": 0, "out_of_turns": True}
        response = Response(
            replace(prompt, meta={"object": object()}),
            [3],
            [4, 5, 6],
            [-1.0, 0.0, -2.0],
            mask=[True, False, True],
            turns=(Turn(0, 1, "a", reward=0.5, calls=calls), Turn(2, 3)),
            branch=Branch(0, 1),
            meta=meta,
            session=SessionRecord(2, failure="crash", error="e"),
        )
        ahead._responses = [replace(response, meta={**meta, "other": object()})]
        buffer = io.BytesIO()
        torch.save(ahead.rank_state(), buffer)
        buffer.seek(0)
        again = self.rows(1)[0]
        again.load_rank_states([torch.load(buffer, weights_only=True)], 0, 1)
        expected = Prompt(id=prompt.id, time=prompt.time)
        assert again._responses == [replace(response, prompt=expected)]
