"""The OpenAI client and agent libraries, unmodified, drive sessions with tools."""

from pathlib import Path

import pytest

from rlmods.environment import Agent
from rlmods.rollout import MultiTurn
from rlmods.types import Prompt, Response
from tests.rollout.test_agents import CHATML, Says
from tests.support.smollm2 import ADDS, assert_learns, train
from tests.support.tiny_setup import policy

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
CALL = '<tool_call>{"name": "add", "arguments": {"terms": "1 2"}}</tool_call>'
FINAL = '<tool_call>{"name": "final_answer", "arguments": {"answer": "3"}}</tool_call>'


def run(name: str, answer: str = "3", **settings: int) -> Response:
    """Return the response of a session whose policy calls the tool, and then answers."""

    def reply(text: str) -> str:
        return answer if "[tool]3" in text or "Observation:\n3" in text else CALL

    model = policy(context_length=50_000)
    model.tokenizer.chat_template = CHATML
    environment = Agent(
        agent=f"tests.support.client_agents:{name}", max_tokens=40_000, timeout_s=120
    )
    rollout = MultiTurn(Says(max_tokens=500, reply=reply), environment)
    rollout.sync(model, iteration=0)
    data = [Prompt(id="a", text="1+2=")]
    [response] = rollout.generate(data, samples=1, iteration=0)
    assert response.session is not None
    assert response.session.failure is None
    assert response.turns[-1].reward == 1.0
    return response


PACKAGES = {
    "openai_async": "openai",
    "openai_stream": "openai",
    "openai_responses": "openai",
    "openai_agents": "agents",
    "openai_agents_stream": "agents",
    "pydantic_ai": "pydantic_ai",
}
"""Package of each agent of `tests.support.client_agents`."""


@pytest.mark.parametrize("name", PACKAGES)
def test_one_conversation(name: str) -> None:
    pytest.importorskip(PACKAGES[name])
    response = run(name)
    assert response.session is not None
    assert response.session.requests == 2
    assert response.cuts == ()


def test_smolagents() -> None:
    """It writes earlier calls as text of its own, which is a cut."""
    pytest.importorskip("smolagents")
    response = run("smolagents", FINAL)
    assert response.session is not None
    assert response.session.requests == 2
    assert response.session.cuts == 1


CLIENTS = {"openai_client": "openai", "openai_agents": "agents", "pydantic_ai": "pydantic_ai"}
"""Package of each agent of `tests.support.client_sums`."""


@pytest.mark.parametrize("name", CLIENTS)
def test_smollm2_is_trained_by(name: str, tmp_path: Path) -> None:
    pytest.importorskip(CLIENTS[name])
    agent = f"environment.agent=tests.support.client_sums:{name}"
    assert_learns(train(tmp_path / "run", *ADDS, agent))
