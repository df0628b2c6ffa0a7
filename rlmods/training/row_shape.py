"""Numbers of tokens of a training row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rlmods.policy.text import TokenizerMixin
from rlmods.types import Prompt


class RowShape(NamedTuple):
    """Tokens of one row: a prompt with one response, or with several candidates."""

    prompt: int
    response: int
    """Tokens of the longest response; 1 if the data has none."""
    num: int = 1
    """Number of candidate responses, which are padded to the longest."""

    @property
    def tokens(self) -> int:
        """Number of tokens in a forward of the row alone."""
        return (self.prompt + self.response) * self.num


def row_shape(prompt: Prompt, encoder: TokenizerMixin, columns: Iterable[str]) -> RowShape:
    """Return the shape of a row of the data, whose responses are in these columns of
    `prompt.meta`."""
    texts = [
        text
        for name in columns
        for text in (prompt.meta[name] if name == "candidates" else ["".join(prompt.meta[name])])
    ]
    responses = [len(encoder.encode_response(text, prompt)) for text in texts]
    return RowShape(len(encoder.encode(prompt)), max(responses, default=1), max(1, len(responses)))
