"""One sampling engine in this process, timed: `python -m bench.engine ENGINE MODEL PROMPTS DTYPE`.

PROMPTS is a JSON file with a list of lists of token ids. Prints the seconds of each repetition and
the number of sampled tokens in JSON."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

SAMPLES = 8
"""Responses to each prompt."""
TOKENS = 64
"""Length of every response: the end-of-text token does not end it."""
REPEATS = 3
"""Measured calls, after one for warm-up."""

Ids = Sequence[list[int]]
Sample = Callable[[], Sequence[Sequence[int]]]
"""Samples SAMPLES responses to each prompt at temperature 1 and returns their tokens."""


def local(model: str, prompts: Ids, dtype: str) -> Sample:
    """Return the sampling of `rollout=local`, which also computes the log-probabilities of the
    sampled tokens."""
    from rlmods.policy.hf import load
    from rlmods.rollout import Local
    from rlmods.types import Prompt

    policy = load(model, dtype=dtype).to("cuda" if torch.cuda.is_available() else "cpu")
    policy.eos_ids = frozenset({-1})
    ids = {str(i): prompt for i, prompt in enumerate(prompts)}
    policy.encode = lambda prompt, tools=(): ids[prompt.id]  # type: ignore[method-assign]
    questions = [Prompt(id=name, text=name) for name in ids]
    rollout = Local(max_tokens=TOKENS, batch_size=len(prompts) * SAMPLES)
    rollout.sync(policy, iteration=0)
    return lambda: [
        response.tokens for response in rollout.generate(questions, samples=SAMPLES, iteration=0)
    ]


def generate(model: str, prompts: Ids, dtype: str) -> Sample:
    """Return the sampling of `generate` of transformers, which computes no log-probabilities."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).to(
        "cuda" if torch.cuda.is_available() else "cpu"
    )
    network.generation_config.eos_token_id = None
    width = max(map(len, prompts))
    padded = torch.tensor(
        [[0] * (width - len(prompt)) + prompt for prompt in prompts], device=network.device
    )
    mask = torch.tensor(
        [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts],
        device=network.device,
    )
    settings = {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": TOKENS,
        "pad_token_id": 0,
    }

    def sample() -> Sequence[Sequence[int]]:
        with torch.no_grad():
            output = network.generate(
                padded, attention_mask=mask, num_return_sequences=SAMPLES, **settings
            )
        rows: list[list[int]] = output[:, width:].tolist()
        return rows

    return sample


def vllm(model: str, prompts: Ids, dtype: str) -> Sample:
    """Return the sampling of vLLM with the log-probabilities of the sampled tokens. Prompts are
    processed anew in every call."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import tokens_input

    engine = LLM(
        model=model,
        dtype=dtype,
        max_model_len=max(map(len, prompts)) + TOKENS,
        max_num_seqs=len(prompts) * SAMPLES,
        enforce_eager=not torch.cuda.is_available(),
        generation_config="vllm",  # not the checkpoint's
    )
    settings = SamplingParams(
        n=SAMPLES, temperature=1.0, max_tokens=TOKENS, ignore_eos=True, logprobs=0
    )

    def sample() -> Sequence[Sequence[int]]:
        engine.reset_prefix_cache()
        outputs = engine.generate(
            [tokens_input(prompt) for prompt in prompts], settings, use_tqdm=False
        )
        return [response.token_ids for output in outputs for response in output.outputs]

    return sample


ENGINES: dict[str, Callable[[str, Ids, str], Sample]] = {
    "local": local,
    "generate": generate,
    "vllm": vllm,
}


def main(engine: str, model: str, file: str, dtype: str) -> None:
    """Time an engine.

    Raises:
        RuntimeError: it has returned another number of tokens.
    """
    prompts = json.loads(Path(file).read_text())
    sample, seconds = ENGINES[engine](model, prompts, dtype), []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        lengths = [len(tokens) for tokens in sample()]
        seconds.append(time.perf_counter() - start)
        if lengths != [TOKENS] * (len(prompts) * SAMPLES):
            raise RuntimeError(
                f"{engine}: {len(lengths)} responses of {sorted(set(lengths))} tokens"
            )
    print(json.dumps({"seconds": seconds[1:], "tokens": sum(lengths)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
