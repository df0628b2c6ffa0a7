"""Tasks of environments of the verifiers package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlmods.data.schema import Splits, check_count, check_messages, checked_splits
from rlmods.data.verifiers_loader import load
from rlmods.types import Prompt


@dataclass(frozen=True)
class VerifiersData:
    """The tasks of an environment of the package verifiers, for `environment=verifiers`: train from
    its data set, val from its evaluation data set. Where it has no evaluation data set, val are the
    first tasks of its data set, and train those that follow.

    `meta` holds `verifiers`, the row of the data set. Raises: UserError for a missing package, an
    environment that does not load, and a row without a prompt."""

    env_id: str | None = None
    """The environment: the name of an installed environment, or "module:CLASS"
    (`verifiers:ReasoningGymEnv`)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment, as in `+data.options.gym=chain_sum`."""
    num_train: int | None = None
    """Number of train tasks; null: all."""
    num_val: int = 100
    """Maximum number of val tasks."""
    chat: bool = True
    """Give the messages of a task to the chat template; false: their texts, for models without a
    chat template."""

    def __call__(self) -> Splits:
        if self.num_train is not None:
            check_count("num_train", self.num_train, 1)
        check_count("num_val", self.num_val, 0)
        environment = load(self.env_id, self.options)
        rows = list(environment.get_dataset())
        if environment.eval_dataset is None and environment.eval_dataset_source is None:
            held_out, rows = rows[: self.num_val], rows[self.num_val :]
        else:
            held_out = list(environment.get_eval_dataset())[: self.num_val]
        train, val = self._prompts(rows[: self.num_train], "train"), self._prompts(held_out, "val")
        return checked_splits(train, val, f"data.env_id={self.env_id}")

    def _prompts(self, rows: Iterable[Mapping[str, Any]], split: str) -> list[Prompt]:
        prompts = []
        for i, row in enumerate(rows):
            messages = (
                row["prompt"]
                if isinstance(row["prompt"], list)
                else [{"role": "user", "content": row["prompt"]}]
            )
            plain = [
                {"role": message["role"], "content": message["content"]} for message in messages
            ]
            checked = check_messages(plain, f"data.env_id={self.env_id}, {split} row {i}", "prompt")
            answer = row.get("answer")
            shown: dict[str, Any] = (
                {"messages": checked}
                if self.chat
                else {"text": "\n\n".join(m["content"] for m in checked)}
            )
            gold = answer if isinstance(answer, str) and answer else None
            prompts.append(
                Prompt(
                    id=f"verifiers-{split}-{i}", answer=gold, meta={"verifiers": dict(row)}, **shown
                )
            )
        return prompts
