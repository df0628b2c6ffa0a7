"""What the commands beside `train.py` share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from omegaconf import OmegaConf

from rlmods.cli.command import Output, command, configuration, dropped_beside, find_policy
from rlmods.run.jsonl import read_rows
from rlmods.types import UserError


class TestCommand:
    def said(self, capsys, arguments, action):
        code = 0
        try:
            command(arguments, "MANUAL", action)
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().out

    def test_prints_json(self, capsys):
        assert self.said(capsys, ["x"], lambda: {"a": float("nan")}) == (0, '{"a": null}\n')

    def test_helps(self, capsys):
        assert self.said(capsys, ["--help"], dict) == (0, "MANUAL\n")
        assert self.said(capsys, [], dict) == (2, "MANUAL\n")

    def test_a_mistake_and_ctrl_c_are_one_line(self, capsys):
        def fail(error):
            raise error

        assert self.said(capsys, ["x"], lambda: fail(UserError("no"))) == ("error: no", "")
        assert self.said(capsys, ["x"], lambda: fail(KeyboardInterrupt())) == ("interrupted", "")


class TestConfiguration:
    @dataclass
    class Settings:
        out: str = "rows.jsonl"
        count: int | None = None
        flag: bool = True

    def test_settings_are_keys(self):
        config = configuration(["count=3", "data.level=4"], settings=self.Settings)
        assert (config.out, config.count, config.flag, config.data.level) == ("rows.jsonl", 3, True, 4)
        assert configuration([], settings=self.Settings).count is None
        with pytest.raises(UserError, match="nonsense"):
            configuration(["nonsense=3"], settings=self.Settings)

    def test_a_run_s_own_groups_unless_others_are_typed(self, tmp_path):
        run = configuration(["data=stories", "rollout.max_tokens=5", "seed=9", "batch.samples=3"])
        OmegaConf.save(run, tmp_path / "config.yaml", resolve=False)
        taken = {"saved": tmp_path / "config.yaml", "of_the_run": ("data", "rollout", "seed")}
        config = configuration(["rollout.top_k=4"], **taken)
        assert (config.data._target_, config.rollout.max_tokens, config.rollout.top_k) == ("rlmods.data.Stories", 5, 4)
        assert (config.seed, config.batch.samples) == (9, 8)
        config = configuration(["data=arithmetic", "seed=2"], **taken)
        assert (config.data._target_, config.rollout.max_tokens, config.seed) == ("rlmods.data.Arithmetic", 5, 2)


class TestFindPolicy:
    def test_overrides_mean_what_they_mean_in_training(self, tmp_path):
        """They apply to the run's own options, not to the usual ones."""
        saved = tmp_path / "config.yaml"
        typed = ["reward=math", "data=jsonl", "data.train=a.jsonl", "batch.prompts=3"]
        OmegaConf.save(OmegaConf.masked_copy(configuration(typed), ["reward", "data", "batch"]), saved)
        more = ["data.train=b.jsonl", "~reward.terms.format", "+reward@reward.terms.mine.reward=accuracy", "++batch.samples=5"]
        config = configuration(more, saved=saved, of_the_run=("reward", "data", "batch"))
        assert (config.data._target_, config.data.train) == ("rlmods.data.Jsonl", "b.jsonl")
        assert (config.batch.prompts, config.batch.samples) == (3, 5)
        assert "format" not in config.reward.terms
        assert config.reward.terms.mine.reward._target_ == "rlmods.reward.Accuracy"
        assert not [key for key in config if not str(key).isidentifier()]

    def test_a_typo_is_refused(self, tmp_path):
        saved = tmp_path / "config.yaml"
        OmegaConf.save(OmegaConf.masked_copy(configuration([]), ["data"]), saved)
        with pytest.raises(UserError, match="levle"):
            configuration(["data.levle=3"], saved=saved, of_the_run=("data",))

    @pytest.mark.parametrize("typed", ["policy=smollm2", "policy.name=x", "+policy.x=1"])
    def test_a_second_policy_is_refused(self, typed):
        with pytest.raises(UserError, match="the policy is RUN; drop one"):
            find_policy("RUN", ["seed=1", typed])

    def test_of_a_run_a_folder_and_the_hub(self, tmp_path):
        assert find_policy("owner/name") == ("owner/name", None)
        assert find_policy(str(tmp_path)) == (str(tmp_path), None)
        (tmp_path / "config.yaml").touch()
        with pytest.raises(UserError, match="no export/ yet"):
            find_policy(str(tmp_path))
        (tmp_path / "export").mkdir()
        assert find_policy(str(tmp_path)) == (tmp_path / "export", tmp_path / "config.yaml")


class TestOutput:
    FACTS = {"model": "m", "sampling": {"temperature": 1.0, "stop": ("x",)}}  # noqa: RUF012 - read only

    def test_kept_and_dropped_rows_are_both_there_the_next_time(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        output = Output(path, self.FACTS)
        output.add({"id": "0"}, keep=True)
        output.add({"id": "1"}, keep=False)
        assert output.rows.keys() == {"0", "1"}
        for again in (output, Output(path, self.FACTS)):
            assert again.kept == {"0": {"id": "0", "model": "m", "sampling": {"temperature": 1.0, "stop": ["x"]}}}
            assert again.dropped.keys() == {"1"}
        assert [row["id"] for row in read_rows(path)] == ["0"]
        assert [row["id"] for row in read_rows(dropped_beside(path))] == ["1"]

    @pytest.mark.parametrize("keep", [True, False])
    def test_other_facts_are_refused_and_nothing_is_written(self, keep, tmp_path):
        path = tmp_path / "rows.jsonl"
        Output(path, self.FACTS).add({"id": "0"}, keep=keep)
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        other = {**self.FACTS, "sampling": {"temperature": 0.5, "stop": ["x"]}}
        with pytest.raises(UserError, match=r"began with sampling\.temperature=1\.0 \(now 0\.5\).*another out=FILE"):
            Output(path, other)
        with pytest.raises(UserError, match=r"model=m \(now None\)"):
            Output(path, {"model": None})
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before

    def test_another_kind_of_file_is_refused(self, tmp_path):
        (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1="}\n')
        with pytest.raises(UserError, match="another out=FILE"):
            Output(tmp_path / "rows.jsonl", self.FACTS)
