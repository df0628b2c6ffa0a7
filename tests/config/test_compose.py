"""Every option under every algorithm makes a plan, or says in one line what to type instead."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlmods.cli.table import show_run
from rlmods.config import build, compose
from rlmods.config.recipe import recipe
from rlmods.config.rules import rows as row_rules
from rlmods.config.run_spec import RunSpec
from rlmods.errors import UserError
from rlmods.needs import AdvantageNeeds
from rlmods.run.directory import RunDir
from rlmods.training.extensions import PTX
from tests.support.composed import ALGORITHMS, CONF, algorithm, alone, composed, loaded, with_option
from tests.support.rows import write_rows
from tests.support.tiny_setup import extension

OPTIONS = [
    f"{path.parent.name}={path.stem}"
    for path in sorted(CONF.glob("*/*.yaml"))
    if path.parent.name != "algo"
]
KINDS = ["dapo", "ppo", "sft", "dpo", "reward_model", "process_reward_model"]
"""Algorithms that use different groups."""
THOROUGH = os.environ.get("RLMODS_THOROUGH") == "1"


TINY = ("policy.pretrained=false", "policy.hidden_size=32", "policy.num_layers=1")


def refused(*typed: str) -> str:
    with pytest.raises(UserError) as error:
        composed(*typed)
    assert "\n" not in str(error.value)
    return str(error.value)


SUM = ("advantage=sum", "+advantage@advantage.terms.a.estimator=group_mean")


def cases() -> Iterator[tuple[str, str]]:
    """Yield each option with a kind of algorithm that uses its group, and the first option of a
    group with each kind that refuses it. An experiment chooses its algorithm. With
    RLMODS_THOROUGH=1: each option with every kind that uses its group."""
    refused: set[tuple[str, str]] = set()
    for index, option in enumerate(OPTIONS):
        group = option.split("=")[0]
        if group == "experiment":
            yield option, KINDS[0]
            continue
        kinds = KINDS[index % len(KINDS) :] + KINDS[: index % len(KINDS)]
        users = [
            algo
            for algo in kinds
            if group not in compose.PARTS or group in algorithm(algo).config_groups
        ]
        for algo in users if THOROUGH else users[:1]:
            yield option, algo
        for algo in kinds:
            if algo not in users and (group, algo) not in refused:
                refused.add((group, algo))
                yield option, algo


def timed(case: tuple[str, str]) -> Any:
    """Return a case, marked as slow if its data take seconds."""
    is_slow = case[0] == "experiment=worked_warm_start"
    return pytest.param(*case, marks=pytest.mark.slow) if is_slow else case


class TestEveryOption:
    @pytest.mark.slow
    @pytest.mark.parametrize(("option", "algo"), list(map(timed, cases())))
    def test_makes_a_plan_or_says_what_to_type(self, option: str, algo: str) -> None:
        try:
            if option.startswith("experiment="):
                made = composed(option)
            else:
                made = with_option(f"algo={algo}", option)
        except UserError as error:
            message = str(error)
            assert "\n" not in message
            assert any(word in message for word in ("=", "drop", "pip install")), message
        else:
            group, chosen = option.split("=")
            assert made.choices.get(group, chosen) == chosen
            assert set(made.parts) == set(compose.PARTS) & set(made.algorithm.config_groups)

    @pytest.mark.slow
    @pytest.mark.parametrize("algo", ALGORITHMS)
    def test_an_algorithm_alone_is_fine(self, algo: str, tmp_path: Path) -> None:
        made = composed(*alone(algo, tmp_path))
        assert made.label == algo
        assert made.choices["algo"] == algo
        assert {group: made.choices[group] for group in recipe(algo)} == recipe(algo)

    @pytest.mark.parametrize(
        "option",
        ["router=replay", "router=frozen", "router=two_stage", "router.aux_coefficient=0.01"],
    )
    def test_a_router_needs_a_mixture_of_experts(self, option: str) -> None:
        about = (
            r"^router= needs a mixture of experts, and LlamaForCausalLM .*: type router=free "
            r"without router\.\*$"
        )
        with pytest.raises(UserError, match=about):
            loaded(option, "policy.pretrained=false", "policy.hidden_size=32")

    @pytest.mark.parametrize("logger", ["default", "csv", "tensorboard", "none"])
    def test_a_trainer_comes_out(self, logger: str, tmp_path: Path) -> None:
        own = ("trainer.max_iterations=7", "trainer.accelerator=cpu", "trainer.precision=32-true")
        made = composed(f"logger={logger}", f"run_dir={tmp_path}", *own)
        trainer = build.trainer(made.config)
        assert trainer.max_iterations == 7
        assert len(trainer.loggers) == {"default": 2, "none": 0}.get(logger, 1)
        assert {type(c).__name__ for c in trainer.callbacks} >= {
            "Progress",
            "Samples",
            "IterationCheckpoint",
        }

    @pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
    def test_a_logger_without_its_package(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(
            UserError,
            match=rf"^logger={name} needs the package {name}; type pip install 'rlmods\[{name}\]'$",
        ):
            composed(f"logger=[csv,{name}]")

    def test_a_logger_that_does_not_exist(self) -> None:
        with pytest.raises(UserError, match=r"^logger\.mine: .*NoLogger"):
            composed("+logger.mine._target_=rlmods.logger.NoLogger")
        with pytest.raises(UserError, match=r"type ~logger\.tensorboard to leave it out"):
            composed("logger.tensorboard=null")

    @pytest.mark.parametrize("algo", ALGORITHMS)
    def test_a_learner_comes_out(self, algo: str, tmp_path: Path) -> None:
        learner = loaded(
            *alone(algo, tmp_path),
            "policy.pretrained=false",
            "policy.hidden_size=32",
            "optimizer.lr=0.5",
            "seed=4",
        ).learner
        assert type(learner) is algorithm(algo)
        assert learner.seed == 4
        rollout = getattr(learner.rollout, "rollout", learner.rollout)
        assert rollout is None or rollout.seed == 4
        assert learner.optimizer([torch.nn.Parameter(torch.zeros(1))]).defaults["lr"] == 0.5
        assert len(learner.splits.val) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "label"),
    [
        ((), "dapo"),
        (("ratio=clip_higher",), "dapo"),
        (("reward=accuracy",), "dapo"),
        (("reward.terms.format.weight=0.2",), "dapo[reward.terms.format.weight=0.2]"),
        (("~reward.terms.overlong",), "dapo[~reward.terms.overlong]"),
        (
            ("+reward@reward.terms.mine.reward=brevity",),
            "dapo[reward.terms.mine.reward=brevity]",
        ),
        (
            ("+reward@reward.terms.mine.reward=length", "+reward.terms.mine.weight=0.5"),
            "dapo[reward.terms.mine.reward=length,reward.terms.mine.weight=0.5]",
        ),
        (("reward=regex", "reward.pattern=a"), "dapo"),
        (("ratio=symmetric",), "dapo[ratio=symmetric]"),
        (("ratio.high=0.3",), "dapo[ratio.high=0.3]"),
        (
            ("ratio=symmetric", "ratio.low=0.1", "kl=loss"),
            "dapo[kl=loss,ratio=symmetric,ratio.low=0.1]",
        ),
        (
            ("batch.prompts=16", "optimizer.lr=1e-3", "rollout.temperature=0.9", "seed=3"),
            "dapo",
        ),
        (("algo=grpo",), "grpo"),
        (("algo.ptx_rows=${batch.prompts}",), "dapo"),
        (("algo=grpo", "algo.normalize_reward=true"), "grpo[algo.normalize_reward=true]"),
        (
            ("algo=ppo", "algo.ptx_coefficient=0.1", "algo.max_draws=3"),
            "ppo[algo.ptx_coefficient=0.1]",
        ),
        (("algo=grpo", "kl=none"), "grpo[kl=none]"),
        (("algo=sft", "optimizer.lr=1"), "sft"),
        (
            ("algo=grpo", "reference=model", "reference.name=a/b"),
            "grpo[reference=model,reference.name=a/b]",
        ),
        (("algo=distill", "teacher.name=a/b"), "distill"),
        (
            ("algo=grpo", "router=replay", "router.every=2"),
            "grpo[router=replay,router.every=2]",
        ),
        (("algo=grpo", "algo.entropy_coefficient=0.1"), "grpo[algo.entropy_coefficient=0.1]"),
        (("algo=grpo", "algo.target_entropy=0.5"), "grpo[algo.target_entropy=0.5]"),
        (("algo=grpo", "algo.target_kl=0.5"), "grpo[algo.target_kl=0.5]"),
        (("algo=grpo", "algo.overlong_filter=true"), "grpo[algo.overlong_filter=true]"),
        (("algo=grpo", "algo.clip_reward=2.0"), "grpo[algo.clip_reward=2.0]"),
        (("algo=grpo", "algo.replay_fraction=0.5"), "grpo[algo.replay_fraction=0.5]"),
        (("algo=grpo", "algo.reference_every=5"), "grpo[algo.reference_every=5]"),
        (("algo=dpo", "algo.sft_coefficient=0.5"), "dpo[algo.sft_coefficient=0.5]"),
        (("algo=online_dpo", "algo.reference_every=5"), "online_dpo[algo.reference_every=5]"),
        (("algo=reward_model", "algo.centre=0.01"), "reward_model[algo.centre=0.01]"),
        (
            ("algo=grpo", *SUM, "+advantage.terms.a.weight=0.5"),
            "grpo[advantage=sum,advantage.terms.a.estimator=group_mean,"
            "advantage.terms.a.weight=0.5]",
        ),
        (
            (
                *("algo=grpo", "advantage=sum"),
                "+advantage@advantage.terms.a.estimator=turn_norm",
                "advantage.terms.a.estimator.gamma=0.5",
            ),
            "grpo[advantage=sum,advantage.terms.a.estimator=turn_norm,"
            "advantage.terms.a.estimator.gamma=0.5]",
        ),
        (("correction=none",), "dapo"),
        (("correction=truncated",), "dapo[correction=truncated]"),
        (
            ("algo=ppo", "correction=masked", "correction.low=0.0"),
            "ppo[correction=masked,correction.low=0.0]",
        ),
    ],
)
def test_the_label_names_what_departs_from_the_paper(typed: tuple[str, ...], label: str) -> None:
    assert composed(*typed).label == label


PAPERS = {
    "ppo": ("fixed", "gae_whitened", "separate", "reward", "symmetric", "token_mean"),
    "ppo_kl": ("fixed", "gae_whitened", "separate", "reward", "kl_penalty", "token_mean"),
    "reinforce": ("fixed", "ema", "none", "reward", "none", "token_mean"),
    "rloo": ("fixed", "rloo", "none", "reward", "none", "token_mean"),
    "reinforce_pp": ("fixed", "reinforce_pp", "none", "reward", "symmetric", "token_mean"),
    "reinforce_pp_baseline": (
        "fixed",
        "reinforce_pp_baseline",
        "none",
        "k2",
        "symmetric",
        "token_mean",
    ),
    "remax": ("fixed", "greedy", "none", "reward", "none", "token_mean"),
    "grpo": ("fixed", "group_norm", "none", "loss", "symmetric", "sequence_mean"),
    "iterative_grpo": ("fixed", "group_norm", "none", "loss", "symmetric", "sequence_mean"),
    "dr_grpo": ("fixed", "group_mean", "none", "none", "symmetric", "fixed_length"),
    "dapo": ("dynamic", "group_norm", "none", "none", "clip_higher", "token_mean"),
    "gspo": ("fixed", "group_norm", "none", "none", "sequence", "sequence_mean"),
    "sapo": ("fixed", "group_norm", "none", "none", "soft", "sequence_mean"),
    "cispo": ("fixed", "group_norm", "none", "none", "cispo", "token_mean"),
    "gmpo": ("fixed", "group_norm", "none", "none", "geometric_mean", "sequence_mean"),
    "rft": ("best_of", "accept", "none", "none", "log_likelihood", "token_mean"),
}
"""Parts of the papers: sampling, advantage, critic, KL, ratio, aggregation."""


class TestRecipe:
    @pytest.mark.parametrize("algo", PAPERS)
    def test_parts_are_those_of_the_paper(self, algo: str, tmp_path: Path) -> None:
        choices = composed(*alone(algo, tmp_path)).choices
        assert (
            tuple(
                choices[group]
                for group in ("sampling", "advantage", "critic", "kl", "ratio", "aggregation")
            )
            == PAPERS[algo]
        )

    @pytest.mark.parametrize("order", [1, -1])
    def test_the_command_line_wins(self, order: int) -> None:
        made = composed(*["algo=grpo", "ratio=clip_higher", "kl=none"][::order])
        assert (made.parts["ratio"].low, made.parts["ratio"].high) == (0.2, 0.28)
        assert made.parts["kl"].coefficient == 0
        assert type(made.parts["aggregation"]).__name__ == "SequenceMean"

    def test_values_reach_the_parts(self) -> None:
        made = composed(
            "ratio.low=0.11",
            "rollout.max_tokens=9",
            "aggregation=fixed_length",
            "reward.terms.format.weight=0.5",
        )
        assert made.parts["ratio"].low == 0.11
        assert made.parts["rollout"].max_tokens == made.parts["aggregation"].length == 9
        assert made.config.reward.terms.overlong.reward.max_length == 9
        made = composed(
            "data=long_sums",
            "environment=tools",
            "environment.max_tokens=90",
            "rollout.max_tokens=9",
            "aggregation=fixed_length",
        )
        assert made.parts["aggregation"].length == 90

    def test_an_experiment_chooses_the_algorithm(self) -> None:
        made = composed("experiment=tiny_warm_start", "data.num_train=100")
        assert made.label == "sft"
        assert made.batch.prompts == 96
        assert made.validation.samples == 8


class FirstStep:
    """An estimator that reads steps and does not normalise them."""

    needs = AdvantageNeeds(group=True, steps=True)

    def __init__(self, **settings: Any) -> None:
        pass

    def __call__(self, rewards: Any, mask: Any, group: Any, values: Any, steps: Any) -> Any:
        return rewards


PROCESS = ("reward=process", "reward.terms.process.reward.model=an/other")
BY_SOURCE = (
    "data=mixture",
    "+data@data.sources.a=arithmetic",
    "reward=by_source",
    "+reward@reward.rewards.a=process",
    "reward.rewards.a.terms.process.reward.model=an/other",
)
BY_TURN = ("environment=guess_number", "reward=environment", "reward.by_turn=true")

AHEAD = ("rollout=vllm_server", "rollout.urls=[http://h]", "rollout.ahead=1")
GAME = ("data=hidden_number", "reward=environment", "environment=guess_number")
RULES = {
    "protocols": [
        (
            ("environment=guess_number", "environment._target_=types.SimpleNamespace"),
            "SimpleNamespace has no start",
        ),
        (
            ("ratio=none", "ratio._target_=types.SimpleNamespace"),
            "ratio=none: SimpleNamespace has no __call__",
        ),
        (
            ("rollout._target_=types.SimpleNamespace",),
            "rollout=local: SimpleNamespace has no generate and no sync",
        ),
        (
            ("kl=none", "kl._target_=rlmods.ratio.Unclipped"),
            "kl=none: Unclipped has no coefficient",
        ),
    ],
    "branching": [
        (
            ("branching=entropy",),
            "branching=entropy: responses branch after the result of a tool, and "
            "environment=single_turn has none",
        ),
        (
            (*GAME, "branching=entropy"),
            "branching.num_initial=8 leaves none of batch.samples=8 for branches: type "
            "branching.num_initial=4",
        ),
        (
            (*GAME, "branching=entropy", "rollout=vllm"),
            "rollout=vllm does not return the entropies by which responses branch: type "
            "rollout=local",
        ),
    ],
    "several_turns": [
        (
            ("algo=online_dpo", *GAME),
            "algo=online_dpo trains on responses of one turn, but environment=guess_number "
            "has several: type env",
        ),
        (
            ("algo=online_dpo", "environment=tools"),
            "but environment=tools has several: type environment=single_turn",
        ),
    ],
    "turn_rewards": [
        (
            (
                *("data=hidden_number", "environment=guess_number", "reward=math"),
                "+reward@reward.terms.game.reward=environment",
                "+reward.terms.game.timeout_s=5",
            ),
            "this reward reads the turns of a response, which workers do not get: drop timeout_s",
        ),
        (
            ("environment=tools", "environment.tools=[search]"),
            "search needs documents: type environment.documents=FILE",
        ),
        (
            ("reward=environment",),
            "reward reads the rewards of an environment, and environment=single_turn gives "
            "none: type environment=gu",
        ),
        (
            ("algo=grpo", "advantage=process", *PROCESS, "environment=tools"),
            "reward.terms.process.reward rewards single tokens of a response, whose "
            "observations in environment=tools are not sampled",
        ),
    ],
    "group_size": [
        (
            ("algo=sdpo", "batch.samples=1"),
            "teacher=self compares responses to one prompt, but batch.samples=1: type",
        ),
        (
            ("algo=grpo", "batch.samples=1"),
            "advantage=group_norm compares responses to one prompt, but batch.samples=1: "
            "type batch.",
        ),
        (("sampling=dynamic", "advantage=rloo", "batch.samples=1"), "advantage=rloo compares"),
        (
            ("algo=ppo", "sampling=dynamic", "batch.samples=1"),
            "but batch.samples=1: type sampling=fixed, or batch.samples=8",
        ),
        (
            ("algo=remax", "sampling=dynamic", "batch.samples=1"),
            "sampling=dynamic compares responses to one prompt",
        ),
        (
            ("algo=reinforce_pp", "sampling=dynamic", "batch.samples=1"),
            "sampling=dynamic compares responses to one prompt",
        ),
        (
            (
                "algo=ppo",
                "sampling=fixed",
                "reward=preference",
                "+judge@reward.judge=rule",
                "batch.samples=1",
            ),
            "reward=preference compares responses to one prompt",
        ),
        (
            (
                "algo=ppo",
                "sampling=fixed",
                "reward=ensemble",
                "+reward@reward.rewards.a=preference",
                "+judge@reward.rewards.a.judge=rule",
                "batch.samples=1",
            ),
            "reward=ensemble compares responses to one prompt",
        ),
        (
            ("algo=online_dpo", "batch.samples=1"),
            "a judge compares responses to one prompt, but batch.samples=1: type batch.samples=4",
        ),
    ],
    "critic": [
        (("advantage=gae",), "advantage=gae needs a critic: type critic=separate"),
        (("critic=shared",), "critic=shared would be trained but not used: type critic=none"),
        (
            ("algo=ppo", "critic.pretraining=50", "trainer.max_iterations=40"),
            "critic.pretraining=50 leaves none of the 40 iterations to the policy: type "
            "trainer.max_iterations=90",
        ),
    ],
    "steps": [
        (
            ("algo=grpo", "advantage=process"),
            "advantage=process needs a reward for each step, but reward=math returns one per "
            "response",
        ),
        (
            ("algo=grpo", *PROCESS),
            "pay for the number of steps: type reward.terms.process.reward.aggregate=min, or "
            "advantage=process",
        ),
        (("algo=ppo", *PROCESS), "advantage=gae_whitened would add them up"),
        (
            ("algo=grpo", *SUM, *PROCESS),
            "and advantage.terms.a would add them up and so pay for the number of steps",
        ),
        (
            ("algo=grpo", *SUM, "+advantage.terms.a.reward=process", *PROCESS),
            "reward.terms.process.reward gives one reward per step, and advantage.terms.a",
        ),
        (
            (
                *("algo=grpo", "advantage=sum", *PROCESS),
                "+advantage@advantage.terms.a.estimator=process",
                "+advantage.terms.a.reward=gold",
            ),
            "advantage.terms.a needs a reward for each step, but reward.terms.gold.reward",
        ),
        (
            ("algo=rloo", *PROCESS, "reward.terms.gold.weight=1.0"),
            "advantage=rloo would add them up",
        ),
        (
            (
                *("algo=grpo", "advantage=process", *PROCESS),
                "+reward.terms.turns.reward._target_=rlmods.reward.EnvironmentReward",
                "+reward.terms.turns.reward.by_turn=true",
            ),
            "rewards by token as rewards of steps: let reward.terms.turns.reward give one per response",
        ),
        (
            ("algo=grpo", "advantage=process_outcome", *PROCESS),
            "but reward=process only has rewards of steps: type reward.terms.gold.weight=1, "
            "or advantage=process",
        ),
        (
            ("algo=grpo", *BY_SOURCE),
            "type reward.rewards.a.terms.process.reward.aggregate=min, or advantage=process",
        ),
        (
            ("algo=grpo", "advantage=process_outcome", *BY_SOURCE),
            "type reward.rewards.a.terms.gold.weight=1, or advantage=process",
        ),
    ],
    "credit_terms": [
        (
            ("algo=grpo", *SUM, "+advantage.terms.a.reward=formt"),
            "advantage.terms.a.reward=formt: reward=math has no such term; did you mean format?",
        ),
        (
            ("algo=grpo", *SUM, "+advantage.terms.a.reward=b", *BY_SOURCE),
            "has no such term; type advantage.terms.a.reward=null",
        ),
        (
            (
                "algo=grpo",
                "advantage=sum",
                "+advantage@advantage.terms.a.estimator=greedy",
                "+advantage.terms.a.reward=format",
            ),
            "the greedy response has its total reward as baseline: type "
            "advantage.terms.a.reward=null",
        ),
    ],
    "failed_programs": [
        (
            (
                "algo=grpo",
                "environment=agent",
                "environment.agent=tests.support.agents:script",
                "environment.failure_reward=-1",
                "advantage=gdpo",
            ),
            "environment.failure_reward=-1 replaces the total reward, and advantage=gdpo reads "
            "its terms: type environment.failure_reward=null",
        ),
    ],
    "kl_in_reward": [
        (
            ("algo=grpo", *SUM, "+advantage.terms.a.reward=format", "kl=reward"),
            "advantage=sum uses only the rewards of terms",
        ),
        (
            ("algo=rloo", *PROCESS, "advantage._target_=tests.config.test_compose.FirstStep"),
            "uses only the rewards of steps, so a KL in the reward would have no effect: "
            "type kl=loss, or kl=none",
        ),
        (
            ("algo=rloo", "advantage=gdpo"),
            "only the rewards of terms, so a KL in the reward would have no effect: type kl=loss",
        ),
        (
            ("algo=rft", "kl=reward"),
            "advantage=accept reads correctness only, so a KL in the reward would have no "
            "effect: type kl=loss",
        ),
        (("algo=rft", "kl=ramp", "kl.coefficient=0.0"), "advantage=accept reads correctness only"),
    ],
    "kl_estimator": [
        (
            ("algo=grpo", "kl.estimator=k1"),
            "kl.estimator=k1 in the loss is 0, whatever the reference: type kl.estimator=k2, "
            "or kl.where=reward",
        ),
        (("algo=grpo", "kl=adaptive", "kl.where=loss"), "type kl.estimator=k2, or kl.where=reward"),
        (
            ("algo=ppo", "kl.estimator=k2"),
            "not kl.estimator=k2: type kl.estimator=k1, or kl.where=loss",
        ),
        (
            ("algo=ppo", "kl=ramp", "kl.estimator=k3"),
            "not kl.estimator=k3: type kl.estimator=k1, or kl.where=loss",
        ),
    ],
    "token_selection": [
        (
            ("algo=rft", "tokens=off_policy", "rollout.temperature=0.6"),
            "tokens=off_policy compares policy and sampler, but ratio=log_likelihood reads the "
            "policy at temperature 1.0: type rollout.temperature=1.0, or tokens=all",
        ),
        *(
            (
                ("algo=gspo", f"tokens={option}"),
                f"tokens={option} selects single tokens, but ratio=sequence has one ratio per "
                "response, and its gradient is of all tokens: type ratio=sequence_token, or "
                "tokens=all",
            )
            for option in ("entropy", "clip_cov", "kl_cov")
        ),
    ],
    "distance_from_old_policy": [
        (
            ("algo=grpo", "tokens=kl_cov", "ratio=none"),
            "tokens=kl_cov penalises the distance from the old policy, which is 0 in the only "
            "optimizer step of an iteration: type batch.minibatches=4, or tokens=all",
        ),
    ],
    "token_credit": [
        (
            ("algo=ppo", "ratio=sequence"),
            "those of advantage=gae_whitened differ by token: type ratio=sequence_token, or "
            "advantage=group_norm",
        ),
        (("algo=ppo", "ratio=geometric_mean"), "ratio=geometric_mean has one ratio per response"),
        (
            ("algo=gspo", *PROCESS, "advantage=process"),
            "those of advantage=process differ by token: type ratio=sequence_token",
        ),
        (
            ("algo=gspo", "advantage=branch_hard"),
            "those of advantage=branch_hard differ by token: type ratio=sequence_token",
        ),
        (
            ("algo=gspo", "advantage=tree"),
            "those of advantage=tree differ by token: type ratio=sequence_token",
        ),
        (
            ("algo=gspo", "kl=reward"),
            "those of advantage=group_norm differ by token with kl=reward: type "
            "ratio=sequence_token, or kl=loss",
        ),
        (("algo=gmpo", "kl=adaptive"), "differ by token with kl=adaptive"),
        (
            ("algo=reinforce_pp", "ratio=sequence"),
            "those of advantage=reinforce_pp differ by token with kl=reward",
        ),
        (
            ("algo=reinforce_pp", "ratio=sequence", "kl=none", "advantage.gamma=0.9"),
            "those of advantage=reinforce_pp differ by token: type",
        ),
        (
            ("algo=distill", "teacher.name=a/b", "ratio=sequence"),
            "the teacher grades each token: type ratio=sequence_token",
        ),
        (
            ("algo=remax", "ratio=sequence"),
            "those of advantage=greedy differ by token with kl=reward",
        ),
    ],
    "selected_rows": [
        (
            ("algo=reinforce_pp", "sampling=best_of"),
            "normalises over the responses that are kept: type advantage=accept, or sampling=fixed",
        ),
    ],
    "greedy_baseline": [
        (
            ("algo=remax", "batch.samples=2", "reward=preference", "+judge@reward.judge=rule"),
            "compares responses to one prompt, but advantage=greedy has a single greedy one "
            "as baseline: type advantage=rloo",
        ),
    ],
    "margins": [
        (
            ("algo=reward_model", "ranking.margin=true"),
            "the data has no margin: type ranking.margin=false",
        ),
        (
            (
                "algo=iterative_grpo",
                "reward=neural",
                "reward.terms.neural.reward.model=an/other",
                "ranking.margin=true",
            ),
            "the data has no margin: type ranking.margin=false",
        ),
    ],
    "preference_reference": [
        (
            ("algo=online_dpo", "algo.reference=precomputed"),
            "but they are sampled: type algo.reference=live",
        ),
        (
            ("algo=online_dpo", "preference=simpo", "algo.reference_every=5"),
            "preference=simpo has none: drop it",
        ),
        (
            ("algo=dpo", "preference=orpo", "algo.reference=precomputed"),
            "preference=orpo has none: drop it",
        ),
    ],
    "preferences": [
        (
            ("algo=dpo", "preference=kto", "batch.minibatches=32"),
            "other prompts of the optimizer step: type batch.minibatches=1",
        ),
        (
            ("algo=dpo", "data.num_candidates=1"),
            "no row of the data prefers one to another: type preference=kto",
        ),
        (
            ("algo=reward_model", "data.num_candidates=1"),
            "no row of the data prefers one to another: type data.train=FILE with pairs",
        ),
        (("algo=reward_model", "data.num_val=0"), "there are none: type algo.zero_mean=false"),
    ],
    "teacher": [
        (
            ("algo=gkd", "teacher=server", "teacher.url=http://h/v1", "teacher.model=m"),
            "algo=gkd needs whole distributions, which teacher=server does not return: type "
            "teacher=local",
        ),
        (
            ("algo=gkd", "teacher.name=a/model", "batch.samples=2"),
            "algo=gkd takes the response of the data to some prompts, but teacher=local with "
            "batch.samples=2 needs sampled ones: type algo.on_policy_fraction=1",
        ),
        (
            (
                "algo=distill",
                "teacher=server",
                "teacher.url=http://h/v1",
                "teacher.model=m",
                "rollout.temperature=0.7",
            ),
            "teacher=server returns log-probabilities of temperature 1: type rollout.temperature=1",
        ),
        (
            (
                "algo=distill",
                "teacher=self",
                "teacher.demonstration=answer",
                "kl=loss",
                "algo.reference_every=2",
                "adapter=lora",
            ),
            "would be one adapter: type teacher.weights=current, or drop algo.reference_every",
        ),
        (
            (
                "algo=grpo",
                "advantage=teacher",
                "teacher=self",
                "teacher.sibling=true",
                "teacher.weights=ema",
                "kl=loss",
                "adapter=lora",
            ),
            "which teacher.weights=ema moves: type teacher.weights=current, or kl=none",
        ),
        (
            ("algo=gkd", "teacher=self", "teacher.feedback=why"),
            "batch.samples=1 needs sampled ones: type algo.on_policy_fraction=1",
        ),
    ],
    "demonstrations": [
        (
            ("algo=distill", "teacher=self", "teacher.demonstration=hint"),
            "has no such column: type answer, or one of level, response, candidates",
        ),
    ],
    "reference": [
        (
            ("reference=model", "reference.name=a/model"),
            "reference=model has no effect, because kl=none needs no reference: drop it",
        ),
        (
            ("algo=dpo", "preference=simpo", "reference=model", "reference.name=a/model"),
            "because preference=simpo needs no reference",
        ),
        (
            ("algo.reference_every=2",),
            "algo.reference_every updates the reference, but kl=none has none: type kl=loss, "
            "or drop it",
        ),
    ],
    "reward_model_rounds": [
        (
            ("algo=iterative_grpo",),
            "algo=iterative_grpo trains the reward model in rounds: type reward=neural "
            "reward.terms.neural",
        ),
        (
            (
                "algo=iterative_grpo",
                "reward=neural",
                "reward.terms.neural.reward.model=an/other",
                "algo.reference_every=null",
            ),
            "algo=iterative_grpo needs the number of iterations per round: type "
            "algo.reference_every=20",
        ),
        (
            (
                "algo=iterative_grpo",
                "reward=neural",
                "reward.terms.neural.reward.model=an/other",
                "+reward.terms.neural.timeout_s=60",
            ),
            "reward.terms.neural.timeout_s: worker processes would keep the reward model",
        ),
        (
            (
                "algo=iterative_grpo",
                "reward=neural",
                "reward.terms.neural.reward.model=an/other",
                "algo.refresh_prompts=999",
            ),
            "but a round has 640 prompts: type algo.refresh_prompts=640",
        ),
        (
            (
                "algo=iterative_grpo",
                "reward=neural",
                "reward.terms.neural.reward.model=an/other",
                "trainer.max_iterations=7",
            ),
            "algo.reference_every=20 is longer than the run, trainer.max_iterations=7: type "
            "algo.reference_every=7",
        ),
    ],
    "reward_scaling": [
        (
            ("algo=rft", "algo.normalize_reward=true"),
            "advantage=accept reads correctness only: drop them",
        ),
        (
            ("algo=rft", "algo.clip_reward=0.4"),
            "advantage=accept reads correctness only: drop them",
        ),
        (
            ("algo=ppo", *BY_TURN, "algo.clip_reward=1"),
            "but this reward gives rewards by token: drop them",
        ),
        (
            ("algo=grpo", "advantage=gdpo", "algo.clip_reward=1"),
            "but advantage=gdpo reads the terms of the reward: drop them",
        ),
        (
            ("algo=grpo", "advantage=max_rl", "algo.normalize_reward=true"),
            "advantage=max_rl needs rewards of at least 0: drop it",
        ),
        (
            (
                "algo=grpo",
                "advantage=process",
                "reward=process",
                "reward.terms.process.reward.model=an/other",
                "algo.clip_reward=1",
            ),
            "scale one reward per response",
        ),
    ],
    "prompts": [
        (
            ("batch.prompts=257",),
            "batch.prompts=257, but the data has 256 prompts: type batch.prompts=256",
        )
    ],
    "router": [
        (("router=frozen", "adapter=lora"), "the adapter freezes the routers: type router.every=1"),
    ],
    "optimizer": [
        (
            ("optimizer=muon", "trainer=fsdp", "trainer.strategy.offload=true"),
            "products on the CPU: type trainer.strategy.offload=false, or optimizer=adamw",
        ),
    ],
    "quantization": [
        (
            ("policy=hf", "policy.quantization=nf4"),
            "needs frozen weights: type adapter=lora, or policy.quantization=null",
        ),
        (
            ("algo=reward_model", "policy=hf", "policy.quantization=int8"),
            "needs frozen weights: type policy.quantization=null",
        ),
        (
            ("policy=hf", "policy.quantization=nf4", "adapter=lora", "trainer=fsdp"),
            "cannot be sharded: type trainer=ddp, or policy.quantization=null",
        ),
    ],
    "compilation": [
        (
            ("policy=random", "+policy@policy.policy=tiny", "policy.policy.compile=true"),
            "policy.policy.compile: type policy.compile=true, which compiles all networks",
        ),
        (
            ("policy=hf", "policy.quantization=nf4", "adapter=lora", "policy.compile=true"),
            "policy.quantization=nf4 cannot be compiled: type policy.compile=false",
        ),
        (
            ("algo=dpo", "algo.dropout=0.1", "policy.compile=true"),
            "in compiled blocks: type policy.compile=false, or algo.dropout=0",
        ),
    ],
    "kl_schedule": [
        (
            ("algo=sft", "schedule=kl_adaptive"),
            "optimizer steps of an iteration: type schedule=constant",
        ),
        (
            ("algo=grpo", "schedule=kl_adaptive", "batch.minibatches=1"),
            "optimizer steps of an iteration: type schedule=constant, or batch.minibatches=4",
        ),
    ],
    "master_weights": [
        (
            ("policy=hf", "policy.dtype=bfloat16"),
            "loses most updates at the usual learning rates: type policy.dtype=float32 "
            "trainer.precision=",
        ),
        (
            ("policy=smollm2", "policy.dtype=bfloat16", "algo=ppo"),
            "trainer.precision=bf16-mixed, or adapter=lora",
        ),
        (
            ("policy=smollm2", "policy.dtype=bfloat16", "algo=reward_model"),
            "type policy.dtype=float32 trainer.precision=bf16-mixed",
        ),
        (
            ("policy=hf", "policy.dtype=float16", "algo=process_reward_model"),
            "policy.dtype=float16 would train float16 weights",
        ),
    ],
    "precision": [
        (
            ("trainer.precision=bf16-true",),
            "type trainer.precision=auto, trainer.precision=32-true, trainer.precision=bf16-mixed or "
            "trainer.precision=16-mixed",
        ),
        (
            (
                "algo=iterative_grpo",
                "reward=neural",
                "reward.terms.neural.reward.model=an/other",
                "trainer.precision=16-mixed",
            ),
            "algo=iterative_grpo also trains a reward model: type trainer.precision=32-true",
        ),
    ],
    "temperature": [(("rollout.temperature=0",), "no learning signal: type rollout.temperature=1")],
    "ahead": [
        ((*AHEAD, "algo=online_dpo"), "which algo=online_dpo does not do: type rollout.ahead=0"),
        (
            (*AHEAD, "algo=remax", "correction=truncated"),
            "advantage=greedy samples again to grade a batch, while",
        ),
        (
            (*AHEAD, "correction=masked", "algo.retire_unsolved=3"),
            "before these are graded: type rollout.ahead=0, or drop them",
        ),
    ],
    "truncation": [
        (
            ("rollout.top_p=0.9",),
            "type rollout.top_p=1 rollout.top_k=0, or correction=truncated (validation",
        ),
        (
            ("rollout.top_k=5",),
            "type rollout.top_p=1 rollout.top_k=0, or correction=truncated (validation",
        ),
        (("algo=rft", "rollout.top_k=5"), "type rollout.top_p=1 rollout.top_k=0 (validation"),
    ],
    "observations": [
        (
            ("algo.observation_coefficient=0.1",),
            "and environment=single_turn has one turn: type environment=tools",
        ),
    ],
}


class TestRules:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("typed", "says"), [case for cases in RULES.values() for case in cases]
    )
    def test_message(self, typed: tuple[str, ...], says: str) -> None:
        assert says in refused(*typed)

    def test_sampling_ahead_needs_a_correction(self) -> None:
        assert refused(*AHEAD).endswith("type correction=truncated, or rollout.ahead=0")

    def test_each_is_tested(self) -> None:
        assert {rule.__name__ for rule in compose.RULES} == {
            *RULES,
            "answers",
            "columns",
            "episodes",
            "graded_prompts",
            "ptx",
            "reward_columns",
            "sources",
            "validation",
        }

    @pytest.mark.parametrize(
        "typed",
        [
            ("algo=grpo", *PROCESS, "reward.terms.process.reward.aggregate=mean"),
            ("algo=grpo", *PROCESS, "advantage=process", "kl=reward"),
            ("algo=ppo", *PROCESS, "reward.terms.process.reward.aggregate=last"),
            (
                "algo=grpo",
                "reward=process",
                "reward.terms.process.weight=0.0",
                "reward.terms.gold.weight=1.0",
            ),
            ("algo=gspo", "kl=loss"),
            ("algo=gspo", "kl=reward", "kl.coefficient=0.0"),
            ("algo=gspo", "advantage=branch_soft"),
            ("algo=gspo", "kl=reward", "ratio=sequence_token"),
            ("algo=rloo", "ratio=sequence"),
            ("algo=reinforce_pp", "ratio=sequence", "kl=none"),
            ("algo=grpo", "kl=exact"),
            ("algo=grpo", "kl=exact", "kl.estimator=k1"),
            ("algo=rft", "kl=exact"),
            ("algo=ppo", "sampling=dynamic", "batch.samples=4"),
            ("algo=rft", "batch.samples=1"),
            ("algo=ppo", "advantage=gae", "sampling=best_of"),
            ("rollout.top_p=0.9", "correction=truncated"),
            (*AHEAD, "correction=truncated"),
            (*AHEAD, "algo=ppo", "correction=masked", "kl=reward"),
            (*AHEAD, "algo=rft"),
            ("algo=dpo", "preference=kto", "data.num_candidates=1"),
            ("algo=sft", "policy=hf", "policy.dtype=bfloat16", "adapter=lora"),
            ("validation.samples=4", "validation.temperature=0.5"),
            ("algo=grpo", "rollout.top_k=5", "correction=masked", "correction.level=sequence"),
        ],
    )
    @pytest.mark.slow
    def test_not_refused(self, typed: tuple[str, ...]) -> None:
        if "reward.terms.process.weight=0.0" in typed:
            typed = (*typed, "reward.terms.process.reward.model=an/other")
        assert composed(*typed).parts

    @pytest.mark.slow
    def test_sources(self, tmp_path: Path) -> None:
        data = (
            "data=mixture",
            "+data@data.sources.sums=arithmetic",
            "data.sources.sums.num_train=256",
            "+data@data.sources.words=stories",
            "data.sources.words.num_train=256",
            "data.sources.words.chat=false",
        )
        made = composed(
            *data,
            "reward=by_source",
            "+reward@reward.rewards.sums=math",
            "+reward@reward.rewards.words=accuracy",
            "+data.weights.sums=3",
        )
        assert list(made.parts["reward"].rewards) == ["sums", "words"]
        assert made.splits.weights == {"sums": 3.0, "words": 1.0}
        assert made.label == "dapo"
        message = refused(*data, "reward=by_source", "+reward@reward.rewards.sums=math")
        assert "no reward for the source 'words'" in message
        assert "type +reward@reward.rewards.words=OPTION" in message
        message = refused("reward=by_source", "+reward@reward.rewards.sums=math")
        assert message.endswith("type data=mixture, or data.source=COLUMN")
        same = (
            "data=mixture",
            "+data@data.sources.format=arithmetic",
            "data.sources.format.num_train=256",
        )
        assert refused(*same).startswith("the source format has the name of a term of the reward")
        assert composed(*same, "reward=accuracy").splits.train[0].source == "format"

    @pytest.mark.parametrize("algo", ["distill", "gkd"])
    def test_a_teacher_is_needed(self, algo: str) -> None:
        assert refused(f"algo={algo}").startswith("teacher=local needs a model: type teacher.name=")
        assert refused(f"algo={algo}", "teacher=self").endswith("teacher.demonstration=COLUMN")
        assert (
            refused("algo=grpo", "teacher.name=a/b")
            == "algo=grpo does not use teacher: drop teacher.name=a/b, or choose another algo=, or "
            "type advantage=teacher"
        )

    def test_ptx_rows_that_are_held_out_as_a_whole(self) -> None:
        made = composed("algo.ptx_coefficient=0.1")
        splits = replace(made.splits, ptx_weights={"arithmetic": 1.0, "few": 1.0})
        found = list(row_rules.ptx(replace(made, splits=splits)))
        assert "ptx: all rows of the source few are held out by data=: drop the source" in found
        [problem] = row_rules.ptx(replace(made, splits=replace(made.splits, ptx=[])))
        assert problem.startswith("algo.ptx_coefficient: all rows are held out by data=: type")

    def test_a_column_that_an_algorithm_does_not_read_may_hold_anything(
        self, tmp_path: Path
    ) -> None:
        rows = [{"prompt": str(i), "answer": "1", "ranks": None} for i in range(40)]
        file = write_rows(tmp_path / "rows.jsonl", rows)
        assert composed("data=jsonl", f"data.train={file}", "data.num_val=4")

    def test_graded(self, tmp_path: Path) -> None:
        good = ["assert f(1)"]
        rows = [{"prompt": str(i), "tests": good if i != 7 else "[]"} for i in range(40)]
        file = write_rows(tmp_path / "rows.jsonl", rows)
        data = ("data=jsonl", f"data.train={file}", "data.answer=null", "data.num_val=0")
        message = refused("reward=code", *data)
        assert f"responses to prompt train-8 ({file}:8): there are no unit tests" in message
        check = "def check(candidate):\n    assert candidate(1)"
        write_rows(tmp_path / "rows.jsonl", [row | {"tests": check} for row in rows])
        advice = "add the column entry_point, or type {}.entry_point=COLUMN; correct the row"
        assert advice.format("reward") in refused("reward=code", *data)
        term = ("reward=weighted_sum", "+reward@reward.terms.c.reward=code", *data)
        assert advice.format("reward.terms.c.reward") in refused(*term)

    def test_answers(self, tmp_path: Path) -> None:
        rows = [{"prompt": f"{i}+1", "answer": i + 1, "kind": "sums"} for i in range(4)]
        rows += [{"prompt": f"say {i}", "answer": None, "kind": "talk"} for i in range(4)]
        data = (
            "data=jsonl",
            f"data.train={write_rows(tmp_path / 'rows.jsonl', rows)}",
            "data.num_val=0",
        )
        data = (*data, "data.source=kind", "batch.prompts=4")
        assert "rows.jsonl:5) has none: type data.answer=COLUMN" in refused(*data)
        of_one_source = (*data[:-2], "batch.prompts=4")
        advice = "rows.jsonl:5) has none: correct the row, or leave it out"
        assert advice in refused(*of_one_source)
        assert composed(*data, "reward=format").label == "dapo"
        message = refused("algo=online_dpo", *data, "reward=format")
        assert message.startswith("judge=rule needs gold answers")
        graded = [f"+reward@reward.rewards.{x}" for x in ("sums=accuracy", "talk=format")]
        assert composed(*data, "reward=by_source", *graded).splits.train[4].answer is None
        swapped = [f"+reward@reward.rewards.{x}" for x in ("sums=format", "talk=accuracy")]
        assert "rows.jsonl:5) has none" in refused(*data, "reward=by_source", *swapped)
        inner = ("reward=ensemble", "+reward@reward.rewards.s=by_source")
        nested = [x.replace("rewards.", "rewards.s.rewards.") for x in graded]
        assert composed(*data, *inner, *nested).splits.train[4].answer is None
        assert "no reward for the source 'talk'" in refused(*data, *inner, nested[0])

    def test_responses(self, tmp_path: Path) -> None:
        rows = [{"prompt": f"1+{i}", "answer": str(1 + i), "said": "2"} for i in range(2)]
        data = (
            "data=jsonl",
            f"data.train={write_rows(tmp_path / 'rows.jsonl', rows)}",
            "data.num_val=1",
        )
        data = (*data, "batch.prompts=1")
        purposes = {
            "sft": "algo=sft trains on responses",
            "dpo": "trains on preferences",
            "process_reward_model": "trains on labelled steps",
        }
        for algo, purpose in purposes.items():
            assert purpose in refused(f"algo={algo}", *data)
        assert composed("algo=sft", *data, "data.response=said").label == "sft"
        gkd = ("algo=gkd", "teacher.name=a/b", *data)
        assert refused(*gkd).endswith("data.response=COLUMN, or algo.on_policy_fraction=1")
        assert composed(*gkd, "algo.on_policy_fraction=1.0").parts

    def test_ptx(self, tmp_path: Path) -> None:
        file = write_rows(
            tmp_path / "rows.jsonl", [{"prompt": f"say {i}", "said": str(i)} for i in range(300)]
        )
        stream = ("data@ptx=jsonl", f"ptx.train={file}", "ptx.answer=null")
        assert "type algo.ptx_coefficient=0.1" in refused(*stream)
        used = ("algo.ptx_coefficient=0.1", *stream)
        assert "algo.ptx_coefficient needs responses" in refused(*used)
        assert "type ptx.prompt=" in refused(*used, "ptx.prompt=nope")
        assert len(composed(*used, "ptx.response=said").splits.ptx) == 300
        assert len(composed("algo.ptx_coefficient=0.1").splits.ptx) == 256
        assert composed().splits.ptx == ()
        same = ("data=jsonl", f"data.train={file}", "data.answer=null", "reward=length")
        with pytest.warns(UserWarning, match="ptx: 200 of its 300 rows are held out by data="):
            both = composed(*same, *used, "ptx.response=said")
        assert not {row.text for row in both.splits.ptx} & {row.text for row in both.splits.val}

    @pytest.mark.slow
    def test_ptx_from_a_mixture(self, tmp_path: Path) -> None:
        mixture = ["data@ptx=mixture", "algo.ptx_coefficient=0.1", "+ptx.weights.few=3"]
        for source, count in (("few", 3), ("many", 30)):
            rows = [{"prompt": f"{source} {i}", "said": str(i)} for i in range(count)]
            file = write_rows(tmp_path / f"{source}.jsonl", rows)
            settings = (f"train={file}", "response=said", "answer=null")
            mixture.append(f"+data@ptx.sources.{source}=jsonl")
            mixture += [f"ptx.sources.{source}.{setting}" for setting in settings]
        made = composed(*mixture, *TINY)
        assert made.splits.ptx_weights == {"few": 3.0, "many": 1.0}
        assert len(made.splits.ptx) == 33  # none is held out for validation
        stream = extension(build.load(made).learner, PTX)
        assert stream.weights == made.splits.ptx_weights
        assert stream.prompts == made.splits.ptx

    def test_tests_in_another_column(self, tmp_path: Path) -> None:
        row = {"test_list": ["assert f(1) == 1"], "kind": "code"}
        file = write_rows(tmp_path / "rows.jsonl", [{"prompt": str(i), **row} for i in range(8)])
        data = ("data=jsonl", f"data.train={file}", "data.answer=null", "data.num_val=0")
        data = (*data, "batch.prompts=8")
        assert composed(*data, "reward=code", "reward.tests=test_list").parts
        places = {
            "reward": ("reward=code",),
            "reward.rewards.c": ("reward=ensemble", "+reward@reward.rewards.c=code"),
            "reward.reward": ("reward=cosine", "+reward@reward.reward=code"),
        }
        for key, typed in places.items():
            assert refused(*data, *typed) == (
                f"{key}.tests=tests: no row has this column, so nothing is graded: type "
                f"{key}.tests=COLUMN (of kind, test_list)"
            )

    @pytest.mark.parametrize(
        "typed", ["ratio=symmetric", "ratio.low=0.1", "kl=none", "sampling=fixed"]
    )
    def test_a_group_that_the_algorithm_does_not_use(self, typed: str) -> None:
        group = typed.split("=")[0].split(".")[0]
        assert (
            refused("algo=sft", typed)
            == f"algo=sft does not use {group}: drop {typed}, or choose another algo="
        )

    def test_the_judge_of_a_reward_is_named_by_its_key(self) -> None:
        assert refused("reward=preference", "judge=llm").endswith(
            "or set the judge of a reward with +judge@reward.judge=OPTION"
        )
        own = ("reward=preference", "+judge@reward.judge=llm")
        assert refused(*own).endswith("type reward.judge.url=http://HOST/v1")
        own = (*own, "reward.judge.url=http://h/v1", "reward.judge.model=m")
        assert refused(*own, "reward.judge.retries=-1").startswith("reward.judge.retries=-1: ")
        assert refused("algo=online_dpo", "judge=llm").startswith("judge.url=None")
        terms = ("reward=weighted_sum", "+reward@reward.terms.a.reward=rating")
        nested = (*terms, "+judge@reward.terms.a.reward.judge=llm")
        assert refused(*nested).startswith("reward.terms.a.reward.judge.url=None")
        term = ("reward=weighted_sum", "+reward@reward.terms.a.reward=regex")
        assert "reward.terms.a.reward.pattern=" in refused(*term)

    def test_a_term_has_a_time_limit(self) -> None:
        term = (
            "reward=weighted_sum",
            "+reward@reward.terms.mine.reward=length",
            "+reward.terms.mine.timeout_s=5",
        )
        assert composed(*term).parts["reward"].terms["mine"]["timeout_s"] == 5
        assert (
            refused("reward=weighted_sum") == "WeightedSum: reward.terms is empty: type "
            "+reward@reward.terms.accuracy.reward=accuracy"
        )


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("typed", "says"),
        [
            ("+sed=1", "unknown key 'sed': known keys are data, policy"),
            ("+ratio.hihg=0.3", "unknown key ratio.hihg: known keys are low, high"),
            ("+rollout.max_token=3", "max_token: known keys are max_tokens"),
            ("+data.levl=3", "levl: known keys are level"),
            ("+reward.terms.format.reward.stile=answer", "stile"),
            ("+batch.prompt=3", "unknown key batch.prompt: known keys are prompts"),
            ("+validation.evry=3", "unknown key validation.evry: known keys are every"),
            ("+algo.max_draw=3", "unknown key algo.max_draw: known keys are .*max_draws"),
            (
                "+optimizer.learning_rate=1",
                "unknown key optimizer.learning_rate: known keys are .*lr",
            ),
            ("+schedule.warm=1", "unknown key schedule.warm: known keys are warmup"),
            ("+policy.widht=1", "unknown key policy.widht: known keys are weights, pretrained"),
            ("+trainer.max_iteration=3", "max_iteration"),
            ("+callbacks.progress.patience=1", "patience"),
        ],
    )
    def test_is_refused(self, typed: str, says: str, tmp_path: Path) -> None:
        small = ("policy.pretrained=false", "policy.hidden_size=32", f"run_dir={tmp_path}")
        with pytest.raises(UserError, match=says) as error:
            build.trainer(loaded(*small, typed).config)
        assert "\n" not in str(error.value)

    def test_a_target_that_does_not_exist(self) -> None:
        assert "Missing" in refused("ratio._target_=rlmods.ratio.Missing")


@pytest.mark.slow
class TestBeforeAnythingIsWritten:
    """Values that torch, Lightning or numpy would refuse later are refused while composing."""

    @pytest.mark.parametrize(
        ("typed", "says"),
        [
            ("optimizer.lr=-1", "optimizer.lr=-1: must be at least 0"),
            ("optimizer.lr=abc", "optimizer.lr=abc: must be a number"),
            ("reward.terms.accuracy.reward.timeout_s=x", "reward.timeout_s=x: must be a number"),
            ("reward.terms.format.reward.style=xml", "style=xml: must be one of think_answer, a"),
            ("seed=-1", "seed=-1: must be"),
            ("seed=1.5", "seed=1.5: must be"),
            ("trainer.max_iterations=abc", "trainer.max_iterations=abc: must be"),
            ("trainer.max_iterations=2.7", "trainer.max_iterations=2.7: must be"),
            ("+trainer.bogus=1", "unknown key trainer.bogus"),
            ("+trainer.gradient_clip_val=1.0", "type batch.max_norm=1.0"),
            ("+trainer.gradient_clip_algorithm=value", "type batch.max_norm=1.0"),
            ("+trainer.accumulate_grad_batches=2", "type batch.minibatches=1"),
            ("+trainer.max_steps=9", "type trainer.max_iterations=100"),
            ("+trainer.limit_val_batches=1.0", "type validation.every=10"),
            ("algo.overlong_filter=maybe", "algo.overlong_filter=maybe: must be true or false"),
            ("algo.entropy_coefficient=abc", "algo.entropy_coefficient=abc: must be a number"),
            ("algo.max_draws=0", "algo.max_draws=0: must be"),
            ("algo.fallback=wait", "algo.fallback=wait: must be one of train, skip, error"),
            ("algo.surplus=burn", "algo.surplus=burn: must be one of keep, drop"),
            (
                "algo=dpo algo.reference=none",
                "algo.reference=none: must be one of live, precomputed",
            ),
            (
                "algo=reward_model algo.pooling=eos",
                "algo.pooling=eos: must be one of last, mean, sum, weighted_sum, max, min",
            ),
            ("algo.max_draws=many", "algo.max_draws=many: must be"),
            ("batch.minibatches=3", "batch.minibatches=3 does not divide the 256 rows"),
            ("algo=sft batch.minibatches=64", "does not divide the 32 rows"),
            ("validation.every=0", "validation.every=0: must be"),
            ("validation.samples=-2", "validation.samples=-2: must be"),
            ("validation.temperature=0", "validation.temperature=0: must be"),
            ("validation.max_prompts=0", "validation.max_prompts=0: must be"),
            ("schedule.warmup=1.5", "schedule.warmup=1.5: must be"),
        ],
    )
    def test_message(self, typed: str, says: str) -> None:
        target = (
            composed
            if not typed.startswith("schedule")
            else lambda t: compose.instantiate(composed(t).config.schedule, "schedule")
        )
        with pytest.raises(UserError) as error:
            target(*typed.split())
        assert says in str(error.value)
        assert "\n" not in str(error.value)


class TestLongPrompts:
    RANDOM = (
        "policy.pretrained=false",
        "policy.hidden_size=32",
        "policy.num_layers=1",
        "reward=format",
        "data=jsonl",
        "data.answer=null",
    )

    def made(self, folder: Path, *typed: str) -> RunSpec:
        rows = [{"prompt": "7" * (i + 1), "said": "8", "id": str(i)} for i in range(20)]
        file = write_rows(folder / "rows.jsonl", rows)
        return composed(
            *self.RANDOM,
            f"data.train={file}",
            "data.num_val=4",
            "data.id=id",
            "batch.prompts=2",
            *typed,
        )

    def test_are_left_out_and_counted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        made = self.made(tmp_path, "data.max_prompt_tokens=12", f"run_dir={tmp_path}/run")
        run = build.load(made)
        everything = (*made.splits.train, *made.splits.val)
        short = {p.id for p in everything if len(p.text or "") <= 12}
        assert run.num_long_prompts == len(everything) - len(short) == 8
        kept = (*run.data().splits.train, *run.learner.splits.val)
        assert {p.id for p in kept} == short
        show_run(run, RunDir(tmp_path / "run"))
        shown = " ".join(capsys.readouterr().out.split())
        assert f"{len(run.splits.train)} training prompts" in shown
        assert "8 prompts longer than data.max_prompt_tokens=12 left out" in shown

    @pytest.mark.parametrize(
        ("limit", "about"),
        [
            (0, "data.max_prompt_tokens=0: must be at least 1"),
            (4, "type batch.prompts="),
            (1, "prompts of a split are longer: type data.max_prompt_tokens="),
        ],
    )
    def test_too_few_that_remain_are_an_error(self, limit: int, about: str, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=about):
            build.load(self.made(tmp_path, f"data.max_prompt_tokens={limit}", "batch.prompts=8"))

    def test_rows_of_the_supervised_loss_have_their_own_limit(self, tmp_path: Path) -> None:
        rows = [{"prompt": "9" * (i + 1), "said": "8"} for i in range(9)]
        file = write_rows(tmp_path / "ptx.jsonl", rows)
        ptx = (
            "algo.ptx_coefficient=0.1",
            "data@ptx=jsonl",
            f"ptx.train={file}",
            "ptx.response=said",
            "ptx.answer=null",
        )
        made = self.made(tmp_path, *ptx, "ptx.max_prompt_tokens=6")
        with pytest.warns(
            UserWarning, match="ptx: 3 of its 9 rows have longer prompts and are left out"
        ):
            learner = build.load(made).learner
        assert len(extension(learner, PTX).prompts) == 6


def test_held_out_prompts_count_in_the_fit() -> None:
    made = composed("policy.pretrained=false", "policy.hidden_size=32", "policy.context_length=20")
    with pytest.raises(
        UserError, match=r"rollout\.max_tokens=16 that exceeds the model's context of 20"
    ):
        build.load(made)
    OmegaConf.update(made.config, "policy.context_length", 32)
    assert build.load(made).learner.policy.context_length == 32
