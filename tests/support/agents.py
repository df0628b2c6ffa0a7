"""Programs of sessions for tests (`environment=agent`)."""

import asyncio
import json
import random
import threading
import time
from contextlib import suppress
from typing import Any

import httpx2

from rlmods.environment.session import RequestError


async def script(task: Any, client: Any) -> float:
    """Say `meta["texts"]` one after the other, and end after a truncated turn."""
    messages = list(task["messages"])
    for text in [*task["meta"].get("texts", ()), None]:
        reply = await client.chat(messages)
        if text is None or reply["finish_reason"] == "length":
            break
        messages += [reply, {"role": "user", "content": text}]
    return 1.0


async def delayed_script(task: Any, client: Any) -> float:
    """`script`, with requests at random moments."""
    await asyncio.sleep(random.random() / 50)
    return await script(task, Delayed(client))


class Delayed:
    """A client that waits before each request, a random time."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def chat(self, messages: Any, **fields: Any) -> Any:
        await asyncio.sleep(random.random() / 20)
        return await self.client.chat(messages, **fields)


class Running:
    """Number of programs `counted` that run, and the most that have run at once."""

    now = 0
    most = 0


async def counted(task: Any, client: Any) -> float:
    """`script`, counted in `Running`."""
    Running.now += 1
    Running.most = max(Running.most, Running.now)
    try:
        return await script(task, client)
    finally:
        Running.now -= 1


def plain_script(task: Any, client: Any) -> float:
    """`script`, as a plain function."""
    messages = list(task["messages"])
    for text in [*task["meta"].get("texts", ()), None]:
        reply = client.chat(messages)
        if text is None or reply["finish_reason"] == "length":
            break
        messages += [reply, {"role": "user", "content": text}]
    return 1.0


async def stubborn(task: Any, client: Any) -> float:
    """Ask again after each refusal, for 8 s."""
    messages = list(task["messages"])
    end = time.monotonic() + 8
    while time.monotonic() < end:
        with suppress(RequestError):
            messages.append(await client.chat(messages))
            messages.append({"role": "user", "content": "ab"})
    return 1.0


async def gives_more_rewards_than_turns(task: Any, client: Any) -> list[float]:
    await client.chat(task["messages"])
    return [1.0, 5.0]


async def forgets(task: Any, client: Any) -> list[float | None]:
    """Send a conversation of two turns, then a summary of it, then continue both."""
    first = list(task["messages"])
    first.append(await client.chat(first))
    first.append({"role": "user", "content": "ab"})
    first.append(await client.chat(first))
    summary = [{"role": "user", "content": f"so {first[1]['content']}"}]
    summary.append(await client.chat(summary))
    first.append({"role": "user", "content": "cd"})
    await client.chat(first)
    summary.append({"role": "user", "content": "ef"})
    await client.chat(summary)
    return [1.0, None, 2.0, 3.0, 4.0]


async def committee(task: Any, client: Any) -> float:
    """Send three requests at once, two of which continue the same turn, and then a last one."""
    messages = list(task["messages"])
    messages.append(await client.chat(messages))
    asked = [
        [*messages, {"role": "user", "content": "ab"}],
        [*messages, {"role": "user", "content": "cd"}],
        [{"role": "user", "content": "ef"}],
    ]
    replies = await asyncio.gather(*map(client.chat, asked))
    texts = " ".join(reply["content"] for reply in replies)
    await client.chat([{"role": "user", "content": texts}])
    return float(len(texts))


async def delayed_committee(task: Any, client: Any) -> float:
    """`committee`, with requests at random moments."""
    return await committee(task, Delayed(client))


async def retries(task: Any, client: Any) -> float:
    """Send the same request twice."""
    await client.chat(task["messages"])
    await client.chat(task["messages"])
    return 1.0


async def every_third_fails(task: Any, client: Any) -> Any:
    """End in a different way for each prompt, "0" to "5"."""
    match task["id"]:
        case "0":
            raise KeyError("no such thing")
        case "1":
            await asyncio.sleep(60)
        case "2":
            return 1.0
        case "3":
            await client.chat(task["messages"])
            return "well done"
        case "4":
            for _ in range(20):
                await client.chat(task["messages"])
    await client.chat(task["messages"])
    return 0.5


async def fails_at_times(task: Any, client: Any) -> float:
    """Crash before or after the first turn, or end with a reward, by what the policy says."""
    if int(task["id"].rpartition("-")[2]) % 5 == 4:
        raise KeyError("no such thing")
    reply = await client.chat(task["messages"])
    number = len(reply["content"])
    if number % 3 == 0:
        raise ValueError(f"{number}")
    return float(number % 2)


def sleeps(task: Any, client: Any) -> None:
    """Do not end in time."""
    time.sleep(2)
    client.chat(task["messages"])


RELEASED = threading.Event()
"""Ends `may_hang`."""


def may_hang(task: Any, client: Any) -> float:
    """Ask, and then do not return before `RELEASED`, if the prompt's id says so."""
    client.chat(task["messages"])
    if task["id"].startswith("hangs"):
        RELEASED.wait(600)
    return 1.0


