"""Stand-in of a vLLM server for tests: the same addresses, weights from files, and responses that
depend on prompt and seed alone."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from rlmods.rollout.vllm_server import UNSYNCED
from tests.judge.server import RequestLog, serve
from tests.rollout.receiver import Receiver

Change = Callable[["StandIn", dict[str, Any], dict[str, Any]], Any]
"""Called with the server, a request for responses and the ordinary reply; returns the reply to
send, or a status."""


class StandIn:
    """A server's state, and what it was asked."""

    def __init__(self, change: Change | None = None) -> None:
        self.version = UNSYNCED
        self.weights: dict[str, Any] = {}
        self.adapter: dict[str, Any] = {}
        self.adapter_config: dict[str, Any] = {}
        self.num_loads = self.num_resets = self.num_adapters = 0
        self.prompts: list[list[int]] = []
        """Prompts that were answered."""
        self.settings: list[dict[str, Any]] = []
        self.is_down = self.keeps_cache = False
        self.adapter_name: str | None = None
        """Model that requests must name."""
        self.adapter_reply = (200, b"Success: LoRA adapter added.")
        self.fails_once: str | None = None
        """Path of a request that is not answered, the first time."""
        self.change, self.log, self.lock = change, RequestLog(), threading.Lock()
        self.receiver = Receiver()
        """The workers, as far as they receive weights by NCCL."""

    @property
    def url(self) -> str:
        return self.log.url.removesuffix("/v1")

    def restart(self) -> None:
        """Become a server that has just been started."""
        self.version, self.is_down, self.receiver = UNSYNCED, False, Receiver()

    def __call__(self, body: dict[str, Any], number: int) -> tuple[int, bytes]:
        with self.lock:
            if self.is_down:
                return 503, b"down"
            path = self.log.paths[number]
            if path == self.fails_once:
                self.fails_once = None
                return 503, b"busy"
            if path == "/weight_info":
                return 200, json.dumps({"weight_version": self.version}).encode()
            if path in self.receiver.paths:
                reply = self.receiver(path, body)
                self.is_down = self.is_down or self.receiver.has_died
                return reply
            if "method" in body:
                assert body["method"] == "reload_weights"
                files = sorted(Path(body["kwargs"]["weights_path"]).glob("*.safetensors"))
                self.weights = {name: x for file in files for name, x in load_file(file).items()}
                self.num_loads += 1
                return 200, b'{"results": [null]}'
            if "lora_path" in body:
                if not self.adapter_reply[1].startswith(b"Success"):
                    return self.adapter_reply
                assert body["lora_name"] != self.adapter_name
                folder = Path(body["lora_path"])
                self.adapter = load_file(folder / "adapter_model.safetensors")
                self.adapter_config = json.loads((folder / "adapter_config.json").read_text())
                self.adapter_name = body["lora_name"]
                self.num_adapters += 1
                return self.adapter_reply
            if "new_version" in body:
                self.version = body["new_version"]
                return 200, b'{"success": true}'
            if "token_ids" not in body:
                self.num_resets += 1
                return 200, b'{"success": false}' if self.keeps_cache else b'{"success": true}'
            assert not self.receiver.is_paused
            assert body.get("model") == self.adapter_name
            reply: Any = {
                "choices": [
                    choice(body, i, self.version) for i in range(body["sampling_params"]["n"])
                ][::-1]
            }
            if self.change is not None:
                reply = self.change(self, body, reply)
            if isinstance(reply, int):
                return reply, b"{}"
            self.prompts.append(body["token_ids"])
            self.settings.append(body["sampling_params"])
            return 200, json.dumps(reply).encode()


def choice(body: dict[str, Any], index: int, version: str) -> dict[str, Any]:
    settings = body["sampling_params"]
    length = 1 + (settings["seed"] + index) % settings["max_tokens"]
    tokens = [10 + (settings["seed"] + index + i) % 50 for i in range(length)]
    content = [
        {"token_id": i, "logprob": -math.log(i), "rank": 1, "top_logprobs": []} for i in tokens
    ]
    spans = [{"version": version, "start": 0, "end": length}]
    finish = "length" if length == settings["max_tokens"] else "stop"
    return {
        "index": index,
        "token_ids": tokens,
        "logprobs": {"content": content},
        "finish_reason": finish,
        "weight_versions": spans,
    }


@contextmanager
def servers(*changes: Change | None) -> Iterator[list[StandIn]]:
    """Run a server for each change; None: an ordinary one."""
    if not changes:
        yield []
        return
    first = StandIn(changes[0])
    with serve(first) as log, servers(*changes[1:]) as others:
        first.log = log
        yield [first, *others]
