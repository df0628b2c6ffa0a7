"""Sampling of the next batch of prompts while the current one is graded and trained on."""

import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import asdict, replace
from threading import Thread
from typing import Any

from rlmods.protocols import ReportsTokens
from rlmods.rollout.order import generate_in_order
from rlmods.training.collate import collate_unscored
from rlmods.training.extensions.base import Extension
from rlmods.types import Branch, Prompt, Response, SessionRecord, ToolCall, Turn

POLL_S = 0.1
"""Time between two reports of progress while waiting, at which a run can also be interrupted."""
NUM_COMPARED = 4
MAX_COMPARED_TOKENS = 8
"""Responses per rank, and tokens per response, used to compare sampler and trainer
log-probabilities in each iteration."""
SAVED_META = ("sample", "iteration", "out_of_turns")
"""Items of `Response.meta` that a checkpoint holds."""


class SampleAhead(Extension):
    """Sample responses to the next batch of prompts in a background thread, while those to the
    current batch are graded and trained on (`rollout.ahead=1`). An iteration takes about
    max(rollout, rest) instead of their sum.

    The thread ends before the rollout gets new weights, so the responses of a batch come from one
    policy, at most one iteration older than the policy that is trained. They are complete when an
    iteration ends, and saved in its checkpoint. Nothing is sampled ahead in the last iteration. The
    thread takes part in no collective operation.

    After each update, `train/sampler_logprob_gap` is logged of a few short responses that are
    sampled for it before the thread starts.

    Logs `time/rollout_ahead_s`, the seconds of sampling while the main thread graded and trained;
    `time/rollout_s` is the time it waited."""

    def __init__(self) -> None:
        self._future: Future[tuple[list[Response], float]] | None = None
        """Responses in flight, and the time at which they were complete."""
        self._start = 0.0
        self._progress = (0, 0, 0)
        """Arguments of the latest call of `on_tokens` in the thread."""
        self._responses: list[Response] = []
        """Complete responses to the next batch of prompts."""
        self._num_compared = 0
        """Last iteration in which the weights of the rollout were compared with the policy's.
        Iteration 0 needs no comparison: its batch is not sampled ahead."""

    def __call__(self, prompts: Sequence[Prompt]) -> list[Response]:
        """Return responses to these prompts, those sampled ahead if there are any, and start
        sampling those to the next prompts.

        Raises:
            UserError: sampling failed, in this thread or in the background.
        """
        loop = self.loop
        with loop.timer("rollout"):
            self.wait()
            responses = self._take(prompts) or loop.sample_responses(loop.rollout, prompts)
        if loop.iteration > self._num_compared and loop.scorer.is_at_sampling_temperature:
            self._compare(prompts[:NUM_COMPARED])
            self._num_compared = loop.iteration
        if loop.iteration + 1 < loop.max_iterations:
            self._sample(loop.trainer.datamodule.next_prompts())
        return responses

    def _compare(self, prompts: Sequence[Prompt]) -> None:
        """Log the distance between the log-probabilities of sampler and policy, on a short response
        to each of these prompts.

        Both have the same weights now. When responses that are sampled ahead have been graded, the
        policy has moved."""
        loop = self.loop
        rollout = copy(loop.rollout)
        rollout.max_tokens = min(rollout.max_tokens, MAX_COMPARED_TOKENS)
        # a time of their own, so that other samples of these prompts do not change
        own_time = [replace(prompt, time=-1) for prompt in prompts]
        with loop.timer("rollout"):
            responses = generate_in_order(rollout, own_time, samples=1, iteration=loop.iteration)
        rows = collate_unscored(responses, loop.policy.pad_id).to(loop.device)
        with loop.timer("score"):
            logprobs = loop.scorer.score(rows, loop.policy).logprobs
        gap = (logprobs - rows.behavior_logprobs).abs()
        loop.meter.mean("train/sampler_logprob_gap", gap, rows.mask)

    def _take(self, prompts: Sequence[Prompt]) -> list[Response]:
        """Return the responses sampled ahead, none if there are none to these prompts."""
        responses = self._responses
        self._responses = []
        if not responses:
            return []
        answered = [prompt for prompt in prompts for _ in range(self.loop.batch.samples)]
        expected = [(prompt.id, prompt.time) for prompt in answered]
        if expected != [(r.prompt.id, r.prompt.time) for r in responses]:
            warnings.warn(
                "the responses in the checkpoint are not those to this batch of prompts: "
                "sampling them again",
                stacklevel=2,
            )
            return []
        # a checkpoint has no whole prompts
        return [replace(r, prompt=prompt) for r, prompt in zip(responses, answered, strict=True)]

    def _sample(self, prompts: Sequence[Prompt]) -> None:
        """Start the thread."""
        loop = self.loop
        trainer = loop.trainer
        future = Future[tuple[list[Response], float]]()
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

        self._start = time.perf_counter()
        self._future = future
        # a daemon, so that Python ends without waiting for requests
        Thread(target=sample, name="sample-ahead", daemon=True).start()

    def wait(self) -> None:
        """Wait for the responses in flight, if there are any."""
        future = self._future
        if future is None:
            return
        waiting_since = time.perf_counter()
        rollout = self.loop.rollout
        on_tokens = rollout.on_tokens if isinstance(rollout, ReportsTokens) else None
        is_done = False
        while not is_done:
            is_done = bool(wait([future], POLL_S).done)
            if on_tokens is not None:
                on_tokens(*self._progress)
        self._future = None
        self._responses, end = future.result()
        seconds: Any = self.loop.timer.seconds
        seconds["rollout_ahead"] += min(end, waiting_since) - self._start

    # Checkpoint

    def rank_state(self) -> dict[str, Any]:
        """Return the responses to this rank's next prompts. The loader knows these, so only their
        identity is saved."""
        self.wait()
        return {"responses": [_saved(response) for response in self._responses]}

    def load_rank_states(
        self, states: Sequence[Mapping[str, Any]], rank: int, world_size: int
    ) -> None:
        """Load this rank's slice of the responses of all ranks, which are in the order of the
        global batch."""
        rows = [row for state in states for row in state["responses"]]
        size = len(rows) // world_size
        self._responses = [_loaded(row) for row in rows[rank * size : (rank + 1) * size]]


def _saved(response: Response) -> dict[str, Any]:
    """Return a response as a dictionary of plain values for a checkpoint."""
    prompt = Prompt(id=response.prompt.id, time=response.prompt.time)
    meta = {name: response.meta[name] for name in SAVED_META if name in response.meta}
    return asdict(replace(response, prompt=prompt, meta=meta)) | {
        "prompt_tokens": list(map(int, response.prompt_tokens)),
        "tokens": list(map(int, response.tokens)),
        "behavior_logprobs": list(map(float, response.behavior_logprobs)),
    }


def _loaded(row: Mapping[str, Any]) -> Response:
    """Return a response that a checkpoint holds as a dictionary."""
    turns: list[Turn] = []
    for turn in row["turns"]:
        calls = tuple(ToolCall(**call) for call in turn["calls"])
        turns.append(Turn(**{**turn, "calls": calls}))
    changes = {
        "prompt": Prompt(**row["prompt"]),
        "turns": tuple(turns),
        "branch": None if row["branch"] is None else Branch(**row["branch"]),
        "session": None if row["session"] is None else SessionRecord(**row["session"]),
    }
    return Response(**{**row, **changes})
