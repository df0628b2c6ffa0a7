"""Helpers shared by the commands other than `train.py`."""

import re
import subprocess
import sys
from dataclasses import dataclass, fields

import pytest
from omegaconf import OmegaConf

from rlmods.cli import collect, label, plan, serve
from rlmods.cli.command import Output, command, configuration, dropped_path, find_policy
from rlmods.errors import UserError, print_usage
from rlmods.run.files import read_rows


class TestCommand:
    def run(self, capsys, action):
        status = 0
        try:
            command(action)
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr().out

    def test_prints_json(self, capsys):
        assert self.run(capsys, lambda: {"a": float("nan")}) == (0, '{"a": null}\n')

    def test_an_empty_text_prints_nothing(self, capsys):
        assert self.run(capsys, str) == (0, "")

    @pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), ([], 2)])
    def test_prints_usage(self, arguments, status, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["x", *arguments])
        print_usage("rlmods.x", "USAGE")
        with pytest.raises(SystemExit) as end:
            print_usage("__main__", "USAGE")
        assert (end.value.code, capsys.readouterr().out) == (status, "USAGE\n")

    def test_user_errors_and_ctrl_c_are_one_line(self, capsys):
        def fail(error):
            raise error

        assert self.run(capsys, lambda: fail(UserError("no"))) == ("error: no", "")
        assert self.run(capsys, lambda: fail(KeyboardInterrupt())) == ("interrupted", "")


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        (collect, collect.CollectSettings),
        (label, label.LabelSettings),
        (plan, plan.PlanSettings),
        (serve, serve.ServeSettings),
    ],
)
def test_usage_lists_all_settings(module, settings):
    listed = set(re.findall(r"\w+=", module.__doc__))
    assert {f"{field.name}=" for field in fields(settings)} <= listed


class TestConfiguration:
    @pytest.mark.slow
    def test_composes_in_a_process_that_imports_nothing_else(self):
        code = (
            "from rlmods.cli.command import configuration; print(configuration([]).algo.max_draws)"
        )
        assert (
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout
            == "10\n"
        )

    @dataclass
    class Settings:
        out: str = "rows.jsonl"
        count: int | None = None
        flag: bool = True

    def test_settings_are_keys(self):
        config = configuration(["count=3", "data.level=4"], settings=self.Settings)
        assert (config.out, config.count, config.flag, config.data.level) == (
            "rows.jsonl",
            3,
            True,
            4,
        )
        assert configuration([], settings=self.Settings).count is None
        with pytest.raises(UserError, match="nonsense"):
            configuration(["nonsense=3"], settings=self.Settings)

    def test_groups_of_the_run_unless_overridden(self, tmp_path):
        run = configuration(["data=stories", "rollout.max_tokens=5", "seed=9", "batch.samples=3"])
        OmegaConf.save(run, tmp_path / "config.yaml", resolve=False)
        from_run = {"saved": tmp_path / "config.yaml", "run_keys": ("data", "rollout", "seed")}
        config = configuration(["rollout.top_k=4"], **from_run)
        assert (config.data._target_, config.rollout.max_tokens, config.rollout.top_k) == (
            "rlmods.data.Stories",
            5,
            4,
        )
        assert (config.seed, config.batch.samples) == (9, 8)
        config = configuration(["data=arithmetic", "seed=2"], **from_run)
        assert (config.data._target_, config.rollout.max_tokens, config.seed) == (
            "rlmods.data.Arithmetic",
            5,
            2,
        )


class TestFindPolicy:
    def test_overrides_apply_to_the_options_of_the_run(self, tmp_path):
        saved = tmp_path / "config.yaml"
        overrides = ["reward=math", "data=jsonl", "data.train=a.jsonl", "batch.prompts=3"]
        OmegaConf.save(
            OmegaConf.masked_copy(configuration(overrides), ["reward", "data", "batch"]), saved
        )
        more = [
            "data.train=b.jsonl",
            "~reward.terms.format",
            "+reward@reward.terms.mine.reward=accuracy",
            "++batch.samples=5",
        ]
        config = configuration(more, saved=saved, run_keys=("reward", "data", "batch"))
        assert (config.data._target_, config.data.train) == ("rlmods.data.Jsonl", "b.jsonl")
        assert (config.batch.prompts, config.batch.samples) == (3, 5)
        assert "format" not in config.reward.terms
        assert config.reward.terms.mine.reward._target_ == "rlmods.reward.Accuracy"
        assert not [key for key in config if not str(key).isidentifier()]

    @pytest.mark.parametrize("typed", ["policy=smollm2", "policy.name=x", "+policy.x=1"])
    def test_a_second_policy_is_refused(self, typed):
        with pytest.raises(UserError, match="the policy is RUN; remove one"):
            find_policy("RUN", ["seed=1", typed])

    def test_run_directory_and_hub_name(self, tmp_path):
        assert find_policy("owner/name") == ("owner/name", None)
        with pytest.raises(UserError, match="is not a run or a model"):
            find_policy(str(tmp_path))
        (tmp_path / "config.json").touch()
        assert find_policy(str(tmp_path)) == (str(tmp_path), None)
        (tmp_path / "config.json").unlink()
        (tmp_path / "config.yaml").touch()
        with pytest.raises(UserError, match="no export/ yet"):
            find_policy(str(tmp_path))
        (tmp_path / "export").mkdir()
        assert find_policy(str(tmp_path)) == (tmp_path / "export", tmp_path / "config.yaml")


class TestOutput:
    PROVENANCE = {"model": "m", "sampling": {"temperature": 1.0, "stop": ("x",)}}  # noqa: RUF012 - read only

    def test_kept_and_dropped_rows_are_read_back(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        output = Output(path, self.PROVENANCE)
        output.add({"id": "0"}, keep=True)
        output.add({"id": "1"}, keep=False)
        assert output.rows.keys() == {"0", "1"}
        for reopened in (output, Output(path, self.PROVENANCE)):
            assert reopened.kept == {
                "0": {"id": "0", "model": "m", "sampling": {"temperature": 1.0, "stop": ["x"]}}
            }
            assert reopened.dropped.keys() == {"1"}
        assert [row["id"] for row in read_rows(path)] == ["0"]
        assert [row["id"] for row in read_rows(dropped_path(path))] == ["1"]

    @pytest.mark.parametrize("keep", [True, False])
    def test_another_provenance_is_refused_and_nothing_is_written(self, keep, tmp_path):
        path = tmp_path / "rows.jsonl"
        Output(path, self.PROVENANCE).add({"id": "0"}, keep=keep)
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        other = {**self.PROVENANCE, "sampling": {"temperature": 0.5, "stop": ["x"]}}
        with pytest.raises(
            UserError,
            match=r"was written with sampling\.temperature=1\.0 \(now 0\.5\).*another out=FILE",
        ):
            Output(path, other)
        with pytest.raises(UserError, match=r"model=m \(now None\)"):
            Output(path, {"model": None})
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before

    def test_a_file_of_another_command_is_refused(self, tmp_path):
        (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1="}\n')
        with pytest.raises(UserError, match="another out=FILE"):
            Output(tmp_path / "rows.jsonl", self.PROVENANCE)
