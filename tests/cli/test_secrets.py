"""Passwords and keys in the settings of a user are in no file and in no output of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.judge.server import serve
from tests.support.processes import Process

pytestmark = pytest.mark.slow

SECRET = "hunter2"
SMALL = (
    "policy.pretrained=false",
    "policy.hidden_size=32",
    "policy.num_layers=1",
    "data.level=1",
    "batch.prompts=2",
    "rollout.max_tokens=4",
    "trainer.max_iterations=1",
    "trainer.accelerator=cpu",
    "validation.max_prompts=2",
)
LOGGER = """
from lightning.pytorch.loggers.logger import DummyLogger

class Note(DummyLogger):
    def __init__(self, address, token):
        super().__init__()
        assert token.startswith("hunter2") and "hunter2" in address
"""


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Run a command in a process, and return its exit status and everything that it printed."""
    environment = os.environ | {
        "PLANTED": f"{SECRET}-env",
        "no_proxy": "127.0.0.1",
        "RLMODS_PLUGINS": str(folder / "plugins"),
    }
    process = Process(command, env=environment, merge=True)
    output, _ = process.communicate(timeout=300)
    return process.returncode or 0, output


def leaks(folder: Path) -> list[str]:
    """Return the files that hold the secret or have it in their name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        str(path) for path in files if SECRET.encode() in path.read_bytes() or SECRET in str(path)
    ]


def make_plugin(folder: Path) -> None:
    """Write a plugin with a logger."""
    plugin = folder / "plugins" / "note"
    (plugin / "logger").mkdir(parents=True)
    (plugin / "note.py").write_text(LOGGER)
    (plugin / "logger" / "note.yaml").write_text(
        "note:\n  _target_: note.Note\n  address: null\n  token: null\n"
    )


def test_a_run_its_report_and_its_export_hold_no_secret(tmp_path: Path) -> None:
    make_plugin(tmp_path)
    output_folder = tmp_path / "run"
    with serve(lambda body, number: "7") as server:
        address = server.url.removeprefix("http://")
        url = f"http://user:{SECRET}@{address}?key={SECRET}"
        command = [
            "train.py",
            "algo=online_dpo",
            *SMALL,
            "judge=llm",
            f'judge.url="{url}"',
            "judge.model='m-${oc.env:PLANTED}'",
            "judge.key_variable=PLANTED",
            "reward@validation.reward=rating",
            "+judge@validation.reward.judge=llm",
            "validation.reward.judge.model=m",
            f"validation.reward.judge.url='http://{address}/${{oc.env:PLANTED}}?k={SECRET}'",
            "logger=[csv,tensorboard,note]",
            "logger.note.token='${oc.env:PLANTED}'",
            f'logger.note.address="postgresql://me:{SECRET}@db:5432/runs?password={SECRET}"',
            f"run_dir={output_folder}",
        ]
        status, output = run(command, tmp_path)
        assert status == 0, output
        assert any(SECRET in body["model"] for body in server.bodies), "it is used"
        resumed, more = run([*command, "trainer.max_iterations=2", "resume=auto"], tmp_path)
        assert resumed == 0, more
    reported, page = run(["-m", "rlmods.report", str(output_folder)], tmp_path)
    assert reported == 0, page
    assert (output_folder / "export" / "README.md").is_file()
    assert (output_folder / "report.html").is_file()
    assert leaks(output_folder) == []
    assert SECRET not in output + more + page
    saved = OmegaConf.to_container(OmegaConf.load(output_folder / "config.yaml"), resolve=False)
    assert isinstance(saved, dict)
    assert saved["judge"]["model"] == "m-${oc.env:PLANTED}"
    assert saved["judge"]["url"] == f"http://{address}"


@pytest.mark.parametrize(
    "overrides",
    [
        ["algo=online_dpo", "judge=llm", "judge.model=m", "judge.retries=0", "judge.url=URL"],
        [
            "algo=distill",
            "teacher=server",
            "teacher.model=m",
            "teacher.retries=0",
            "teacher.url=URL",
        ],
        ["algo=dapo", "rollout=vllm_server", "rollout.retries=0", "rollout.urls=[URL]"],
        ["algo=dapo", "trainer.max_iterations=URL"],
    ],
)
def test_the_message_of_a_run_that_fails_holds_no_secret(
    overrides: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    make_plugin(tmp_path)
    url = f'"http://user:{SECRET}@127.0.0.1:9/${{oc.env:PLANTED}}/v1?key={SECRET}"'
    typed = [override.replace("URL", url) for override in overrides]
    status, output = run(["train.py", *SMALL, *typed, f"run_dir={folder}"], tmp_path)
    assert status != 0
    assert "error: " in output
    assert SECRET not in output
    assert leaks(folder) == []
