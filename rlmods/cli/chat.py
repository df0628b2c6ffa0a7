"""Talk to a saved policy in the terminal: `python -m rlmods.chat RUN_OR_MODEL [key=value]`.

RUN_OR_MODEL is a run directory (its `export/`), a directory of a Hugging Face model, or a hub name.
A model with a chat template gets the whole conversation; to one without, each line is a prompt of
its own. `/reset` forgets the conversation, `/exit` or Ctrl-D ends. Ctrl-C stops an answer. Without
a terminal, each line of the standard input is answered.

    max_tokens=256 temperature=0.7 top_p=1.0 top_k=0 seed=0    sampling; temperature=0 is greedy
    system=null                                                system message, for a chat template
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from transformers import TextStreamer

from rlmods.cli.command import command, find_policy
from rlmods.errors import UserError, suggest
from rlmods.policy import Policy
from rlmods.policy.hf import load
from rlmods.run.printable import printable
from rlmods.types import Prompt


@dataclass(frozen=True)
class Settings:
    """How answers are sampled."""

    max_tokens: int = 256
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    system: str | None = None

    def __post_init__(self) -> None:
        rules = {
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
            "temperature": (self.temperature >= 0, "0 (greedy) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "0 (all) or more"),
        }
        for name, (valid, requirement) in rules.items():
            if not valid:
                raise UserError(f"{name}={getattr(self, name)}: must be {requirement}")


def parse_settings(words: Sequence[str]) -> Settings:
    """Return the settings of `key=value` words.

    Raises:
        UserError: an unknown key, or a value of another type.
    """
    names = [x.name for x in fields(Settings)]
    for word in words:
        key, sign, _ = word.partition("=")
        if not sign or key not in names:
            raise UserError(f"{word}: no such setting; {suggest(key, names)}")
    try:
        values: Any = OmegaConf.merge(
            OmegaConf.structured(Settings), OmegaConf.from_dotlist(list(words))
        )
        return Settings(**{name: values[name] for name in names})
    except OmegaConfBaseException as error:
        raise UserError(" ".join(str(error).split())) from error


class Printer(TextStreamer):  # type: ignore[misc]
    """Prints text as it is sampled, control characters as escapes."""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        print(printable(text), end="\n" if stream_end else "", flush=True)


@dataclass
class Conversation:
    """What was said so far, and by which model."""

    policy: Policy
    settings: Settings
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_chat = self.policy.tokenizer.chat_template is not None
        if self.settings.system is not None and not self.is_chat:
            raise UserError("system: this model has no chat template: leave it out")
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        self.messages = (
            []
            if self.settings.system is None
            else [{"role": "system", "content": self.settings.system}]
        )

    @torch.no_grad()
    def answer(self, text: str) -> str:
        """Print and return the answer to a message.

        Raises:
            UserError: the conversation leaves no room for an answer.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        ids = self.policy.encode(
            Prompt(id="chat", messages=asked) if self.is_chat else Prompt(id="chat", text=text)
        )
        room = self.policy.context_length - len(ids)
        if room < 1:
            raise UserError(
                f"the conversation has {len(ids)} tokens, the context of the model "
                f"{self.policy.context_length}: type /reset"
            )
        limit, x = min(self.settings.max_tokens, room), self.settings
        sampling = (
            {"temperature": x.temperature, "top_p": x.top_p, "top_k": x.top_k}
            if x.temperature > 0
            else {}
        )
        inputs = torch.tensor([ids], device=self.policy.device)
        output = self.policy.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=x.temperature > 0,
            max_new_tokens=limit,
            eos_token_id=sorted(self.policy.eos_ids),
            pad_token_id=self.policy.pad_id,
            streamer=Printer(self.policy.tokenizer, skip_prompt=True, skip_special_tokens=True),
            **sampling,
        )
        new = output[0, len(ids) :].tolist()
        if new and new[-1] not in self.policy.eos_ids:
            setting = "max_tokens" if limit == x.max_tokens else "the context of the model"
            print(f"[cut at {setting}, {limit} tokens]", file=sys.stderr, flush=True)
        reply: str = self.policy.tokenizer.decode(new, skip_special_tokens=True)
        if self.is_chat:
            self.messages = [*asked, {"role": "assistant", "content": reply}]
        return reply


def lines() -> Iterator[str]:
    """Yield the lines that are typed, or those of the standard input."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    import readline  # noqa: F401  # lets `input` edit the line

    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def chat(source: str, words: Sequence[str]) -> str:
    """Answer lines until there are none.

    Raises:
        UserError: an invalid setting, or a model that cannot be loaded.
    """
    settings = parse_settings(words)
    model, _ = find_policy(source)
    policy = load(model).to("cuda" if torch.cuda.is_available() else "cpu").eval()
    torch.manual_seed(settings.seed)
    conversation = Conversation(policy, settings)
    for line in lines():
        match line.strip():
            case "":
                continue
            case "/exit":
                break
            case "/reset":
                conversation.reset()
                continue
        try:
            conversation.answer(line)
        except KeyboardInterrupt:
            print("\n[stopped]", flush=True)
        except UserError as error:
            print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
    return ""


def main(arguments: Sequence[str]) -> Any:
    command(arguments, __doc__, lambda: chat(arguments[0], arguments[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
