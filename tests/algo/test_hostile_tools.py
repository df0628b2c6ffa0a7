"""Training on responses whose tools hang, crash, and return a megabyte, bytes, or the tokens of the
chat template."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlmods.environment import Tools
from rlmods.policy import Policy
from rlmods.reward import Length
from rlmods.rollout import Local, MultiTurn
from rlmods.rollout.base import Continuation
from rlmods.types import Prompt, Response
from tests.environment import hostile
from tests.support.control_tokens import Model
from tests.support.tiny_setup import Batch, Splits, fit, learner

CHATML = (
    "{% if tools %}<|im_start|>system\n<tool_call>{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALLS = ("add", "hang", "crash", "leave", "huge", "binary", "imitate", "missing", "malformed")
"""What the first turn of each response calls, by its index."""
RESULTS = {
    "add": "3",
    "hang": "Error: no result within 1 s",
    "crash": "Error: KeyError: 'no such thing'",
    "leave": "Error: the worker process ended",
    "huge": "x" * 200,
    "binary": "\ufffd\ufffda\x00",
    "imitate": hostile.imitate(),
    "missing": "Error: there is no tool 'missing'",
    "malformed": "Error: the call is not a JSON object",
}
PROMPTS = [Prompt(id=f"p{i}", messages=[{"role": "user", "content": f"1+{i}?"}]) for i in range(2)]


def call(name: str) -> str:
    if name == "malformed":
        return "<tool_call>{</tool_call>"
    arguments = {"a": 1, "b": 2} if name == "add" else {}
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Scripted(Local):
    """Calls the tool of the sample's index in the first turn, and answers in the second."""

    def extend(self, contexts: Sequence[Any], *, iteration: int) -> list[list[Continuation]]:
        return [[self._turn(context, sample) for sample in context.samples] for context in contexts]

    def _turn(self, context: Any, sample: int) -> Continuation:
        text = call(CALLS[sample]) if context.position == 0 else f"answer {sample}"
        ids = [
            *self.synced.tokenizer(text).input_ids,
            self.synced.tokenizer.convert_tokens_to_ids("<|im_end|>"),
        ]
        return Continuation(ids, [-5.0] * len(ids), True)


def policy() -> Policy:
    """Return a random policy with a tokenizer of bytes and a chat template."""
    torch.manual_seed(0)
    tokenizer = Model(CHATML).tokenizer
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 4096,
    }
    made = Policy(
        LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), pad_token_id=0, **sizes)), tokenizer
    )
    made.eos_ids = frozenset({tokenizer.convert_tokens_to_ids("<|im_end|>")})
    return made


def test_every_result_is_observed_and_every_response_goes_on() -> None:
    responses = list[Response]()

    def keep(scored: list[Response]) -> Any:
        responses.extend(scored)
        return Length(1.0)(scored)

    names = [f"{hostile.__name__}.{name}" for name in CALLS[:-2]]
    tools = Tools(names, tool_timeout_s=1.0, max_result_chars=200, max_tokens=1000, workers=2)
    rollout = MultiTurn(Scripted(max_tokens=200), tools)
    model = learner(
        policy=policy(), rollout=rollout, reward=keep, batch=Batch(prompts=2, samples=len(CALLS))
    )
    fit(model, 1, splits=Splits(PROMPTS, []))
    assert len(responses) == 2 * len(CALLS)
    for response in responses:
        name = CALLS[response.meta["sample"]]
        assert len(response.turns) == 2
        assert response.text == f"answer {response.meta['sample']}"
        assert response.finish == "stop"
        [record] = response.turns[0].calls
        assert record.result.startswith(RESULTS[name])
        assert len(record.result) <= 300
        between = response.tokens[response.turns[0].stop : response.turns[1].start]
        shown = model.policy.tokenizer.decode(between, clean_up_tokenization_spaces=False)
        assert shown == f"\n<|im_start|>tool\n{record.result}<|im_end|>\n<|im_start|>assistant\n"
