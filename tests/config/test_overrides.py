"""Error messages for mistyped overrides."""

import pytest

from rlmods.cli.command import configuration
from rlmods.errors import UserError

MISTAKES = {
    "optimizer.lrr=1": r"optimizer\.lrr: no such setting \(\+optimizer\.lrr=\.\.\. passes one .*\); did you "
    r"mean optimizer\.lr",
    "policy.name=x": "policy.name: a setting of policy=hf or policy=random, which is not selected",
    "rollout.ahead=1": "rollout.ahead: a setting of rollout=vllm_server, which is not selected",
    "algo.beta=1": "algo.beta: no such setting; did you mean",
    "lr=1": r"lr: no such setting; type optimizer\.lr",
    "advanatge=gae": r"advanatge: no such setting; did you mean advantage\?",
    "zzz=1": "zzz: no such setting; choose from seed, run_dir, resume, fork, batch,",
    "algo=grpp": "algo=grpp: no such option; did you mean grpo",
    "advantage=ppo": "advantage=ppo: no such option; choose from accept, branch_hard, branch_soft, ema, "
    "gae,",
    "reward=[math,x]": "reward=x: no such option; choose from accuracy, by_source, code, ",
    "ptx.train=x": "no option of ptx is selected: type data@ptx=OPTION",
    "reward=null": "not null: drop it, or type GROUP=OPTION",
    "algo": "algo: .*; an override is key=value",
    "data.template=Q: {question}": r"quotes: 'data\.template=\"Q: {question}\"'",
    "+adapter=lora": "type it without \\+",
    "num_gpus=2": "num_gpus: no such setting; type trainer.devices=2",
    "optimizer.lr=[1": r"optimizer\.lr=\[1: .*; an override is key=value",
    "~foo": "'foo' does not exist",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_message_is_one_line_with_a_suggestion(override: str) -> None:
    with pytest.raises(UserError, match=MISTAKES[override]) as error:
        configuration([override])
    assert "\n" not in str(error.value)


def test_other_errors_are_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("something else")

    monkeypatch.setattr("rlmods.cli.command.hydra_compose", broken)
    with pytest.raises(ValueError, match="something else"):
        configuration([])
