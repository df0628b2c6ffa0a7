"""Programs of sessions for tests (`environment=agent`)."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

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


def plain_script(task: Any, client: Any) -> float:
    """`script`, as a plain function."""
    messages = list(task["messages"])
    for text in [*task["meta"].get("texts", ()), None]:
        reply = client.chat(messages)
        if text is None or reply["finish_reason"] == "length":
            break
        messages += [reply, {"role": "user", "content": text}]
    return 1.0


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


def sleeps(task: Any, client: Any) -> None:
    """Do not end in time."""
    time.sleep(2)
    client.chat(task["messages"])


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
