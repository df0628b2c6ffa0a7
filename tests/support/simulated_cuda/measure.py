"""Launches, waits and copies of a decode step, a microbatch and an iteration, as JSON: `python -m
tests.support.simulated_cuda.measure`.

The model has 24 layers and the heads of Qwen2.5-0.5B, all else is small: counts do not depend on
it. Products are in bfloat16 by autocast."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.simulated_cuda.device import install

import lightning as L
import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlmods.adapter import LoRA
from rlmods.config import build
from rlmods.distributed import trainer as trainers
from rlmods.policy import Policy, Tiny
from rlmods.rollout import Local
from rlmods.rollout.cache import MIN_REPLAYS
from rlmods.training.meter import PhaseTimer
from rlmods.types import Prompt
from tests.support import recorded_graph
from tests.support.composed import composed
from tests.support.simulated_cuda.counts import Counts, counted, paused
from tests.support.tiny_setup import Log

NUM_LAYERS = 24
EQUAL = (20,) * 8
"""Lengths of prompts without padding."""
PADDED = tuple(range(12, 20))
RUN = (
    *("algo=grpo", "kl=loss", "reward=math", "data.num_train=64", "validation.every=null"),
    *("batch.prompts=6", "batch.samples=4", "batch.minibatches=2", "rollout.max_tokens=8"),
)
"""A run with a reference and two optimizer steps an iteration, of one microbatch each."""
NUM_MICROBATCHES = 4
"""Of the reference, of the old log-probabilities of the second step, and of both steps."""
NUM_SINGLE = 24 + 12 + 24
"""The same with a row in each."""
SHORT, LONG = 4, 12
"""Tokens of the two responses from which the counts of one step follow."""


def policy(adapted: bool = False) -> Policy:
    """Return a policy with random weights on the device. It never ends a response."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=112,
        intermediate_size=128,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        use_sliding_window=False,
    )
    made = Policy(Qwen2ForCausalLM(config), Tiny()().tokenizer)
    if adapted:
        made = LoRA(rank=4)(made)
    made.eos_ids = frozenset({-1})
    moved: Policy = made.to("cuda:0")
    return moved


def difference(a: Counts, b: Counts, parts: int) -> dict[str, Any]:
    """Return the counts of one of the `parts` by which b has more than a."""
    return {
        "launches": (b.num_launches - a.num_launches) / parts,
        "waits": (b.num_waits - a.num_waits) / parts,
        "copies": (b.num_copies - a.num_copies) / parts,
    }


def decode_step(
    network: Policy, prompt_lengths: Sequence[int], graphs: bool = False
) -> dict[str, Any]:
    """Return the counts of one step of `rollout=local`."""
    ids = {str(i): [5 + (i + j) % 100 for j in range(n)] for i, n in enumerate(prompt_lengths)}
    network.encode = lambda prompt, tools=(): ids[prompt.id]  # type: ignore[method-assign]
    prompts = [Prompt(id=name, text=name) for name in ids]
    found = []
    for steps in (SHORT, LONG):
        steps += MIN_REPLAYS if graphs else 0
        rollout = Local(max_tokens=steps, graphs=graphs)
        rollout.sync(network, iteration=0)
        with counted() as counts:
            rollout.generate(prompts, samples=4, iteration=0)
        found.append(counts)
    caches = {f"{call.key_dtype} {call.value_dtype}" for call in found[1].attention}
    numbers = difference(*found, LONG - SHORT)
    return numbers | {"kernels": sorted(found[1].kernels), "cache": sorted(caches)}


def rows(num_groups: int, group: int, prompt: int, response: int) -> tuple[Tensor, Tensor]:
    """Return tokens and mask of groups of responses of different lengths."""
    num = num_groups * group
    shared = torch.randint(5, 400, (num_groups, prompt)).repeat_interleave(group, 0)
    tokens = torch.cat([shared, torch.randint(5, 400, (num, response))], 1)
    lengths = prompt + response - (17 * torch.arange(num)) % (response // 2)
    column = torch.arange(prompt + response)
    return tokens, (column >= prompt) & (column < lengths[:, None])


def microbatch(network: Policy) -> dict[str, Any]:
    """Return the counts of forward and backward of packed rows."""
    tokens, mask = (x.to("cuda:0") for x in rows(2, 8, 40, 64))
    with counted() as forward:
        output = network(tokens, mask)
    with counted() as backward:
        output.logprobs.sum().backward()
    numbers: dict[str, Any] = {"kernels": sorted(forward.kernels)}
    for name, counts in {"forward": forward, "backward": backward}.items():
        for kind, value in difference(Counts(), counts, 1).items():
            numbers[f"{name} {kind}"] = value
    return numbers


def iteration(overrides: Sequence[str]) -> dict[str, int]:
    """Return the places of the waits in the second iteration of a run, apart from sampling, with
    their numbers."""
    ends: list[Counter[str]] = []

    class Ends(L.Callback):
        def on_iteration_end(self, trainer: L.Trainer, learner: Any, metrics: Any) -> None:
            ends.append(counts.waits.copy())

    with tempfile.TemporaryDirectory() as folder, without_sampling(), counted() as counts:
        run = build.load(composed(*overrides, f"run_dir={Path(folder) / 'run'}"))
        trainer = trainers.build(
            max_iterations=3,  # the last one ends with a validation
            callbacks=[Ends()],
            loggers=[Log()],
            accelerator="cuda",
            devices=1,
            precision="bf16-mixed",
        )
        trainer.fit(run.learner, datamodule=run.data())
    return dict((ends[1] - ends[0]).most_common())


@contextmanager
def without_sampling() -> Iterator[None]:
    """Count nothing while a run samples, within the block."""
    within = PhaseTimer.within

    @contextmanager
    def counting(timer: PhaseTimer, phase: str) -> Iterator[None]:
        with paused() if phase == "rollout" else nullcontext(), within(timer, phase):
            yield

    with patch.object(PhaseTimer, "within", counting):
        yield


def main() -> None:
    found: dict[str, Any] = {}
    with install():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            plain = policy()
            found["decode step"] = decode_step(plain, EQUAL)
            found["decode step, padded"] = decode_step(plain, PADDED)
            found["decode step, adapter"] = decode_step(policy(adapted=True), EQUAL)
            with pytest.MonkeyPatch.context() as patched:
                recorded_graph.install(patched)
                found["decode step, recorded"] = decode_step(plain, PADDED, graphs=True)
            found["microbatch"] = microbatch(plain)
        found["iteration"] = iteration(RUN)
        single = iteration((*RUN, "batch.token_budget=1"))
        more = sum(single.values()) - sum(found["iteration"].values())
        found["microbatch"]["waits"] = more / (NUM_SINGLE - NUM_MICROBATCHES)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
