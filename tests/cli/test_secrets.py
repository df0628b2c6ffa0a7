"""Passwords and keys in the settings of a user are in no file and in no output of a run."""

import json
import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlmods.policy import Tiny
from tests.judge.server import serve
from tests.support.processes import Process

pytestmark = pytest.mark.slow

SECRET = "hunter2"
SHORT = (
    "batch.prompts=2",
    "rollout.max_tokens=4",
    "trainer.max_iterations=1",
    "trainer.accelerator=cpu",
    "validation.max_prompts=2",
)
SMALL = (
    "policy.pretrained=false",
    "policy.hidden_size=32",
    "policy.num_layers=1",
    "data.level=1",
    *SHORT,
)
JUDGE = ("algo=online_dpo", "judge=llm")
LOGGER = """
from lightning.pytorch.loggers.logger import DummyLogger

class Note(DummyLogger):
    def __init__(self, address, token):
        super().__init__()
        assert token.startswith("hunter2") and "hunter2" in address
"""


def run(command: list[str], folder: Path, **variables: str) -> tuple[int, str]:
    """Run a command in a process, and return its exit status and everything that it printed."""
    (folder / "plugins").mkdir(exist_ok=True)
    environment = os.environ | {
        "PLANTED": f"{SECRET}-env",
        "no_proxy": "127.0.0.1",
        "RLMODS_PLUGINS": str(folder / "plugins"),
        **variables,
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
            *JUDGE,
            *SMALL,
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
        [*JUDGE, "judge.model=m", "judge.retries=0", "judge.url=URL"],
        [*JUDGE, "judge.model=m", "judge.url=http://127.0.0.1:9", "+judge.api_key=hunter2"],
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


def test_names_of_data_and_models_from_the_environment(tmp_path: Path) -> None:
    folder = tmp_path / f"{SECRET}-env"
    folder.mkdir()
    rows = [f'{{"prompt": "{i}+1=", "answer": "{i + 1}"}}\n' for i in range(20)]
    (folder / "rows.jsonl").write_text("".join(rows))
    Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(folder / "model")
    place = f"{tmp_path}/${{oc.env:PLANTED}}"
    data = ("data=jsonl", f"data.train={place}/rows.jsonl", "data.num_val=4")
    policy = ("policy=hf", f"policy.name={place}/model")
    run_folder = tmp_path / "run"
    command = ["train.py", "algo=dapo", *data, *policy, *SHORT, f"run_dir={run_folder}"]
    status, output = run(command, tmp_path)
    assert status == 0, output
    status, page = run(["-m", "rlmods.report", str(run_folder)], tmp_path)
    assert status == 0, page
    status, rows_of_run = run(["-m", "rlmods.evaluate", str(run_folder), "--trust"], tmp_path)
    assert status == 0, rows_of_run
    assert leaks(run_folder) == []
    assert SECRET not in output + page + rows_of_run
    (folder / "rows.jsonl").unlink()
    command[-1] = f"run_dir={tmp_path}/other"
    status, message = run(command, tmp_path)
    assert status != 0
    assert "rows.jsonl: cannot be read" in message
    assert SECRET not in message


def test_a_key_that_the_server_repeats(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with serve(lambda body, number: (401, f"bad key {SECRET}-env".encode())) as server:
        key = ("judge.model=m", "judge.key_variable=PLANTED", f"judge.url={server.url}")
        status, output = run(["train.py", *JUDGE, *key, *SMALL, f"run_dir={folder}"], tmp_path)
        assert server.headers[0]["authorization"] == f"Bearer {SECRET}-env"
    assert status != 0
    assert "the key in $PLANTED is not accepted" in output
    assert SECRET not in output
    assert leaks(folder) == []


def test_sweeps(tmp_path: Path) -> None:
    """A sweep writes the overrides to `multirun.yaml`, and Hydra prints those of each member."""
    folder = tmp_path / "sweep"
    sweep = ["train.py", "-m", *JUDGE, *SMALL, f"hydra.sweep.dir={folder}"]
    with serve(lambda body, number: "7") as server:
        model = ("judge.model='m-${oc.env:PLANTED}','n-${oc.env:PLANTED}'", "judge.retries=0")
        command = [*sweep, *model, "judge.url=${oc.env:JUDGE_URL}"]
        url = server.url.replace("//", f"//u:{SECRET}@") + f"?k={SECRET}"
        status, output = run(command, tmp_path, JUDGE_URL=url)
        assert status == 0, output
        models = {body["model"] for body in server.bodies}
    assert models == {f"m-{SECRET}-env", f"n-{SECRET}-env"}
    assert len(list(folder.glob("*/summary.json"))) == 2
    assert SECRET not in output
    assert leaks(folder) == []
    typed = (f'judge.url="http://u:{SECRET}@127.0.0.1:9/v1"', "judge.model=m,n")
    status, output = run([*sweep, *typed, f"hydra.sweep.dir={folder}2"], tmp_path)
    assert status != 0
    assert "a sweep saves what is typed, and this URL has a user or a query" in output
    assert SECRET not in output
    assert leaks(tmp_path) == []
    broken = [*sweep, "judge.model=m,n", "judge.retries=0", f"hydra.sweep.dir={folder}3"]
    nowhere = f"http://u:{SECRET}@127.0.0.1:9/v1"
    status, output = run([*broken, "judge.url=${oc.env:JUDGE_URL}"], tmp_path, JUDGE_URL=nowhere)
    assert status != 0
    assert "error: " in output
    assert SECRET not in output
    assert leaks(tmp_path) == []


def test_rows_of_other_commands(tmp_path: Path) -> None:
    model = tmp_path / "model"
    Tiny(pretrained=False, hidden_size=32, num_layers=1)().export(model)
    candidates = [{"text": "2"}, {"text": "3"}]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"id": "a", "prompt": "1+1=", "candidates": candidates}))
    with serve(lambda body, number: "A") as server:
        url = server.url.replace("//", f"//u:{SECRET}@") + f"?k={SECRET}"
        settings = ("judge.model='m-${oc.env:PLANTED}'", f'judge.url="{url}"')
        reward = ("reward=rating", "+judge@reward.judge=llm", *(f"reward.{x}" for x in settings))
        sizes = ("num_prompts=2", "data.num_train=8")
        commands = [
            ["label", str(rows), "judge=llm", *settings, f"out={tmp_path}/labelled.jsonl"],
            ["collect", str(model), *reward, *sizes, f"out={tmp_path}/collected.jsonl"],
            ["evaluate", str(model), *reward, "data.num_val=2"],
            ["redteam", *reward, *sizes, f"out={tmp_path}/holes.json"],
        ]
        for name, *arguments in commands:
            _, output = run(["-m", f"rlmods.{name}", *arguments], tmp_path)
            assert "error: " not in output
            assert SECRET not in output
        assert {body["model"] for body in server.bodies} == {f"m-{SECRET}-env"}
    assert len(list(tmp_path.glob("*.json*"))) == 5
    assert leaks(tmp_path) == []
