"""The comparison of sampling engines measures the same work with each."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import engine, engines
from bench.workloads import WORKLOADS, prepare
from rlmods.policy.hf import load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(WORKLOADS["mini"], tmp_path_factory.mktemp("model")).model


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SAMPLES": 200, "TOKENS": 3, "REPEATS": 1}.items():
        monkeypatch.setattr(engine, name, value)


class TestEngine:
    @pytest.mark.parametrize("name", ["local", "generate"])
    def test_samples_from_the_policy(self, name: str, model: Path) -> None:
        """Frequencies of the first tokens are the policy's probabilities after each prompt, of
        which one is padded, and none ends a response."""
        policy = load(model)
        prompts = [policy.tokenizer("7+8=").input_ids, policy.tokenizer("61-32=").input_ids]
        torch.manual_seed(0)
        rows = engine.ENGINES[name](str(model), prompts, "float32")()
        assert [len(row) for row in rows] == [3] * 400
        for prompt, own in zip(prompts, (rows[:200], rows[200:]), strict=True):
            with torch.no_grad():
                expected = policy.next_logits(torch.tensor([prompt])).softmax(-1)[0]
                seconds = policy.next_logits(torch.tensor([[*prompt, own[0][0]]])).softmax(-1)[0]
            for position, probabilities in ((0, expected), (1, seconds)):
                chosen = own if position == 0 else [row for row in own if row[0] == own[0][0]]
                found = torch.bincount(
                    torch.tensor([row[position] for row in chosen]), minlength=len(probabilities)
                ) / len(chosen)
                assert float((found - probabilities).abs().max()) < 3 / len(chosen) ** 0.5

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_prints_time_and_tokens(
        self, dtype: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "prompts").write_text("[[5, 6, 7]]")
        engine.main("local", str(model), str(tmp_path / "prompts"), dtype)
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["tokens"] == 600
        assert len(found["seconds"]) == 1
        assert found["seconds"][0] > 0

    def test_short_responses_are_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "prompts").write_text("[[5]]")
        monkeypatch.setitem(
            engine.ENGINES, "local", lambda *_: lambda: [[1, 2, 3]] * 199 + [[1, 2]]
        )
        with pytest.raises(RuntimeError, match=r"local: 200 responses of \[2, 3\] tokens"):
            engine.main("local", "", str(tmp_path / "prompts"), "float32")


class TestEngines:
    def test_measures_every_engine_in_its_environment(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found: list[Any] = []

        def run(arguments: Sequence[str], log: Path, **options: Any) -> tuple[float, float]:
            name, _, prompts, dtype = arguments[-4:]
            ids = json.loads(Path(prompts).read_text())
            found.append((name, dtype, len(ids), options.get("python")))
            log.write_text('a warning\n{"seconds": [2.0, 1.0, 4.0], "tokens": 512}\nanother\n')
            return 9.0, 1e9

        monkeypatch.setattr(engines, "run_python", run)
        monkeypatch.setattr(engines, "ROOT", tmp_path)
        monkeypatch.setitem(engines.WORKLOADS, "smollm2", WORKLOADS["mini"])
        monkeypatch.setattr(engines, "vllm_version", lambda python: "vllm 1.2.3")
        engines.main(
            [
                "--batches",
                "8",
                "32",
                "--dtypes",
                "float32",
                "--vllm",
                "true",
                "--out",
                str(tmp_path),
            ]
        )
        order = [("local", None), ("generate", None), ("vllm", "true")]
        assert found == [
            (name, "float32", rows // 8, python) for rows in (8, 32) for name, python in order
        ]
        text = (tmp_path / "ENGINES.md").read_text()
        assert "vllm 1.2.3" in text
        assert (
            "| float32 | 32 | 256 (128 to 512) | 256 (128 to 512) | 256 (128 to 512) | 1 | 1 | 1 |"
            in text
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["hf"], "hf is not an engine: type some of local, generate, vllm"),
            (["local", "--batches", "12"], "--batches 12: must be a multiple of 8"),
            (["--vllm", "/nowhere/python"], "name the others: local generate"),
        ],
    )
    def test_mistakes_are_told(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            engines.parse(arguments)
        assert message in capsys.readouterr().err
