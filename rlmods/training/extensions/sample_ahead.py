"""Sampling of the next batch of prompts while the current one is graded and trained on."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import asdict, replace
from threading import Thread
from types import NoneType
from typing import Any

import numpy as np
import torch

from rlmods.training.collate import collate, generate
from rlmods.training.extensions.base import Extension
from rlmods.types import Branch, Prompt, Response, Scores, ToolCall, Turn

POLL_S = 0.1
"""Time between two reports of progress while waiting, at which a run can also be interrupted."""
NUM_COMPARED, MAX_COMPARED_TOKENS = 4, 8
"""Number of responses on each rank, and of their tokens, by which sampler and policy are compared
in an iteration."""


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

    has_optional_state = True  # `rollout.ahead` may change when a run resumes

    def __init__(self) -> None:
        self._future: Future[tuple[list[Response], float]] | None = None
        """Responses in flight, and the time at which they were complete."""
        self._start = 0.0
        self._progress = (0, 0, 0)
        """Arguments of the latest call of `on_tokens` in the thread."""
        self._responses: list[Response] = []
        """Complete responses to the next batch of prompts."""
        self._num_compared = 0
        """Iteration whose weights of the rollout were last compared with those of the policy; those
        of iteration 0 sample its own batch."""

    def __call__(self, prompts: Sequence[Prompt]) -> list[Response]:
        """Return responses to these prompts, those sampled ahead if there are any, and start
        sampling those to the next prompts.

        Raises:
            UserError: sampling failed, in this thread or in the background.
        """
        loop = self.loop
        with loop.timer("rollout"):
            self._wait()
            responses = self._take(prompts) or loop.sample_responses(loop.rollout, prompts)
        if loop.iteration > self._num_compared and loop.scorer.is_at_sampling_temperature:
            self._compare(prompts[:NUM_COMPARED])
            self._num_compared = loop.iteration
        if loop.iteration + 1 < loop.max_iterations:
            self._sample(loop.trainer.datamodule.next_prompts())
        return responses

    def before_sync(self) -> None:
        """Wait for the responses in flight."""
        with self.loop.timer("rollout"):
            self._wait()

    def _compare(self, prompts: Sequence[Prompt]) -> None:
        """Log the distance between the log-probabilities of sampler and policy, on a short response
        to each of these prompts.

        Both have the same weights now. When responses that are sampled ahead have been graded, the
        policy has moved."""
        loop, rollout = self.loop, copy(self.loop.rollout)
        if hasattr(rollout, "max_tokens"):
            rollout.max_tokens = min(rollout.max_tokens, MAX_COMPARED_TOKENS)
        # a time of their own, so that other samples of these prompts do not change
        with loop.timer("rollout"):
            responses = generate(
                rollout,
                [replace(prompt, time=-1) for prompt in prompts],
                samples=1,
                iteration=loop.iteration,
            )
        group, scores = torch.arange(len(responses)), Scores([0.0] * len(responses))
        rows = collate(
            responses, scores, group, policy_version=loop.iteration, pad_id=loop.policy.pad_id
        ).to(loop.device)
        with loop.timer("score"):
            logprobs = loop.scorer.score(rows, loop.policy).logprobs
        loop.meter.mean(
            "train/sampler_logprob_gap", (logprobs - rows.behavior_logprobs).abs(), rows.mask
        )

    def _take(self, prompts: Sequence[Prompt]) -> list[Response]:
        """Return the responses sampled ahead, none if there are none to these prompts."""
        responses, self._responses = self._responses, []
        if not responses:
            return []
        answered = [prompt for prompt in prompts for _ in range(self.loop.batch.samples)]
        if [(prompt.id, prompt.time) for prompt in answered] != [
            (r.prompt.id, r.prompt.time) for r in responses
        ]:
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
        # a daemon, so that Python ends without waiting for requests
        Thread(target=sample, name="sample-ahead", daemon=True).start()

    def _wait(self) -> None:
        """Wait for the responses in flight, if there are any."""
        if (future := self._future) is None:
            return
        waiting_since, on_tokens = (
            time.perf_counter(),
            getattr(self.loop.rollout, "on_tokens", None),
        )
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
        """Return the responses to this rank's next prompts, which the loader knows, so that of a
        prompt only its identity is needed. Of `meta` and of calls of tools, values of plain Python
        types are saved."""
        self._wait()
        return {
            "responses": [
                {
                    "prompt": (r.prompt.id, r.prompt.time),
                    "prompt_tokens": [int(token) for token in r.prompt_tokens],
                    "tokens": [int(token) for token in r.tokens],
                    "behavior_logprobs": [float(x) for x in r.behavior_logprobs],
                    "text": r.text,
                    "finish": r.finish,
                    "meta": plain_items(r.meta),
                    **(
                        {}
                        if r.mask is None
                        else {
                            "mask": [bool(x) for x in r.mask],
                            "turns": [_saved(turn) for turn in r.turns],
                        }
                    ),
                    **({} if r.branch is None else {"branch": asdict(r.branch)}),
                    **({"cuts": [int(cut) for cut in r.cuts]} if r.cuts else {}),
                }
                for r in self._responses
            ]
        }

    def load_rank_states(
        self, states: Sequence[Mapping[str, Any]], rank: int, world_size: int
    ) -> None:
        """Load this rank's slice of the responses of all ranks, which are in the order of the
        global batch."""
        rows = [row for state in states for row in state["responses"]]
        size = len(rows) // world_size
        own = rows[rank * size : (rank + 1) * size]
        self._responses = [_response(row) for row in own]


def _response(row: Mapping[str, Any]) -> Response:
    """Return a response that a checkpoint holds as a dictionary."""
    prompt_id, time = row["prompt"]
    branch = Branch(**row["branch"]) if "branch" in row else None
    return Response(
        **{
            **row,
            "prompt": Prompt(id=prompt_id, time=time),
            "turns": _turns(row.get("turns", ())),
            "branch": branch,
        }
    )


def _saved(turn: Turn) -> dict[str, Any]:
    """Return a turn as a dictionary for a checkpoint."""
    return asdict(turn) | {"calls": [plain_items(asdict(call)) for call in turn.calls]}


def _turns(rows: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Return the turns that a checkpoint holds as dictionaries."""
    return tuple(
        Turn(**{**row, "calls": tuple(ToolCall(**call) for call in row["calls"])}) for row in rows
    )


def plain_items(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items whose values consist of plain Python types, which a checkpoint can hold.
    Numbers of NumPy become plain ones."""
    values = {
        str(key): value.item() if isinstance(value, np.generic) else value
        for key, value in meta.items()
    }
    return {key: value for key, value in values.items() if is_plain(value)}


def is_plain(value: Any) -> bool:
    """Return True for texts, numbers and None, and for lists, tuples and dictionaries of them."""
    if type(value) is dict:
        return is_plain([*value.keys(), *value.values()])
    return (
        all(map(is_plain, value))
        if type(value) in (list, tuple)
        else type(value) in (str, int, float, bool, NoneType)
    )
