"""A mistyped override is one line that says what to type."""

import pytest

from rlmods.cli.command import configuration
from rlmods.types import UserError

MISTAKES = {
    "optimizer.lrr=1": r"optimizer\.lrr: no such setting \(\+optimizer\.lrr=\.\.\. adds one .*\); did you mean optimizer\.lr",
    "policy.name=x": "policy.name: a setting of policy=hf, which is not chosen",
    "algo.beta=1": "algo.beta: no such setting; did you mean",
    "lr=1": r"lr: no such setting; did you mean optimizer\.lr",
    "advanatge=gae": r"advanatge: no such setting; did you mean advantage\?",
    "zzz=1": "zzz: no such setting; choose from seed, run_dir, resume, batch,",
    "algo=grpp": "algo=grpp: no such option; did you mean grpo",
    "advantage=ppo": "advantage=ppo: no such option; choose from accept, ema, gae,",
    "reward=[math,x]": "reward=x: no such option; choose from accuracy, code, ",
    "ptx.train=x": "nothing is chosen for ptx: type data@ptx=OPTION",
    "reward=null": "not null: drop it, or type GROUP=OPTION",
    "algo": "algo: .*; an override is key=value",
    "optimizer.lr=[1": r"optimizer\.lr=\[1: .*; an override is key=value",
    "~foo": "'foo' does not exist",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_one_line_says_what_to_type(override: str) -> None:
    with pytest.raises(UserError, match=MISTAKES[override]) as caught:
        configuration([override])
    assert "\n" not in str(caught.value)


def test_other_errors_are_not_explained_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("something else")

    monkeypatch.setattr("rlmods.cli.command.hydra_compose", broken)
    with pytest.raises(ValueError, match="something else"):
        configuration([])
