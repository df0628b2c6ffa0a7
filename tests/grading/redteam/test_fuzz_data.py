"""Data files with any content: rows, or one line that names the file and the line."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from rlmods.data import Jsonl, Preferences
from rlmods.errors import UserError
from rlmods.types import Prompt
from tests.grading.redteam.fuzz import fuzz

pytestmark = pytest.mark.nightly

scalars = (
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8)
)
words = st.sampled_from(
    [
        "a",
        "x",
        " ",
        "",
        "\n\nHuman: hi\n\nAssistant: yes",
        "1 #### 2",
        "#### 3",
        "\ud800",
        "user",
        "assistant",
        "stop",
    ]
)
turns = st.fixed_dictionaries(
    {}, optional={"role": words, "content": words | scalars, "name": scalars}
)
objects = st.fixed_dictionaries(
    {}, optional={"text": words | scalars, "finish": words | scalars, "logprob": scalars}
)
values = st.recursive(
    scalars | words | turns | objects,
    lambda x: st.lists(x, max_size=4) | st.dictionaries(words, x, max_size=3),
    max_leaves=8,
)
COLUMNS = ("prompt", "answer", "id", "question", "meta", "messages", "response", "source")
PREFERENCES = (
    "chosen",
    "rejected",
    "margin",
    "candidates",
    "ranks",
    "scores",
    "label",
    "steps",
    "step_labels",
    "response",
    "prompt",
    "answer",
)
numbers = st.sampled_from([0, 1, -1, 0.5, True, None, "+", "-", 1e400, float("nan"), 2, "1"])
texts = words | scalars | st.lists(turns, max_size=3)


def rows_of(columns: tuple[str, ...], likely: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    """A line of a file: an object with some of the columns, or any other text."""
    rows = st.fixed_dictionaries({}, optional=dict.fromkeys(columns, likely | values))
    return rows.map(json.dumps) | st.text(max_size=20).map(lambda text: text.replace("\n", " "))


def load(data: Any, path: Path) -> None:
    """Check that a data part returns prompts, or refuses the file in one line that names it."""
    splits, message = None, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            splits = data()
    except UserError as error:
        message = str(error)
    if splits is None:
        assert path.name in message or "data." in message
    else:
        assert splits.train
        assert all(
            isinstance(prompt, Prompt) and (prompt.text is None) != (prompt.messages is None)
            for prompt in splits.train
        )
        assert len({prompt.id for prompt in splits.train}) == len(splits.train)
        assert all(
            prompt.answer is None or isinstance(prompt.answer, str) for prompt in splits.train
        )


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
    return path


@fuzz(120)
@given(
    lines=st.lists(rows_of(COLUMNS, texts), min_size=1, max_size=4),
    chat=st.booleans(),
    data=st.data(),
)
def test_fuzz_prompts(tmp_path: Path, lines: list[str], chat: bool, data: st.DataObject) -> None:
    path = write(tmp_path / "rows.jsonl", lines)
    options = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "id": st.just("id"),
                "response": st.just("response"),
                "source": st.just("source"),
            },
        )
    )
    if data.draw(st.booleans()):
        options["messages"] = "messages"
    load(Jsonl(str(path), num_val=0, chat=chat, **options), path)


@fuzz(200)
@given(
    lines=st.lists(
        rows_of(PREFERENCES, texts | numbers | st.lists(texts | numbers, max_size=3)),
        min_size=1,
        max_size=3,
    ),
    skip=st.booleans(),
)
def test_fuzz_preferences(tmp_path: Path, lines: list[str], skip: bool) -> None:
    path = write(tmp_path / "rows.jsonl", lines)
    load(Preferences(str(path), num_val=0, skip_invalid=skip), path)


@fuzz(80)
@given(
    content=st.binary(max_size=60)
    | st.binary(max_size=20).map(lambda x: b'{"prompt": "a"}\n' + x + b'\n{"prompt": "b"}')
)
@example(content=b'{"prompt": "a", "prompt": ' + b"[" * 100_000)
@example(content=b'{"prompt": ' + b"9" * 5000 + b"}")
@example(content=b'{"prompt": "a", "answer": ' + b"9" * 5000 + b"}")
@example(content=b'{"prompt": "a", "x": 1e999999}')
def test_fuzz_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    load(Jsonl(str(path), num_val=0), path)
