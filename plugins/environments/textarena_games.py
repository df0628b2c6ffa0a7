"""Single-player games of the textarena package:

    python train.py data=episodes +data.options.game=GuessTheNumber-v0 environment=agent \\
        environment.agent=textarena_games:agent reward=environment"""

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import textarena
from environments import play

_LOCK = threading.Lock()


async def agent(task: Mapping[str, Any], client: Any) -> list[float]:
    """Play the game of a row of `data=episodes`. The turn that ends it gets its reward, other turns
    0."""
    return await play_game(client, **task["meta"])


async def play_game(
    client: Any, *, seed: int, game: str = "GuessTheNumber-v0", **options: Any
) -> list[float]:
    """Play a game, one move a turn.

    Args:
        client: the policy.
        seed: decides what is random in the game.
        game: its name in the package.
        options: its settings, such as `max_number=10`.
    """
    seeds = random.Random(seed)
    with global_generators(seeds):
        played = textarena.make(env_id=game, **options)
        while isinstance(played, textarena.Wrapper):
            played = played.env  # wrappers repeat earlier messages
        played.reset(num_players=1, seed=seed)

    async def step(text: str) -> tuple[str, float, bool]:
        with global_generators(seeds):
            is_done, _ = played.step(action=text)
        if is_done:
            rewards, _ = played.close()
            return "", float(rewards[0]), True
        return new_messages(played), 0.0, False

    return await play(client, new_messages(played), step)


def new_messages(played: Any) -> str:
    """Return what a game has said since the last turn, without the turn itself."""
    player, messages = played.get_observation()
    return "\n".join(str(text) for sender, text, _ in messages if sender != player)


@contextmanager
def global_generators(seeds: random.Random) -> Iterator[None]:
    """Seed the global generators of `random` and NumPy, which games draw from, for a block."""
    with _LOCK:
        outer = random.getstate()
        outer_numpy = np.random.get_state()
        seed = seeds.getrandbits(32)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(outer)
            np.random.set_state(outer_numpy)
