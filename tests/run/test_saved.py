"""Reading a run directory."""

from pathlib import Path

import pytest

from rlmods.errors import UserError
from rlmods.run.saved import SavedRun, check_run
from tests.support.saved_runs import write_run


class TestRun:
    def test_series_and_result(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.25, None, 0.5, 0.75], seed=3))
        assert run.series("val/accuracy") == [(0, 0.25), (2, 0.5), (3, 0.75)]
        assert (run.result("val/accuracy"), run.result("val/accuracy", last=2)) == (0.75, 0.625)
        assert run.result("train/reward") is None
        assert (run.seed, run.label, run.exit, run.parts["ratio"]) == (
            3,
            "dapo",
            "finished",
            "clip_higher",
        )

    def test_values_that_are_no_numbers_are_skipped(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.25]))
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write('{"iteration": 1, "val/accuracy": "0.5"}\n')
            file.write('{"iteration": 2, "val/accuracy": true}\n{"iter')
        assert run.series("val/accuracy") == [(0, 0.25)]

    def test_prompts(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.5], correct={"x": True, "y": False, "z": None}))
        with (run.path / "samples/validation_000000.jsonl").open("a") as file:
            file.write('{"id": "y", "correct": true, "temperature": 1.0}\n')
        assert run.by_prompt() == {"x": 1.0, "y": 0.0}  # of the greedy responses

    def test_a_run_that_has_not_ended(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.5], exit=None))
        assert (run.exit, run.label, run.parts, run.overrides) == ("not finished", "dapo", {}, None)

    @pytest.mark.parametrize(
        "text", ["5", "a: [", "!!python/object/apply:os.system ['true']\n", "\x00"]
    )
    def test_a_broken_or_hostile_config_is_one_line(self, text: str, tmp_path: Path) -> None:
        folder = write_run(tmp_path / "a", [0.5])
        (folder / "config.yaml").write_text(text)
        with pytest.raises(UserError, match=r"config\.yaml: .*give another run") as error:
            SavedRun(folder).config  # noqa: B018
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nothing", "there is no such folder"),
        ("sweep", "it holds 2 runs: type one of them, such as .*sweep/a$"),
        ("sweep/a/checkpoints", "it is a part of the run .*sweep/a: type that"),
        ("sweep/a/config.yaml", "it is a part of the run .*sweep/a: type that"),
        (".", "it has no config.yaml"),
    ],
)
def test_what_is_not_a_run_is_answered_with_the_run_that_is(
    path: str, words: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / "sweep" / name, [0.5])
    (tmp_path / "sweep/a/checkpoints").mkdir(exist_ok=True)
    check_run(tmp_path / "sweep/a")
    with pytest.raises(UserError, match=f"is not a run directory: {words}"):
        check_run(tmp_path / path)
