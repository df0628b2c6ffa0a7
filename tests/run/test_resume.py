"""A resumed run has the settings of the run that it continues."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlmods.errors import UserError
from rlmods.run.resume import check_same_run, grading_identities, recorded_resume
from rlmods.run.secrets import as_yaml


def check(folder: Path, before: Any, after: Any) -> None:
    path = folder / "config.yaml"
    path.write_text(as_yaml(OmegaConf.create(before)))
    check_same_run(path, OmegaConf.create(after))


def refused(text: str) -> AbstractContextManager[Any]:
    return pytest.raises(UserError, match=rf"was started with {text}")


def test_changed_settings_are_named_in_one_line(tmp_path: Path) -> None:
    after = {"ratio": {"low": 0.3, "high": 1}, "trainer": {}, "logger": {"csv": 1}}
    with refused(r"ratio.high=unset \(now 1\), ratio.low=0.2 \(now 0.3\): ") as error:
        check(tmp_path, {"ratio": {"low": 0.2}}, after)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "group", ["algo", "advantage", "batch", "data", "policy", "reward", "callbacks", "logger"]
)
def test_only_what_reports_may_change(tmp_path: Path, group: str) -> None:
    may_change = group in ("callbacks", "logger")
    with nullcontext() if may_change else refused(f"{group}.value=1"):
        check(tmp_path, {group: {"value": 1}}, {group: {"value": 2}})


@pytest.mark.parametrize(
    "key",
    [
        "batch.token_budget",
        "batch.preflight",
        "policy.compile",
        "rollout.urls",
        "reward.terms.a.reward.token_budget",
    ],
)
def test_memory_and_speed_may_change(tmp_path: Path, key: str) -> None:
    """Single settings of groups whose other settings may not."""
    before = OmegaConf.create()
    OmegaConf.update(before, key, 1)
    after = OmegaConf.create()
    OmegaConf.update(after, key, 2)
    check(tmp_path, before, after)
    OmegaConf.update(after, key.rpartition(".")[0] + ".value", 2)
    with refused(r"\S+\.value=unset \(now 2\): "):
        check(tmp_path, before, after)


def test_recorded_resume_reads_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECEIVED_SECRET", "sk-secret")
    (tmp_path / "config.yaml").write_text("resume: ${oc.env:RECEIVED_SECRET}\n")
    assert recorded_resume(tmp_path) == "${oc.env:RECEIVED_SECRET}"


@pytest.mark.parametrize("text", ["trainer: abc", "trainer: [1]", "schedule: 3", "trainer: ${x}"])
def test_settings_of_another_shape_differ(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with refused(r".*trainer\.precision=None \(now 32\)"):
        check_same_run(tmp_path / "config.yaml", OmegaConf.create({"trainer": {"precision": 32}}))


def test_graded_rows_depend_on_reward_advantage_and_sampling_alone() -> None:
    settings = {"reward": {"token_budget": 1, "scale": 1.0}, "advantage": {"gamma": 1.0}}

    def of(**change: Any) -> dict[str, str]:
        return grading_identities(OmegaConf.create({**settings, **change}))

    own = of(ratio={"low": 0.1}, run_dir="a")
    assert own == of() == of(reward={"scale": 1.0, "token_budget": 2})
    for change in ({"advantage": {"gamma": 0.9}}, {"sampling": {"n": 1}}):
        assert of(**change)["rewards"] == own["rewards"]
        assert of(**change)["rows"] != own["rows"]
    other = of(reward={"scale": 2.0})
    assert other["rewards"] != own["rewards"]
    assert other["rows"] != own["rows"]
