"""Settings of other libraries: every row composes, and a mistyped name is answered by its row."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from bench.pages import SCRIPTS, equivalents_page
from rlmods.config import plugins
from rlmods.config.equivalents import advice, reject_flags, table
from rlmods.config.options import CONF
from rlmods.errors import UserError
from rlmods.run import name
from tests.support.processes import Process
from tests.support.rows import write_rows


@pytest.mark.slow
@pytest.mark.parametrize("library", sorted({row.library for row in table()}))
def test_every_row_composes(library: str) -> None:
    plugins.register()
    name.register()
    rows = [row for row in table() if row.library == library and row.overrides]
    assert rows
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for row in rows:
            compose("train", row.example.split())


def test_page_is_up_to_date() -> None:
    written = Path("docs/equivalents.md").read_text()
    assert written == f"{equivalents_page()}\n", "run: make docs"


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("beta", "0", "type kl=none"),
        ("beta", "0.1", "type kl=loss kl.coefficient=0.1"),
        ("scale_rewards", "batch", "type advantage=group_norm advantage.scale=batch"),
        ("scale_rewards", "False", "type advantage=group_mean"),
        ("use_vllm", "True", "type rollout=vllm"),
        ("use_peft", "False", "use_peft=true is adapter=lora here: leave out use_peft=False"),
        ("actor_rollout_ref.actor.use_kl_loss", "false", "type kl=none"),
        ("epsilon", "0.3", "type ratio=symmetric ratio.low=0.3 ratio.high=0.3"),
        ("rollout.n_samples_per_prompt", "16", "type batch.samples=16"),
        ("num_generations", "", "type batch.samples=8"),
        ("num_ppo_epochs", "2", "type batch.epochs=2"),
        ("kl_estimator", "k3", "type kl=loss"),
        (
            "missing_eos_penalty",
            "2.0",
            "type +reward@reward.terms.eos.reward=overlong "
            "reward.terms.eos.reward.cache_length=1 +reward.terms.eos.weight=2.0",
        ),
        ("disable_dropout", "False", "type algo=process_reward_model algo.dropout=0.1"),
        ("trainer.critic_warmup", "20", "type algo=ppo critic.pretraining=20"),
    ],
)
def test_advice(setting: str, value: str, expected: str) -> None:
    assert advice(setting, value) == expected


def test_advice_for_another_value_lists_the_known_ones() -> None:
    assert "ratio=cispo aggregation=token_mean for loss_type=cispo" in str(advice("loss_type", "x"))
    assert advice("nothing_like_this", "1") is None
    assert "no equivalent" in str(advice("min_p", "0.1"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["algo=dapo", "--num_generations", "4"], "type batch.samples=4"),
        (["--num-generations=4"], "type batch.samples=4"),
        (["--beta", "0.0", "algo=grpo"], "type kl=none"),
        (["--seed", "2"], "type seed=2"),
    ],
)
def test_settings_typed_as_flags(arguments: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        reject_flags(arguments, {"--multirun"})
    reject_flags(["--multirun", "seed=1,2"], {"--multirun"})


@pytest.mark.slow
def test_the_script_of_the_page_runs_as_its_command(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", SCRIPTS, re.DOTALL)[0]
    (tmp_path / "my_rewards.py").write_text(code.split("config =")[0])
    rows = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(40)]
    write_rows(tmp_path / "problems.jsonl", rows)
    [command] = re.findall(r"```\npython (.*?)```", SCRIPTS, re.DOTALL)
    arguments = [*shlex.split(command.replace("\\\n", " ")), "run_dir=run"]
    process = Process(arguments, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    metrics = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    trained = [row for row in metrics if "train/reward/function/right" in row]
    assert [row["iteration"] for row in trained] == [1, 2, 3]
    for row in trained:
        terms = [row[f"train/reward/function/{name}"] for name in ("right", "short")]
        assert row["train/reward"] == pytest.approx(terms[0] + 0.1 * terms[1])
