import json
from pathlib import Path
from typing import Any

import pytest
import rich
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from rlmods.callbacks import Samples
from rlmods.callbacks.samples import MAX_CHARS, TableLogger, sample_text, table
from rlmods.run.files import printable
from tests.callbacks.stubs import Tiny, fit, trainer
from tests.support.tiny_setup import Log


def texts(path: Path) -> list[str]:
    return [json.loads(line)["response"] for line in path.read_text().splitlines()]


class TestFiles:
    @pytest.mark.parametrize(("every", "iterations"), [(2, [2, 4]), (0, [])])
    def test_one_row_per_response(self, every: int, iterations: list[int], tmp_path: Path) -> None:
        learner = fit(Tiny(), 4, [Samples(tmp_path, every=every, print_every=0)])
        written = [f"iteration_{i:06d}.jsonl" for i in iterations]
        assert sorted(path.name for path in tmp_path.iterdir()) == written
        for name in written[-1:]:
            lines = (tmp_path / name).read_text().splitlines()
            assert [json.loads(line) for line in lines] == learner.samples

    def test_rows_of_all_ranks_are_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gather(rows: list[Any], gathered: list[Any]) -> None:
            gathered[:] = [rows, [{"response": "of rank 1"}]]

        monkeypatch.setattr("torch.distributed.gather_object", gather)
        stub = trainer()
        stub.world_size = 2
        learner = Tiny()
        learner.iteration = 1
        learner.samples = [{"response": "of rank 0"}]
        samples = Samples(tmp_path, every=1, print_every=0)
        samples.on_iteration_end(stub, learner, {})
        samples.on_validation_metrics(stub, learner, {}, learner.samples)
        for kind in ("iteration", "validation"):
            assert texts(tmp_path / f"{kind}_000001.jsonl") == ["of rank 0", "of rank 1"]

    def test_files_after_the_resumed_iteration_are_deleted(self, tmp_path: Path) -> None:
        kept = ["iteration_000002.jsonl", "mine_000009.jsonl", "validation_000000.jsonl"]
        for name in [*kept, "iteration_000003.jsonl", "validation_000004.jsonl"]:
            (tmp_path / name).touch()
        learner = Tiny()
        learner.iteration = 2
        Samples(tmp_path).on_train_start(trainer(), learner)
        assert sorted(path.name for path in tmp_path.iterdir()) == kept


class TestPrint:
    def test_some_rows_are_printed_verbatim(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fit(Tiny(), 3, [Samples(tmp_path, shown=2, print_every=3)])
        out = capsys.readouterr().out
        assert out.count("iteration 3") == 2
        # no markup, evenly spaced
        assert [f"[bold]{i}" in out for i in range(4)] == [True, False, True, False]
        assert "reward 2" in out

    @pytest.mark.parametrize(
        "hostile", ["\x1b]0;title\x07", "\x1b[2J", "\x9b2J", "\u202e", "a\rb", "\u2028", "\ud800"]
    )
    def test_control_characters_are_shown_as_escapes(
        self, hostile: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("response", "prompt", "answer", "id", hostile):
            rich.get_console().print(sample_text({name: f"x{hostile}y"}, "title"))
            out = capsys.readouterr().out
            assert not set(out) & set("\x1b\x07\x9b\u202e\r\u2028\ud800")
            assert hostile.encode("unicode_escape").decode() in out

    def test_printable_changes_no_visible_text(self) -> None:
        text = "é 数学\t∫ 😀\n\xa0x\\x1b"
        assert printable(text) == text

    def test_unusual_row(self) -> None:
        row = {
            "prompt": [{"role": "user", "content": "hi"}],
            "response": "",
            "answer": None,
            "tokens": [1, 2],
            "reward": None,
        }
        rich.get_console().print(sample_text(row, "title"))


class Tables(Log):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[str, int | None, list[Any]]] = []

    def log_table(
        self, key: str, columns: list[str], data: list[list[Any]], step: int | None = None
    ) -> None:
        self.tables.append((key, step, [row[columns.index("response")] for row in data]))


MESSAGES = [{"role": "system", "content": "add"}, {"role": "user", "content": "1+1"}]


class TestTable:
    @pytest.mark.parametrize(
        ("rows", "columns", "cells"),
        [
            ([], [], []),
            (
                [
                    {
                        "id": "a",
                        "prompt": "1+1=",
                        "response": "2",
                        "tokens": [3, 4],
                        "reward": 1.0,
                        "correct": True,
                        "answer": None,
                        "branch": {"sample": 0},
                    }
                ],
                ["prompt", "response", "answer", "reward", "id", "correct"],
                [["1+1=", "2", None, 1.0, "a", True]],
            ),
            (
                [{"response": "2"}, {"reward": 1.0, "response": "3"}],
                ["response", "reward"],
                [["2", None], ["3", 1.0]],
            ),
            ([{"prompt": MESSAGES}], ["prompt"], [["system: add\nuser: 1+1"]]),
            (
                [{"response": "\x1b[2J" + "a" * MAX_CHARS}],
                ["response"],
                [["\\x1b[2J" + "a" * (MAX_CHARS - 4)]],
            ),
        ],
        ids=["no rows", "order", "missing columns", "messages", "long and hostile"],
    )
    def test_columns_and_cells(
        self, rows: list[dict[str, Any]], columns: list[str], cells: list[Any]
    ) -> None:
        assert table(rows) == (columns, cells)

    def test_first_rows_of_every_nth_iteration(self, tmp_path: Path) -> None:
        log = Tables()
        samples = Samples(tmp_path, every=0, print_every=0, table_every=2, table_rows=3)
        fit(Tiny(), 4, [samples], [log, Log()])
        rows = ["[bold]0", "[bold]1", "[bold]2"]
        assert log.tables == [("samples/iteration", 2, rows), ("samples/iteration", 4, rows)]

    @pytest.mark.parametrize("every", [0, 3])
    def test_of_each_validation(self, every: int, tmp_path: Path) -> None:
        stub = trainer()
        log = Tables()
        stub.loggers = [log]
        samples = Samples(tmp_path, every=0, table_every=every)
        samples.on_validation_metrics(stub, Tiny(), {}, [{"response": "a"}])
        assert log.tables == [("samples/validation", 0, ["a"])] * (every > 0)

    def test_loggers_that_keep_tables(self) -> None:
        assert issubclass(WandbLogger, TableLogger)
        assert not issubclass(TensorBoardLogger, TableLogger)
