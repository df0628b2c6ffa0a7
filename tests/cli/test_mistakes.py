"""Typical mistakes of the first hour: each is answered by one line that names the fix."""

import shlex

import pytest

from rlmods.cli.command import configuration
from rlmods.cli.console import as_user_error
from tests.support.composed import composed

pytestmark = pytest.mark.slow

MISTAKES = {
    # names of settings in other libraries
    "learning_rate=1e-4": "type optimizer.lr=1e-4",
    "lr=1e-4": "type optimizer.lr=1e-4",
    "num_gpus=2": "type trainer.devices=2",
    "epochs=3": "type trainer.max_iterations=ITERATIONS",
    "trainer.max_steps=10": "type trainer.max_iterations=10",
    "model=Qwen/Qwen3-0.6B": "type policy=hf policy.name=Qwen/Qwen3-0.6B",
    "num_generations=8": "type batch.samples=8",
    "beta=0.01": "type kl=loss kl.coefficient=0.01",
    "clip_range=0.2": "type ratio=symmetric ratio.low=0.2 ratio.high=0.2",
    "gamma=0.99": "type advantage=gae advantage.gamma=0.99",
    "max_completion_length=64": "type rollout.max_tokens=64",
    "max_prompt_length=64": "type data=jsonl data.train=FILE data.max_prompt_tokens=64",
    "temperature=0.7": "type rollout.temperature=0.7",
    "output_dir=out": "type run_dir=out",
    "batch_size=32": "type batch.prompts=32 batch.samples=8",
    "bf16=true": "type trainer.precision=bf16-mixed",
    "fp16=true": "type trainer.precision=16-mixed",
    "use_vllm=true": "type rollout=vllm",
    "loss_type=dapo": "type aggregation=token_mean",
    "epsilon_high=0.28": "type ratio=clip_higher ratio.high=0.28",
    "num_iterations=2": "type batch.epochs=2",
    "scale_rewards=false": "type advantage=group_mean",
    "mask_truncated_completions=true": "type algo.overlong_filter=true",
    "report_to=wandb": "type logger=wandb",
    "warmup_ratio=0.1": "type schedule.warmup=ITERATIONS",
    "scale_rewards=True": "type advantage=group_norm",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.5": "docs/equivalents.md lists",
    "policy=Qwen/Qwen2.5-0.5B": "type policy=hf policy.name=Qwen/Qwen2.5-0.5B",
    "data=files/train.jsonl": "type data=jsonl data.train=files/train.jsonl",
    "wandb=true": "type logger=wandb",
    "algo=grpo,dapo": "algo=grpo,dapo: several values; add -m to run each of them",
    # names
    "algo=gpro": "did you mean gspo or grpo",
    "algo=GRPO": "did you mean grpo",
    "advanatge=gae": "did you mean advantage?",
    "reward=acuracy": "did you mean accuracy?",
    "optimizer=adam": "did you mean adamw?",
    "optimizer.lrr=1": "did you mean optimizer.lr?",
    "ratio.clip=0.3": "did you mean ratio.low or ratio.high",
    "policy=gpt2": "choose from hf, random, smollm2, tiny",
    "data=train.jsonl": "type data=jsonl data.train=train.jsonl",
    "data=train.csv": "type data=jsonl data.train=train.csv",
    "reward=rewards.py:score": "type reward=function reward.function=rewards.py:score",
    "reward=my.rewards:score": "type reward=function reward.function=my.rewards:score",
    "trainer=deepspeed": "choose from ddp, default, fsdp",
    # syntax
    "algo": "an override is key=value or group=option",
    "grpo": "type algo=grpo",
    "num_generation=8": "type batch.samples=8",
    "max_iterations=8": "type trainer.max_iterations=8",
    "reward=neural": "type reward.terms.neural.reward.model=RUN_OR_DIRECTORY",
    "'data.template=Q: {question}'": "needs quotes: 'data.template=\"Q: {question}\"'",
    "+adapter=lora": "type it without +",
    "kl=0.1": "type GROUP=OPTION, GROUP.SETTING=VALUE for a setting",
    "reward=null": "or drop it",
    "~foo": "such as ~callbacks.samples",
    "+reward.terms.mine.reward=brevity": "type +reward@reward.terms.mine.reward=OPTION",
    "rollout.ahead=1": "a setting of rollout=vllm_server, which is not selected",
    "algo.beta=1": "algo.beta: no such setting; type kl=loss kl.coefficient=1",
    "algo.learning_rate=1e-5": "type optimizer.lr=1e-5",
    "val_samples=4": "did you mean validation.samples?",
    "max_iters=4": "type trainer.max_iterations=4",
    "validation.steps=10": "validation.steps: no such setting; did you mean validation.",
    "kl.beta=0.04": "kl.beta: no such setting; type kl=loss kl.coefficient=0.04",
    "policy.model=org/name": "type policy=hf policy.name=org/name",
    "trainer.max_epochs=3": "type trainer.max_iterations=ITERATIONS",
    "zzz=1": "zzz: no such setting; choose from seed, run_dir, resume, fork, batch,",
    "algo=grpp": "did you mean grpo",
    "reward=none": "reward=none: no such option; choose from accuracy, ",
    "ratio=": "ratio=: no such option; choose from cispo, clip_higher,",
    "advantage=ppo": "choose from accept, anchor_state, batch_mean, branch_hard,",
    "reward=[math,x]": "reward=x: no such option; choose from accuracy, by_source, calculations, ",
    "ptx.train=x": "no option of ptx is selected: type data@ptx=OPTION",
    "hydra/launcher=submitit_slurm": "not installed: type pip install -e '.[slurm]'",
    "optimizer.lr=[1": "an override is key=value",
    # values
    "optimizer.lr=abc": "optimizer.lr=abc: must be a number",
    "optimizer.lr=-1": "optimizer.lr=-1: must be at least 0",
    "batch.prompts=abc": "must be a whole number",
    "seed=a": "seed=a: must be a whole number",
    "batch.samples=0": "must be at least 1",
    "batch.minibatches=3 batch.prompts=4 batch.samples=4": "type one of 1, 2, 4, 8, 16",
    "rollout.temperature=0": "type rollout.temperature=1",
    "trainer.precision=bf61": "type trainer.precision=auto",
    "data.level=9": "must be one of 1, 2, 3, 4, 5",
    # settings of parts that are not selected, and parts that do not fit
    "policy.name=gpt2": "a setting of policy=hf",
    "kl.coefficient=0.1": "a setting of kl=",
    "data.max_prompt_tokens=10": "a setting of data=gsm8k or data=jsonl",
    "data=jsonl": "type data.train=FILE",
    "data=jsonl data.train=nosuch.jsonl": "type data.train=FILE",
    "algo=grpo batch.samples=1": "type batch.samples=8",
    "reward=function reward.function=nosuch:f": "reward.function=nosuch:f: ModuleNotFoundError",
    "algo=ppo critic=none": "type critic=separate",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_answered_by_one_line_that_names_the_fix(typed: str) -> None:
    with pytest.raises(Exception) as error:  # noqa: PT011 - of Hydra or of ours; `as_user_error` refuses others
        composed(*shlex.split(typed))
    message = as_user_error(error.value)  # type: ignore[arg-type]
    assert message is not None
    assert MISTAKES[typed] in str(message)
    assert "\n" not in str(message)


def test_other_errors_are_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("something else")

    monkeypatch.setattr("hydra.compose", broken)
    with pytest.raises(ValueError, match="something else"):
        configuration([])
