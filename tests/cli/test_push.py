"""Upload of exported models to the Hub, which a stub replaces."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError

from rlmods.cli.push import PATTERNS, push
from rlmods.errors import UserError
from tests.support.tiny_setup import policy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    policy().export(folder / "export")
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "export" / "README.md").write_text("# card\n")
    (folder / "export" / "notes.md").write_text("mine")
    return folder


class Api:
    """Records the calls of the Hub's client, and raises `error` in one of them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []
        self.error: tuple[str, Exception] | None = None

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> str:
            self.calls.append((name, args, kwargs))
            if self.error and self.error[0] == name:
                raise self.error[1]
            return "https://hub/me/model"

        return call


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: made)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return made


def refused(status: int) -> HfHubHTTPError:
    response: Any = SimpleNamespace(headers={}, request=None, status_code=status)
    return HfHubHTTPError("refused", response=response)


class TestPush:
    def test_uploads_the_export_of_a_run(self, api: Api, run: Path) -> None:
        assert push(str(run), "me/model", ["branch=v1"]) == "https://hub/me/model"
        calls = {name: (args, kwargs) for name, args, kwargs in api.calls}
        assert list(calls) == ["whoami", "create_repo", "create_branch", "upload_folder"]
        assert calls["create_repo"] == (("me/model",), {"private": True, "exist_ok": True})
        _, upload = calls["upload_folder"]
        assert (upload["folder_path"], upload["repo_id"], upload["revision"]) == (
            run / "export",
            "me/model",
            "v1",
        )
        sent = {
            path.name
            for path in huggingface_hub.utils.filter_repo_objects(
                sorted((run / "export").iterdir()),
                allow_patterns=PATTERNS,
                key=lambda path: path.name,
            )
        }
        assert sent >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
        assert "notes.md" not in sent

    def test_public_if_typed(self, api: Api, run: Path) -> None:
        push(str(run / "export"), "me/model", ["private=false"])
        assert ("create_repo", ("me/model",), {"private": False, "exist_ok": True}) in api.calls

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (("whoami", LocalTokenNotFoundError("no token")), "type hf auth login"),
            (
                ("create_repo", refused(403)),
                r"the Hub refused the upload \(403: .*\): type hf auth login, with a token "
                r"that may write",
            ),
            (("upload_folder", refused(500)), "try again later"),
            (
                ("whoami", HTTPError("no route")),
                r"the Hub cannot be reached \(no route\): check the network",
            ),
        ],
    )
    def test_errors_of_the_hub(self, api: Api, run: Path, error: Any, message: str) -> None:
        api.error = error
        with pytest.raises(UserError, match=message) as found:
            push(str(run), "me/model")
        assert "\n" not in str(found.value)

    @pytest.mark.parametrize(
        ("repository", "words", "message"),
        [
            ("model", [], "type OWNER/NAME"),
            ("me/../x", [], "type OWNER/NAME"),
            ("me/model", ["public"], "public: type key=value"),
            ("me/model", ["pubic=1"], "pubic"),
            ("me/model", ["private=maybe"], "private=maybe"),
            ("me/model", ["branch=a b"], "branch=a b"),
        ],
    )
    def test_mistakes(
        self, api: Api, run: Path, repository: str, words: list[str], message: str
    ) -> None:
        with pytest.raises(UserError, match=message):
            push(str(run), repository, words)
        assert api.calls == []

    def test_files_elsewhere_are_not_uploaded(self, api: Api, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("key")
        policy().export(tmp_path / "export")
        link = tmp_path / "export" / "vocab.txt"
        link.symlink_to(tmp_path / "secret")
        with pytest.raises(
            UserError, match=r"vocab\.txt: links to .*secret, which would be uploaded"
        ):
            push(str(tmp_path / "export"), "me/model")
        assert api.calls == []
        link.unlink()
        link.symlink_to("config.json")
        (tmp_path / "linked").symlink_to("export")
        assert push(str(tmp_path / "linked"), "me/model")

    def test_a_model_that_cannot_be_loaded_is_not_uploaded(self, api: Api, tmp_path: Path) -> None:
        policy().export(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(UserError, match="cannot load this model"):
            push(str(tmp_path), "me/model")
        (tmp_path / "config.json").unlink()
        with pytest.raises(UserError, match="there is no model in it"):
            push(str(tmp_path), "me/model")
        assert api.calls == []

    def test_offline(self, api: Api, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(UserError, match="HF_HUB_OFFLINE=1 is set: unset it to upload"):
            push(str(run), "me/model")
        assert api.calls == []


def test_one_word_is_not_enough() -> None:
    from rlmods.cli import push as command

    with pytest.raises(SystemExit, match=r"type python -m rlmods\.push RUN OWNER/NAME"):
        command.main(["runs/x"])
