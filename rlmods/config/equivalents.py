"""Settings of other libraries, with what to type here: for hints, and for docs/equivalents.md."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import yaml

from rlmods.errors import UserError

FILE = Path(__file__).with_suffix(".yaml")
LIBRARIES = ("TRL", "verl", "OpenRLHF")
PAGE = """# Coming from another library

If you type a setting of TRL, verl or OpenRLHF, the error message names what to type here, with
your value. Reward functions with the signatures of TRL and verl work unchanged
([rewards](rewards.md#your-own-reward)).

## A script of TRL

A script with two reward functions:

```python
def right(prompts, completions, answer, **kwargs):
    return [float(gold in text) for text, gold in zip(completions, answer)]


def short(completions, **kwargs):
    return [1.0 - min(1.0, len(text) / 100) for text in completions]


config = GRPOConfig(num_generations=4, reward_weights=[1.0, 0.1], learning_rate=1e-5, max_steps=3)
rows = load_dataset("json", data_files="problems.jsonl", split="train")  # prompt, answer
GRPOTrainer(MODEL, reward_funcs=[right, short], args=config, train_dataset=rows).train()
```

Keep the two functions in a file, `my_rewards.py`. The rest of the script is one command:

```
python train.py algo=grpo reward=function reward.weights=[1.0,0.1] \\
  'reward.function=[my_rewards.py:right,my_rewards.py:short]' \\
  data=jsonl data.train=problems.jsonl data.num_val=10 batch.prompts=8 batch.samples=4 \\
  optimizer.lr=1e-5 trainer.max_iterations=3
```

It trains the embedded model. Add `policy=hf policy.name=MODEL data.chat=true` for yours. Add
`reward.success=1` for `val/accuracy`: a response is correct if the first function scores it 1.
"""
PPO = """## Scripts of PPOTrainer

TRL removed this trainer. A script of it is a command:

```
python train.py algo=ppo policy=hf policy.name=SFT_MODEL data=jsonl data.train=FILE \\
  reward=neural reward.terms.neural.reward.model=REWARD_MODEL critic.init=REWARD_MODEL \\
  batch.epochs=4 kl.coefficient=0.05 critic.coefficient=0.1
```

`critic.clip` is in standard deviations of the returns, `cliprange_value` in units of the reward.
For long responses, add what VAPO (arXiv:2504.05118) adds to PPO:

```
python train.py algo=ppo ratio=clip_higher kl=none critic.pretraining=50 advantage.critic_lam=1 \\
  advantage.alpha=0.05 algo.positive_coefficient=0.1 batch.prompts=32 batch.samples=8
```
"""
PRM = """## Scripts of PRMTrainer

TRL removed this trainer too. Its data has the columns `prompt`, `completions` and `labels`:

```
python train.py algo=process_reward_model policy=hf policy.name=MODEL data=preferences \\
  data.train=FILE data.steps=completions data.step_labels=labels
```

Rows are not truncated. The trained model is [a reward](rewards.md): `reward=process`. All its
weights are trained, without an adapter.
"""
SETTINGS = """## Settings

Generated from `rlmods/config/equivalents.yaml` by `make docs`; do not edit."""


@dataclass(frozen=True)
class Equivalent:
    """One row of the table."""

    library: str
    setting: str
    value: str
    """Value in the other library."""
    overrides: str
    """What to type, `{}` for the value; "" if there is no equivalent."""

    def typed(self, value: str) -> str:
        """Return what to type for a value."""
        return self.overrides.replace("{}", value)

    @property
    def name(self) -> str:
        """The setting, with its value if only that value has this equivalent."""
        return self.setting if "{}" in self.overrides else f"{self.setting}={self.value}"

    @property
    def example(self) -> str:
        return self.typed(self.value)


@cache
def table() -> tuple[Equivalent, ...]:
    """Return all rows."""
    rows = []
    for library, settings in yaml.safe_load(FILE.read_text()).items():
        for name, overrides in settings.items():
            setting, _, value = name.partition("=")
            rows.append(Equivalent(library, setting, value, overrides))
    return tuple(rows)


def advice(setting: str, value: str) -> str | None:
    """Return what to type here for a setting of another library, None if it is not in the table."""
    names = [row.setting for row in table()]
    similar = get_close_matches(setting, names, 1, 0.9) if "." not in setting else []
    rows = [row for row in table() if row.setting in (similar or [setting])]
    if not rows and setting.startswith("actor_rollout_ref."):
        return "docs/equivalents.md lists the settings of verl that have an equivalent"
    if not rows:
        return None
    for row in rows:
        if _is_same(row.value, value):
            return _say(row, value)
    for row in rows:
        if "{}" in row.overrides and value:
            return _say(row, value)
    if len(rows) == 1:
        return _say(rows[0], value)
    choices = [f"{row.overrides or 'nothing'} for {row.setting}={row.value}" for row in rows]
    return f"type {', '.join(choices)}"


def _say(row: Equivalent, value: str) -> str:
    if not row.overrides:
        return f"{row.library}'s setting has no equivalent here: leave it out"
    return f"type {row.typed(value or row.value)}"


def _is_same(first: str, second: str) -> bool:
    """Return whether two values are equal as numbers, or as texts in any case."""
    try:
        return float(first) == float(second)
    except ValueError:
        return first.lower() == second.lower()


def reject_flags(arguments: Sequence[str], known: Collection[str]) -> None:
    """Raise UserError for a setting that is typed as a flag, `--num_generations 8`.

    Args:
        known: flags of the command itself.
    """
    for position, word in enumerate(arguments):
        flag, _, value = word.partition("=")
        if not flag.startswith("--") or flag in known:
            continue
        following = arguments[position + 1 : position + 2]
        is_value = following and "=" not in following[0] and not following[0].startswith("--")
        if not value and is_value:
            value = following[0]
        name = flag[2:].replace("-", "_")
        hint = advice(name, value) or f"type {name}={value or 'VALUE'}"
        raise UserError(f"{flag}: settings are typed without dashes, as NAME=VALUE; {hint}")


def page() -> str:
    """Return the page of the documentation."""
    by_typed: dict[str, dict[str, list[str]]] = {}
    examples: dict[str, str] = {}
    for row in table():
        if row.library in LIBRARIES and row.overrides:
            examples.setdefault(row.overrides, row.example)
            names = by_typed.setdefault(row.overrides, {})
            names.setdefault(row.library, []).append(f"`{row.name}`")
    lines = [PAGE, PPO, *_trainer("PPOTrainer"), PRM, *_trainer("PRMTrainer"), SETTINGS, ""]
    lines += [f"| here | {' | '.join(LIBRARIES)} |", "|---" * 4 + "|"]
    for overrides, names in by_typed.items():
        cells = [", ".join(names.get(library, [])) for library in LIBRARIES]
        lines.append(f"| `{examples[overrides]}` | {' | '.join(cells)} |")
    missing = [f"`{row.setting}`" for row in table() if not row.overrides]
    return "\n".join([*lines, "", f"Without an equivalent: {', '.join(missing)}."])


def _trainer(library: str) -> list[str]:
    """Return the table of a trainer's arguments, with an empty line at the end."""
    rows = [row for row in table() if row.library == library and row.overrides]
    lines = [f"| `{row.name}` | `{row.example}` |" for row in rows]
    return [f"| {library} | here |", "|---|---|", *lines, ""]


if __name__ == "__main__":
    print(page())
