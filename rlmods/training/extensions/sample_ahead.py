"""Sampling of the next batch of prompts while the current one is graded and trained on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import replace
from threading import Thread
from typing import Any

from rlmods.training.extensions.base import Extension
from rlmods.types import Prompt, Response

POLL_S = 0.1
"""Time between two reports of progress while waiting, at which a run can also be interrupted."""


class SampleAhead(Extension):
    """Sample responses to the next batch of prompts in a background thread, while those to the current batch are graded and trained on
    (`rollout.ahead=1`). An iteration takes about max(rollout, rest) instead of their sum.

    The thread ends before the rollout gets new weights, so the responses of a batch come from one policy, at most one iteration older than
    the policy that is trained. They are complete when an iteration ends, and saved in its checkpoint. Nothing is sampled ahead in the last
    iteration. The thread takes part in no collective operation.

    Logs `time/rollout_ahead_s`, the seconds of sampling while the main thread graded and trained; `time/rollout_s` is the time it waited.
    """

    def __init__(self) -> None:
        self._future: Future[tuple[list[Response], float]] | None = None
        """Responses in flight, and the time at which they were complete."""
        self._start = 0.0
        self._progress = (0, 0, 0)
        """Arguments of the latest call of `on_tokens` in the thread."""
        self._responses: list[Response] = []
        """Complete responses to the next batch of prompts."""

    def __call__(self, prompts: Sequence[Prompt]) -> list[Response]:
        """Return responses to these prompts, those sampled ahead if there are any, and start sampling those to the next prompts.

        Raises:
            UserError: sampling failed, in this thread or in the background.
        """
        loop = self.loop
        with loop.timer("rollout"):
            self._wait()
            responses = self._take(prompts) if self._responses else loop.sample_responses(loop.rollout, prompts)
        if loop.iteration + 1 < loop.max_iterations:
            self._sample(loop.trainer.datamodule.next_prompts())
        return responses

    def before_iteration_end(self) -> None:
        """Wait for the responses in flight, before the rollout gets new weights."""
        with self.loop.timer("rollout"):
            self._wait()

    def _take(self, prompts: Sequence[Prompt]) -> list[Response]:
        responses, self._responses = self._responses, []
        answered = [prompt for prompt in prompts for _ in range(self.loop.batch.samples)]
        if [(prompt.id, prompt.time) for prompt in answered] != [(r.prompt.id, r.prompt.time) for r in responses]:
            raise RuntimeError("the responses sampled ahead are not those to the prompts of this batch")
        return [replace(r, prompt=prompt) for r, prompt in zip(responses, answered, strict=True)]  # a checkpoint has no whole prompts

    def _sample(self, prompts: Sequence[Prompt]) -> None:
        """Start the thread."""
        loop, trainer, future = self.loop, self.loop.trainer, Future[tuple[list[Response], float]]()
        self._progress = (0, len(prompts) * loop.batch.samples, 0)

        def on_tokens(done: int, total: int, tokens: int) -> None:
            if trainer.interrupted:
                raise RuntimeError("training was interrupted")
            self._progress = (done, total, tokens)

        rollout = copy(loop.rollout)
        rollout.on_tokens = on_tokens  # the hook of the main thread may end the run

        def sample() -> None:
            try:
                future.set_result((loop.sample_responses(rollout, prompts), time.perf_counter()))
            except BaseException as error:  # the main thread raises it
                future.set_exception(error)

        self._start, self._future = time.perf_counter(), future
        Thread(target=sample, name="sample-ahead", daemon=True).start()  # a daemon, so that Python ends without waiting for requests

    def _wait(self) -> None:
        """Wait for the responses in flight, if there are any."""
        if (future := self._future) is None:
            return
        waiting_since, on_tokens = time.perf_counter(), getattr(self.loop.rollout, "on_tokens", None)
        while True:
            done = wait([future], POLL_S).done
            if on_tokens is not None:
                on_tokens(*self._progress)
            if done:
                break
        self._future = None
        self._responses, end = future.result()
        self.loop.timer.seconds["rollout_ahead"] += min(end, waiting_since) - self._start

    # Checkpoint

    def rank_state(self) -> dict[str, Any]:
        """Return the responses to this rank's next prompts, which the loader knows, so that of a prompt only its identity is needed."""
        self._wait()
        return {
            "responses": [
                {
                    "prompt": (r.prompt.id, r.prompt.time),
                    "prompt_tokens": list(r.prompt_tokens),
                    "tokens": list(r.tokens),
                    "behavior_logprobs": list(r.behavior_logprobs),
                    "text": r.text,
                    "finish": r.finish,
                    "meta": dict(r.meta),
                }
                for r in self._responses
            ]
        }

    def load_rank_states(self, states: Sequence[Mapping[str, Any]], rank: int, world_size: int) -> None:
        """Load this rank's slice of the responses of all ranks, which are in the order of the global batch."""
        rows = [row for state in states for row in state["responses"]]
        size = len(rows) // world_size
        own = rows[rank * size : (rank + 1) * size]
        self._responses = [Response(**row | {"prompt": Prompt(id=row["prompt"][0], time=row["prompt"][1])}) for row in own]