async def ignores_refusals(task: Any, client: Any) -> float:
    """Go on until a limit refuses a request, and end."""
    messages = list(task["messages"])
    try:
        while True:
            reply = await client.chat(messages)
            messages += [reply, {"role": "user", "content": "ab"}]
    except RequestError:
        return 0.25


async def crashes(task: Any, client: Any) -> None:
    raise KeyError("no such thing")


def over_http(task: Any, client: Any) -> float:
    """`script`, by HTTP, with requests at random moments and streamed every other time."""
    messages = list(task["messages"])
    headers = {"Authorization": f"Bearer {client.api_key}"}
    for i, text in enumerate([*task["meta"].get("texts", ()), None]):
        time.sleep(random.random() / 50)
        body = {"model": "x", "messages": messages, "stream": i % 2 == 1}
        url = f"{client.base_url}/chat/completions"
        reply = httpx2.post(url, headers=headers, json=body, timeout=60).raise_for_status()
        if i % 2:
            events = [line.removeprefix("data: ") for line in reply.text.split("\n\n")]
            said, ended = (json.loads(event)["choices"][0] for event in events[:2])
            choice = {"message": said["delta"], "finish_reason": ended["finish_reason"]}
        else:
            [choice] = reply.json()["choices"]
        if text is None or choice["finish_reason"] == "length":
            break
        messages += [choice["message"], {"role": "user", "content": text}]
    return 1.0


def over_responses(task: Any, client: Any) -> float:
    """`script`, by `/v1/responses`: with all items, or with those after the last response, streamed
    every other time."""
    items = [{"role": m["role"], "content": m["content"]} for m in task["messages"]]
    headers = {"Authorization": f"Bearer {client.api_key}"}
    new = items
    last = None
    for i, text in enumerate([*task["meta"].get("texts", ()), None]):
        body = {"model": "x", "input": items, "stream": i % 2 == 1}
        if i == 2:
            body |= {"input": new, "previous_response_id": last}
        url = f"{client.base_url}/responses"
        reply = httpx2.post(url, headers=headers, json=body, timeout=60).raise_for_status()
        if i % 2:
            *_, event, end = reply.text.strip().split("\n\n")
            assert end == "data: [DONE]"
            found = json.loads(event.split("data: ")[1])["response"]
        else:
            found = reply.json()
        last = found["id"]
        if text is None or found["status"] == "incomplete":
            break
        new = [{"role": "user", "content": [{"type": "input_text", "text": text}]}]
        items = [*items, *found["output"], *new]
    return 1.0


async def chooses(task: Any, client: Any) -> float:
    """Ask for three answers, and go on with the last one."""
    messages = list(task["messages"])
    async with httpx2.AsyncClient(timeout=60) as http:
        reply = await http.post(
            f"{client.base_url}/chat/completions",
            headers={"Authorization": f"Bearer {client.api_key}"},
            json={"messages": messages, "n": 3, "logprobs": True},
        )
    choices = reply.json()["choices"]
    assert all(choice["logprobs"]["content"] for choice in choices)
    messages += [choices[2]["message"], {"role": "user", "content": "ab"}]
    await client.chat(messages, stop=["0", "1", "2", "3", "4"], max_tokens=5)
    return 1.0


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {"properties": {"terms": {"type": "string"}}, "required": ["terms"]},
    },
}


async def uses_tool(task: Any, client: Any) -> float:
    """Run the calls of a tool until there are none."""
    messages = list(task["messages"])
    while True:
        reply = await client.chat(messages, tools=[TOOL])
        messages.append(reply)
        for call in reply.get("tool_calls", ()):
            terms = json.loads(call["function"]["arguments"])["terms"]
            result = str(sum(map(int, terms.split())))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if messages[-1] is reply:
            return float(reply["content"] == result)


async def spells_control_tokens(task: Any, client: Any) -> float:
    """Send texts that spell control tokens, and one that no tokenizer takes."""
    messages = list(task["messages"])
    messages.append(await client.chat(messages))
    messages.append({"role": "user", "content": "<|im_end|>\n<eos><pad>\ud800"})
    await client.chat(messages)
    await client.chat([{"role": "user", "content": "<eos>a<|im_start|>"}])
    return 1.0
