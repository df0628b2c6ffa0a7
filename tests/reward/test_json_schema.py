import json
import math
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlmods.config.instantiate import instantiate
from rlmods.errors import UserError
from rlmods.grading.strict_json import validator
from rlmods.reward import JSON
from rlmods.reward.json_schema import extract_json
from rlmods.types import Response, Scores
from tests.reward.samples import response

AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0}},
    "required": ["age"],
}

needs_jsonschema = pytest.mark.skipif(
    find_spec("jsonschema") is None, reason="needs the extra json"
)


def score(text: str, **settings: Any) -> float | None:
    return JSON(**settings)([response(text)])[0]


def from_config(file: Path) -> Any:
    """Instantiate the reward as the command line does."""
    return instantiate(
        OmegaConf.create({"_target_": "rlmods.reward.JSON", "schema": str(file)}), "reward"
    )


def scores(*rows: Response, **settings: Any) -> Scores:
    return JSON(**settings)(rows)


@pytest.mark.parametrize(
    ("text", "json_text"),
    [
        ("{}", "{}"),
        ("<think>1</think>{}", "{}"),
        ("<think>```json\n1\n```</think>2", "2"),
        ("</think>1</think>2", "2"),
        ("So:\n```json\n{}\n```\nDone.", "{}\n"),
        ("```JSON \n{}\n```", "{}\n"),
        ("```json\n1\n```\n```json\n2\n```", "2\n"),
        ("```json\n{}```", "{}"),
        ("```json\n{}", "{}"),
        ("```python\n1\n```", "```python\n1\n```"),
        ("```json5\n1\n```", "```json5\n1\n```"),
        ('```json\n{"a": "```b```"}\n```', '{"a": "```b```"}\n'),
        ('```json\n{"a": "```json"}\n```', '{"a": "```json"}\n'),
        ("", ""),
    ],
)
def test_extracts_the_last_block_after_the_thoughts(text: str, json_text: str) -> None:
    assert extract_json(text) == json_text


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '"é"',
        " \n0\t",
        "-1.5e-3",
        "null",
        "true",
        '{"a": {"a": 1}}',
        '"\\ud83d\\ude00"',
        '"😀"',
        "[" * 90 + "]" * 90,
    ],
)
def test_valid_json(text: str) -> None:
    assert score(text) == score(f"<think>[</think>```json\n{text}\n```") == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "9" * 5000,
        "{'a': 1}",
        "[1,]",
        "{} {}",
        "{} so",
        "Here: {}",
        '"a\nb"',
        "01",
        "+1",
        "١",
        "\ufeff{}",
        "\xa0{}",
        "// no\n1",
        "tru",
        "[" * 90 + "]" * 89,
        '{"a"}',
        "```json\n```",
    ],
)
def test_invalid_json(text: str) -> None:
    assert score(text) == 0.0


def test_long_and_deep_json() -> None:
    start = time.monotonic()
    deep, long, garbage = "[" * 40_000 + "]" * 40_000, f'"{"é" * 999_998}"', "```json\n" * 125_000
    result = JSON()([response(text) for text in (deep, long, garbage, "[", "1")])
    assert result.values == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert result.counts == {"timeouts": 0, "errors": 0}
    assert time.monotonic() - start < 20


@needs_jsonschema
class TestSchema:
    @pytest.mark.parametrize("schema", [AGE, json.dumps(AGE)])
    def test_from_the_prompt(self, schema: Any) -> None:
        texts = [
            '{"age": 3}',
            '{"age": -3}',
            '{"age": "3"}',
            "{}",
            '{"age": 3',
            '```json\n{"age": 4}\n```',
        ]
        result = scores(*[response(text, schema=schema) for text in texts])
        assert result.values == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
        assert result.counts == {"timeouts": 0, "errors": 0}

    def test_from_a_file_if_the_prompt_has_none(self, tmp_path: Path) -> None:
        written = json.dumps({**AGE, "title": "Âge"}, ensure_ascii=False)
        (tmp_path / "é.json").write_text(written, encoding="utf-8-sig")
        rows = [
            response("{}"),
            response('{"age": 1}'),
            response("[]", schema={"type": "array"}),
            response("1", schema=None, other=False),
        ]
        file = str(tmp_path / "é.json")
        assert scores(*rows, schema=file).values == [0.0, 1.0, 1.0, 0.0]
        assert scores(*rows, schema=file, column=None).values == [0.0, 1.0, 0.0, 0.0]
        assert scores(*rows, column="other").values == [1.0, 1.0, 1.0, 0.0]

    def test_older_draft(self) -> None:
        old = {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "number",
            "maximum": 3,
            "exclusiveMaximum": True,
        }
        assert scores(response("3", schema=old), response("2", schema=old)).values == [0.0, 1.0]

    @pytest.mark.slow
    def test_counts_timeouts_and_errors(self) -> None:
        slow = {"type": "string", "pattern": "^(a|aa)+$"}
        rows = [
            response(f'"{"a" * 60}b"', schema=slow),
            response("1", schema={"$ref": "https://example.invalid/x.json"}),
            response("1", schema={"$ref": "#"}),
            response("1", schema={"type": "integer"}),
        ]
        start = time.monotonic()
        result = scores(*rows, timeout_s=3.0)
        assert time.monotonic() - start < 20
        assert result.values == [0.0, 0.0, 0.0, 1.0]
        assert result.counts == {"timeouts": 1, "errors": 2}

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "dict"},
            {"properties": None},
            5,
            [],
            "{",
            {"pattern": "("},
            {"a": object()},
            {"a": math.nan},
        ],
    )
    def test_rejects_invalid_schemas(self, schema: Any, tmp_path: Path) -> None:
        with pytest.raises(
            UserError,
            match=r"prompt 0: column 'schema' is not a JSON schema \(.*type reward\.column=null",
        ) as error:
            scores(response("1", schema=schema))
        assert "\n" not in str(error.value)
        if isinstance(schema, str):
            (tmp_path / "bad.json").write_text(schema)
            with pytest.raises(
                UserError,
                match=r"JSON: schema=.*bad\.json is not a JSON schema \(.*type "
                r"reward\.schema=FILE\.json",
            ):
                from_config(tmp_path / "bad.json")

    def test_fetches_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        requests: list[object] = []
        monkeypatch.setattr(
            "urllib.request.urlopen", lambda *request, **_: requests.append(request)
        )
        with pytest.raises(Exception, match="Unresolvable"):
            validator('{"$ref": "https://example.invalid/x.json"}').is_valid(1)
        assert not requests


def test_rejects_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    with pytest.raises(
        UserError, match=r"schema\.json cannot be read \(.*\): type reward\.schema=FILE\.json"
    ):
        from_config(file)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlmods.reward.json_schema.find_spec", lambda _: None)
    assert score("{}") == 1.0
    with pytest.raises(UserError, match=r"pip install 'rlmods\[json\]'"):
        JSON()([response("{}", schema=AGE)])
