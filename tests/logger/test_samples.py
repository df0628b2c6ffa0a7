"""Tables of samples, and when they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from rlmods.callbacks import Samples
from rlmods.logger.samples import MAX_CHARS, TableLogger, table
from tests.callbacks.stubs import Tiny, fit, notify, trainer
from tests.support.tiny_setup import Log

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
