"""A reward of your own: `python train.py reward=name`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Name:
    """Pays `value` for a response that contains `word`, else 0; a prompt without a question abstains (None)."""

    word: str = "because"
    """What to look for."""
    value: float = 1.0
    """What it is worth."""

    def __call__(self, responses: Sequence[Any]) -> list[float | None]:
        return [self.score(response) for response in responses]

    def score(self, response: Any) -> float | None:
        """
        Args:
            response: `.text`, `.tokens`, `.finish` ("stop" or "length"); `.prompt.text`, `.prompt.answer`, and every other column of the
                data set in `.prompt.meta`.
        """
        if not response.prompt.text and not response.prompt.messages:
            return None
        return self.value if str(self.word) in response.text else 0.0
