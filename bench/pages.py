"""Generated pages of the documentation: `python -m bench.pages options` and `python -m bench.pages
equivalents` print them (`make docs`)."""

import sys
from collections.abc import Iterator

from rlmods.config.equivalents import Equivalent, table
from rlmods.config.options import groups, options

LIBRARIES = ("TRL", "verl", "OpenRLHF")
SCRIPTS = """# Coming from another library

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


def options_page() -> str:
    """Return the page with the table of all groups and options."""
    intro = (
        "Options of each group, selected with `python train.py GROUP=OPTION`. Generated from "
        "`conf/` by `make docs`; do not edit."
    )
    rows = ["# Groups and options", "", intro, ""]
    rows += ["| group | option | description |", "|---|---|---|"]
    for group in groups():
        shown = f"**{group}**"
        for name, text in options(group).items():
            escaped = text.replace("|", "\\|")
            rows.append(f"| {shown} | `{name}` | {escaped} |")
            shown = ""
    return "\n".join(rows)


def equivalents_page() -> str:
    """Return the page with the settings of other libraries."""
    by_typed: dict[str, dict[str, list[str]]] = {}
    examples: dict[str, str] = {}
    for row in table():
        if row.library in LIBRARIES and row.overrides:
            examples.setdefault(row.overrides, row.example)
            names = by_typed.setdefault(row.overrides, {})
            names.setdefault(row.library, []).append(f"`{_name(row)}`")
    lines = [SCRIPTS, PPO, *_trainer("PPOTrainer"), PRM, *_trainer("PRMTrainer"), SETTINGS, ""]
    lines += [f"| here | {' | '.join(LIBRARIES)} |", "|---" * 4 + "|"]
    for overrides, names in by_typed.items():
        cells = [", ".join(names.get(library, [])) for library in LIBRARIES]
        lines.append(f"| `{examples[overrides]}` | {' | '.join(cells)} |")
    missing = [f"`{row.setting}`" for row in table() if not row.overrides]
    return "\n".join([*lines, "", f"Without an equivalent: {', '.join(missing)}."])


def _trainer(library: str) -> Iterator[str]:
    """Yield the table of a trainer's arguments, with an empty line at the end."""
    yield f"| {library} | here |"
    yield "|---|---|"
    for row in table():
        if row.library == library and row.overrides:
            yield f"| `{_name(row)}` | `{row.example}` |"
    yield ""


def _name(row: Equivalent) -> str:
    """Return a setting, with its value if only that value has this equivalent."""
    return row.setting if "{}" in row.overrides else f"{row.setting}={row.value}"


PAGES = {"options": options_page, "equivalents": equivalents_page}

if __name__ == "__main__":
    print(PAGES[sys.argv[1]]())
