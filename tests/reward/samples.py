"""Responses as input for rewards."""

from rlmods.types import Prompt, Response


def response(
    text: str = "", answer: str | None = None, *, tokens: int = 0, **meta: object
) -> Response:
    return Response(
        Prompt(id="0", text="?", answer=answer, meta=meta), tokens=range(tokens), text=text
    )
