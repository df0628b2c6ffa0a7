"""Environments of verifiers: a small fake of the package for the logic, and the package itself
where it is installed."""

from __future__ import annotations

import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.data import VerifiersData, verifiers_loader
from rlmods.environment import Verifiers
from rlmods.environment import verifiers as module
from rlmods.errors import UserError
from rlmods.types import Prompt, Turn


def said(text: str, finish: Any = "stop") -> Turn:
    return Turn(0, len(text), text, text, finish)


class Echo:
    """Repeats a turn until it is the answer; "fail" raises. The reward is the number of turns."""

    tool_defs = None
    requires_group_rollouts = False
    eval_dataset = eval_dataset_source = None

    def __init__(self, **changes: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.rubric = self
        vars(self).update(changes)

    def get_dataset(self) -> list[dict[str, Any]]:
        return [
            {"prompt": [{"role": "user", "content": f"say {i}"}], "answer": str(i), "example_id": i}
            for i in range(4)
        ]

    async def init_state(
        self, row: dict[str, Any], client: Any, model: str, sampling_args: Any
    ) -> dict[str, Any]:
        return {"answer": row["answer"], "said": [], "messages": row["prompt"], "cleaned": False}

    async def setup_state(self, state: dict[str, Any]) -> None: ...

    async def get_prompt_messages(self, state: dict[str, Any]) -> list[dict[str, str]]:
        if state["said"]:
            if state["said"][-1] == "fail":
                raise RuntimeError("broken")
            reply = {"role": "user", "content": f"not {state['said'][-1]}"}
            state["messages"] = [
                *state["messages"],
                {"role": "assistant", "content": state["said"][-1]},
                reply,
            ]
        return list(state["messages"])

    async def add_model_response(self, state: dict[str, Any], messages: Any, response: Any) -> None:
        state["said"].append(response.text)

    async def is_completed(self, state: dict[str, Any]) -> bool:
        return state["said"][-1] == state["answer"]

    async def score_rollout(self, state: dict[str, Any]) -> None:
        state["reward"] = len(state["said"])

    async def cleanup(self, state: dict[str, Any]) -> None:
        state["cleaned"] = True


@pytest.fixture
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(
        load_environment=lambda name, **options: {"echo": Echo}[name](**options),
        MultiTurnEnv=Echo,
        Environment=Echo,
    )
    verifiers_loader._load.cache_clear()
    monkeypatch.setattr(verifiers_loader, "import_extra", lambda *names: package)
    monkeypatch.setattr(verifiers_loader, "_load", verifiers_loader._load.__wrapped__)
    monkeypatch.setattr(module, "_client", lambda: None)
    monkeypatch.setattr(module, "_response", lambda turn: turn)


@pytest.mark.usefixtures("_fake")
class TestEpisode:
    echo = Verifiers("echo", {}, max_turns=3)

    @pytest.fixture
    def episode(self) -> Any:
        return Verifiers("echo", {}, max_turns=3).start(
            VerifiersData("echo", num_val=1)().val[0], key=()
        )

    def test_observations_are_the_messages_after_the_turn(self, episode: Any) -> None:
        for text in ("7", "8"):
            reply = episode.reply(said(text))
            assert (reply.messages, reply.reward) == (
                [{"role": "user", "content": f"not {text}"}],
                0.0,
            )

    def test_the_rubric_scores_a_response_that_the_environment_ends(self, episode: Any) -> None:
        episode.reply(said("7"))
        reply = episode.reply(said("0"))
        assert (reply.messages, reply.reward) == (None, 2.0)
        assert episode.state["cleaned"]

    def test_its_last_message_ends_a_response(self, episode: Any) -> None:
        episode.state["final_env_response"] = [{"role": "user", "content": "bye"}]
        reply = episode.reply(said("7"))
        assert (reply.messages, reply.reward) == (None, 1.0)

    def test_the_rubric_scores_truncated_responses(self, episode: Any) -> None:
        reply = episode.reply(said("7", "length"))
        assert (reply.messages, reply.reward) == (None, 1.0)

    def test_the_rubric_scores_responses_that_a_limit_ends(self, episode: Any) -> None:
        episode.reply(said("7"))
        reply = episode.end()
        assert (reply.messages, reply.reward, list(reply.calls)) == (None, 1.0, [])
        assert episode.state["cleaned"]

    def test_a_rubric_that_fails_is_recorded(self, episode: Any) -> None:
        episode.reply(said("7"))
        episode.environment.inner.rubric = None
        assert [call.error for call in episode.end().calls] == ["crash"]

    def test_an_exception_ends_the_response_and_is_recorded(self, episode: Any) -> None:
        reply = episode.reply(said("fail"))
        assert (reply.messages, reply.reward) == (None, None)
        assert [call.result for call in reply.calls] == ["Error: RuntimeError: broken"]

    def test_the_prompt_must_be_a_task(self) -> None:
        with pytest.raises(
            ValueError, match=r"it is no task of verifiers: type data=verifiers data\.env_id=NAME"
        ):
            self.echo.check_prompt(Prompt(id="a", text="x"))


@pytest.mark.usefixtures("_fake")
class TestData:
    def test_the_first_tasks_are_held_out_where_there_are_no_others(self) -> None:
        splits = VerifiersData("echo", num_train=2, num_val=1)()
        assert [p.answer for p in splits.val] == ["0"]
        assert [p.answer for p in splits.train] == ["1", "2"]
        assert splits.train[0].messages == [{"role": "user", "content": "say 1"}]

    def test_without_a_chat_template_the_texts_are_the_prompt(self) -> None:
        assert VerifiersData("echo", num_val=1, chat=False)().val[0].text == "say 0"

    def test_handlers_of_signals_are_put_back(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        VerifiersData("echo", num_val=1)()
        assert signal.getsignal(signal.SIGTERM) is before

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"tool_defs": [1]}, "tools of its own"),
            ({"requires_group_rollouts": True}, "rewards of groups"),
        ],
    )
    def test_what_cannot_be_trained_on_is_refused(
        self, options: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(
            UserError, match=rf"data\.env_id=echo: .*{problem}.*: type another data\.env_id="
        ):
            VerifiersData("echo", options)()

    def test_other_classes_are_not_called(self, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[str] = []
        monkeypatch.setattr("os.system", called.append)
        with pytest.raises(
            UserError,
            match=r"data\.env_id=os:system: TypeError: system is no environment of verifiers",
        ):
            VerifiersData("os:system", {"command": "true"})()
        assert not called

    def test_a_name_is_needed(self) -> None:
        with pytest.raises(UserError, match=r"data\.env_id=null: type data\.env_id=NAME"):
            VerifiersData()()


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(
        UserError,
        match=r"^data=verifiers needs the package verifiers; type pip install 'rlmods\[verifiers\]'$",
    ):
        VerifiersData("echo")()
