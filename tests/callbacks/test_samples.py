import json
from pathlib import Path
from typing import Any

import pytest
import rich
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from rlmods.callbacks import Samples
from rlmods.callbacks.samples import MAX_CHARS, TableLogger, panel, table
from rlmods.run.files import printable
from tests.callbacks.stubs import Tiny, fit, notify, trainer
from tests.support.tiny_setup import Log


def test_writes_one_row_per_response(tmp_path: Path) -> None:
    learner = fit(Tiny(), 4, [Samples(tmp_path / "samples", every=2, print_every=0)])
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == [
        "iteration_000002.jsonl",
        "iteration_000004.jsonl",
    ]
    lines = (tmp_path / "samples/iteration_000004.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == learner.samples


def test_some_rows_are_printed_verbatim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(Tiny(), 3, [Samples(tmp_path, shown=2, print_every=3)])
    out = capsys.readouterr().out
    assert out.count("iteration 3") == 2
    # no markup, evenly spaced
    assert [f"[bold]{i}" in out for i in range(4)] == [True, False, True, False]
    assert "reward 2" in out


def test_zero_disables_writing_and_printing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Tiny(), 2, [Samples(tmp_path / "samples", every=0, print_every=0)])
    assert not (tmp_path / "samples").exists()
    assert "response" not in capsys.readouterr().out


def test_validation_has_separate_files(tmp_path: Path) -> None:
    stub, learner = trainer(), Tiny()
    stub.callbacks = [Samples(tmp_path)]
    notify(stub, "on_validation_metrics", learner, {}, [{"response": "a"}])
    assert (tmp_path / "validation_000000.jsonl").read_text() == '{"response": "a"}\n'


def test_rows_of_all_ranks_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(rows: list[Any], gathered: list[Any]) -> None:
        gathered[:] = [rows, [{"response": "of rank 1"}]]

    monkeypatch.setattr("torch.distributed.gather_object", gather)
    stub, learner = trainer(), Tiny()
    stub.world_size, learner.iteration, learner.samples = 2, 1, [{"response": "of rank 0"}]
    samples = Samples(tmp_path, every=1, print_every=0)
    samples.on_iteration_end(stub, learner, {})
    samples.on_validation_metrics(stub, learner, {}, [{"response": "of rank 0"}])
    for kind in ("iteration", "validation"):
        lines = (tmp_path / f"{kind}_000001.jsonl").read_text().splitlines()
        assert [json.loads(line)["response"] for line in lines] == ["of rank 0", "of rank 1"]


def test_files_after_the_resumed_iteration_are_deleted(tmp_path: Path) -> None:
    kept = ["iteration_000002.jsonl", "mine_000009.jsonl", "validation_000000.jsonl"]
    for name in [*kept, "iteration_000003.jsonl", "validation_000004.jsonl"]:
        (tmp_path / name).touch()
    learner = Tiny()
    learner.iteration = 2
    Samples(tmp_path).on_train_start(trainer(), learner)
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


@pytest.mark.parametrize(
    "hostile", ["\x1b]0;title\x07", "\x1b[2J", "\x9b2J", "\u202e", "a\rb", "\u2028", "\ud800"]
)
def test_control_characters_are_shown_as_escapes(
    hostile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in (
        {"response": f"x{hostile}y"},
        {"prompt": f"x{hostile}y"},
        {"answer": f"x{hostile}y"},
        {"id": hostile},
        {hostile: "id"},
    ):
        rich.get_console().print(panel(row, "title"))
        out = capsys.readouterr().out
        assert not set(out) & set("\x1b\x07\x9b\u202e\r\u2028\ud800")
        assert hostile.encode("unicode_escape").decode() in out


def test_printable_changes_no_visible_text() -> None:
    text = "é 数学\t∫ 😀\n\xa0x\\x1b"
    assert printable(text) == text


def test_unusual_row_can_be_printed() -> None:
    row = {
        "prompt": [{"role": "user", "content": "hi"}],
        "response": "",
        "answer": None,
        "tokens": [1, 2],
        "reward": None,
    }
    rich.get_console().print(panel(row, "title"))


ROW = {
    "id": "a",
    "prompt": "1+1=",
    "response": "2",
    "tokens": [3, 4],
    "reward": 1.0,
    "correct": True,
    "answer": None,
    "branch": {"sample": 0},
}


class Tables(Log):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[str, int | None, list[Any]]] = []

    def log_table(
        self, key: str, columns: list[str], data: list[list[Any]], step: int | None = None
    ) -> None:
        self.tables.append((key, step, [row[columns.index("response")] for row in data]))


class TestTable:
    def test_prompt_response_answer_and_reward_come_first(self) -> None:
        columns, cells = table([ROW])
        assert columns == ["prompt", "response", "answer", "reward", "id", "correct"]
        assert cells == [["1+1=", "2", None, 1.0, "a", True]]

    def test_rows_may_lack_columns(self) -> None:
        columns, cells = table([{"response": "2"}, {"reward": 1.0, "response": "3"}])
        assert columns == ["response", "reward"]
        assert cells == [["2", None], ["3", 1.0]]

    def test_messages_become_one_text(self) -> None:
        _, cells = table(
            [{"prompt": [{"role": "system", "content": "add"}, {"role": "user", "content": "1+1"}]}]
        )
        assert cells == [["system: add\nuser: 1+1"]]

    def test_texts_are_cut_and_control_characters_escaped(self) -> None:
        _, cells = table([{"response": "\x1b[2J" + "a" * MAX_CHARS}])
        assert cells == [["\\x1b[2J" + "a" * (MAX_CHARS - 4)]]

    def test_no_rows(self) -> None:
        assert table([]) == ([], [])


class TestSchedule:
    def test_first_rows_of_every_nth_iteration(self, tmp_path: Path) -> None:
        log, other = Tables(), Log()
        fit(
            Tiny(),
            4,
            [Samples(tmp_path, every=0, print_every=0, table_every=2, table_rows=3)],
            [log, other],
        )
        rows = ["[bold]0", "[bold]1", "[bold]2"]
        assert log.tables == [("samples/iteration", 2, rows), ("samples/iteration", 4, rows)]
        assert isinstance(log, TableLogger)
        assert not isinstance(other, TableLogger)

    def test_loggers_of_lightning_that_keep_tables(self) -> None:
        assert issubclass(WandbLogger, TableLogger)
        assert not issubclass(TensorBoardLogger, TableLogger)

    def test_of_each_validation(self, tmp_path: Path) -> None:
        stub, log = trainer(), Tables()
        for every in (0, 3):
            stub.callbacks, stub.loggers = [Samples(tmp_path, every=0, table_every=every)], [log]
            notify(stub, "on_validation_metrics", Tiny(), {}, [{"response": "a"}])
            assert log.tables == [("samples/validation", 0, ["a"])] * (every > 0)
