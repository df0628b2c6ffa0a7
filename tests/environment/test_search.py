"""Search over documents."""

from pathlib import Path

import pytest

from rlmods.environment import Tools
from rlmods.environment.search import Search
from rlmods.errors import UserError
from tests.environment.said import CHAT, contents, reply
from tests.support.control_tokens import Model


class TestSearch:
    def test_ranks_documents(self, tmp_path: Path) -> None:
        file = tmp_path / "documents.jsonl"
        others = "".join(f"a {animal}\n" for animal in ("bird", "fish", "fox", "cow"))
        file.write_text(
            'the cat sat on the mat\n\n{"text": "a dog and a cat and a cat", "x": 1}\na cat\n'
            + others
        )
        search = Search(str(file), 3)
        ranked = ["a cat", "a dog and a cat and a cat", "the cat sat on the mat"]
        assert search("cat").split("\n") == ranked, (
            "short documents first, then those with more matches"
        )
        assert Search(str(file), 1)("cat") == "a cat"
        assert search("dog") == "a dog and a cat and a cat"
        assert search('cat" OR text:* NEAR(') != ""
        assert search("elephant") == "no document matches"
        with pytest.raises(ValueError, match="no words"):
            search("?!")
        assert contents(reply("<search>dog</search>", Tools(["search"], documents=str(file)))) == [
            "<result>a dog and a cat and a cat</result>"
        ]

    def test_documents_are_read_once(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("a document\n")
        environment = Tools(["search"], documents=str(tmp_path / "x"))
        (tmp_path / "x").unlink()
        policy = Model("{% if tools %}<tool_call>{% endif %}")
        bound = environment.for_policy(policy)
        assert (environment.format, bound.format) == ("auto", "hermes")
        assert bound.functions is environment.functions
        assert contents(
            reply(
                '<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>',
                bound,
                CHAT,
            )
        ) == ["a document"]

    def test_files_without_documents_are_errors(self, tmp_path: Path) -> None:
        for text, problem in {
            '{"a": 1}\n': "'text': give a file with one document a line",
            "{\n": "Expecting",
        }.items():
            (tmp_path / "x").write_text(text)
            with pytest.raises(UserError, match=problem):
                Search(str(tmp_path / "x"))
        with pytest.raises(UserError, match="No such file"):
            Search(str(tmp_path / "none"))
        with pytest.raises(
            UserError, match=r"search needs documents: type environment\.documents=FILE"
        ):
            Tools(["search"])
