"""Upload an exported model to the Hugging Face Hub: `python -m rlmods.push RUN OWNER/NAME
[key=value]`.

RUN is a run directory (its `export/`), or the directory of an exported model, such as
`RUN/export_best` or `RUN/checkpoints/iteration_000100_export`. Before the upload, transformers
loads the model and runs it. Weights, tokenizer, configuration and the model card are uploaded, and
nothing else of the run: read the card (`README.md`) first, it has the command. Log in with `hf auth
login`.

    private=true                        visibility of a new repository
    message="Upload of an rlmods run"   message of the commit
    branch=main                         branch to which it is uploaded
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlmods.cli.command import command
from rlmods.config.instantiate import one_line, parse_settings
from rlmods.errors import UserError, check_bounds
from rlmods.policy.exports import check_export
from rlmods.policy.hf import exported

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "README.md")
"""Files that are uploaded."""


@dataclass(frozen=True)
class Settings:
    """Where the model is uploaded."""

    private: bool = True
    """Visibility of a new repository."""
    message: str = "Upload of an rlmods run"
    """Message of the commit."""
    branch: str = "main"
    """Branch to which it is uploaded."""

    def __post_init__(self) -> None:
        rules = {
            "message": (bool(self.message.strip()), "a text"),
            "branch": (bool(re.fullmatch(r"[\w./-]+", self.branch)), "a name"),
        }
        check_bounds(self, "push", rules)


def push(source: str, repository: str, arguments: Sequence[str] = ()) -> str:
    """Upload the model at `source`, and return its address.

    Raises:
        UserError: there is no such model, it cannot be loaded or has links to files elsewhere, or
        the Hub refuses it or cannot be reached.
    """
    if wrong := [argument for argument in arguments if "=" not in argument]:
        raise UserError(f"{wrong[0]}: type key=value, such as private=false")
    try:
        settings: Settings = parse_settings(
            OmegaConf.from_dotlist(list(arguments)), "push", Settings
        )
    except UserError as error:
        raise UserError(str(error).replace("push.", "", 1)) from error
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repository):
        raise UserError(f"{repository}: type OWNER/NAME, the name of a repository on the Hub")
    folder = Path(exported(source)).expanduser()
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{source}: there is no model in it: type a run that has ended, or the directory "
            "of an exported model"
        )
    inside = folder.resolve()
    if links := sorted(
        x for x in folder.rglob("*") if x.is_symlink() and not x.resolve().is_relative_to(inside)
    ):
        raise UserError(
            f"{links[0]}: links to {links[0].resolve()}, which would be uploaded: replace the "
            "link by a copy, or delete it"
        )
    check_export(folder)
    return _upload(folder, repository, settings)


def _upload(folder: Path, repository: str, settings: Settings) -> str:
    from huggingface_hub import HfApi, constants, errors

    if constants.HF_HUB_OFFLINE:
        raise UserError("HF_HUB_OFFLINE=1 is set: unset it to upload")
    api = HfApi()
    try:
        api.whoami()
        url = api.create_repo(repository, private=settings.private, exist_ok=True)
        if settings.branch != "main":
            api.create_branch(repository, branch=settings.branch, exist_ok=True)
        options: dict[str, Any] = {
            "commit_message": settings.message,
            "revision": settings.branch,
            "allow_patterns": list(PATTERNS),
        }
        api.upload_folder(folder_path=folder, repo_id=repository, **options)
    except errors.LocalTokenNotFoundError as error:
        raise UserError(
            f"the Hub does not know you: type hf auth login ({one_line(error)[:120]})"
        ) from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no status")
        hint = (
            "type hf auth login, with a token that may write"
            if status in (401, 403)
            else "try again later"
        )
        raise UserError(
            f"{repository}: the Hub refused the upload ({status}: {one_line(error)[:160]}): {hint}"
        ) from error
    except (errors.HTTPError, ConnectionError, TimeoutError) as error:  # type: ignore[attr-defined]  # of its HTTP library
        raise UserError(
            f"the Hub cannot be reached ({one_line(error)[:120] or type(error).__name__}): "
            "check the network"
        ) from error
    return str(url)


def main(arguments: Sequence[str]) -> Any:
    def action() -> str:
        if len(arguments) < 2:
            raise UserError(
                "push needs a run and a repository: type python -m rlmods.push RUN OWNER/NAME"
            )
        return push(arguments[0], arguments[1], arguments[2:])

    command(arguments, __doc__, action)


if __name__ == "__main__":
    main(sys.argv[1:])
