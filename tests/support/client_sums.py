"""The OpenAI client and agent libraries, unmodified, ask the policy for the answer to a sum."""

import re
from typing import Any


def is_right(task: Any, text: str) -> float:
    """Return 1 if the last number of the text is the answer."""
    numbers = re.findall(r"-?\d+", text)
    return float(numbers[-1:] == [task["answer"]])


async def openai_client(task: Any, client: Any) -> float:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        reply = await policy.chat.completions.create(model="policy", messages=task["messages"])
    return is_right(task, reply.choices[0].message.content or "")


async def openai_agents(task: Any, client: Any) -> float:
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        model = OpenAIChatCompletionsModel("policy", policy)
        agent = Agent("adds", model=model)
        config = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, task["messages"][-1]["content"], run_config=config)
    return is_right(task, str(result.final_output))


async def pydantic_ai(task: Any, client: Any) -> float:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=policy))
        result = await Agent(model).run(task["messages"][-1]["content"])
    return is_right(task, result.output)
