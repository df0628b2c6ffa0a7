"""Custom reward: `python train.py reward=name`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Name:
    """Score `value` if the response contains `word`, else 0; None (abstain) for a prompt without a
    question."""

    word: str = "1"
    """Text to search for."""
    value: float = 1.0
    """Score of a response that contains `word`."""

    def __call__(self, responses: Sequence[Any]) -> list[float | None]:
        return list(map(self.score, responses))

    def score(self, response: Any) -> float | None:
        """
        Args:
            response: has `.text`, `.tokens`, `.finish` ("stop" or "length"), `.prompt.text`,
            `.prompt.answer`, and all other columns of
                the data set in `.prompt.meta`.
        """
        if not response.prompt.text and not response.prompt.messages:
            return None
        return self.value if str(self.word) in response.text else 0.0
