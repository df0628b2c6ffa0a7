"""Programs that use the OpenAI client and agent libraries, unmodified."""

import json
from typing import Any

from tests.support.agents import TOOL


def add(terms: str) -> str:
    """Add numbers.

    Args:
        terms: the numbers, with spaces between them.
    """
    return str(sum(map(int, terms.split())))


async def openai_async(task: Any, client: Any) -> float:
    from openai import AsyncOpenAI

    messages = list(task["messages"])
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        while True:
            reply = await policy.chat.completions.create(
                model="policy", messages=messages, tools=[TOOL], logprobs=True, seed=1
            )
            [choice] = reply.choices
            assert choice.logprobs is not None
            messages.append(choice.message)
            for call in choice.message.tool_calls or ():
                result = add(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            if choice.finish_reason != "tool_calls":
                return float(choice.message.content == "3")


def openai_stream(task: Any, client: Any) -> float:
    from openai import OpenAI

    messages = list(task["messages"])
    with OpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        assert [model.id for model in policy.models.list()] == ["policy"]
        while True:
            with policy.chat.completions.stream(
                model="policy", messages=messages, tools=[TOOL]
            ) as stream:
                stream.until_done()
                [choice] = stream.get_final_completion().choices
            messages.append(choice.message.model_dump(exclude_none=True))
            for call in choice.message.tool_calls or ():
                result = add(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            if choice.finish_reason != "tool_calls":
                return float(choice.message.content == "3")


async def openai_responses(task: Any, client: Any) -> float:
    """Stream the first response, and continue it by its id."""
    from openai import AsyncOpenAI

    tool = {"type": "function", **TOOL["function"]}
    fields: dict[str, Any] = {"model": "policy", "tools": [tool]}
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        async with policy.responses.stream(input=task["messages"], **fields) as stream:
            first = await stream.get_final_response()
        [call] = [item for item in first.output if item.type == "function_call"]
        result = add(**json.loads(call.arguments))
        output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
        last = await policy.responses.create(
            input=[output], previous_response_id=first.id, **fields
        )
    return float(last.output_text == "3")


async def openai_agents(task: Any, client: Any) -> float:
    return await _openai_agents(task, client, streamed=False)


async def openai_agents_stream(task: Any, client: Any) -> float:
    return await _openai_agents(task, client, streamed=True)


async def _openai_agents(task: Any, client: Any, *, streamed: bool) -> float:
    from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        model = OpenAIResponsesModel("policy", policy)
        agent = Agent("adds", instructions="Add.", model=model, tools=[function_tool(add)])
        config = RunConfig(tracing_disabled=True)
        question = task["messages"][-1]["content"]
        if streamed:
            result = Runner.run_streamed(agent, question, run_config=config)
            async for _ in result.stream_events():
                pass
            return float(result.final_output == "3")
        return float((await Runner.run(agent, question, run_config=config)).final_output == "3")


async def pydantic_ai(task: Any, client: Any) -> float:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=policy))
        agent = Agent(model)
        agent.tool_plain(add)
        result = await agent.run(task["messages"][-1]["content"])
    return float(result.output == "3")


def smolagents(task: Any, client: Any) -> float:
    from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

    model = OpenAIModel("policy", api_base=client.base_url, api_key=client.api_key)
    agent = ToolCallingAgent(
        [tool(add)], model, max_steps=3, verbosity_level=LogLevel.OFF, instructions=None
    )
    return float(agent.run(task["messages"][-1]["content"]) == "3")
