"""Prompts of a large file. They stay there, and each is read when it is asked for."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from rlmods.errors import UserError
from rlmods.types import Prompt

Array = np.ndarray[Any, Any]
NUM_EXAMPLES = 100_000
"""Number of rows of a large file that are read for a warning about their texts."""


class NumberedRow(NamedTuple):
    """A row and where it stands."""

    number: int
    """Line of a JSON Lines file, else the position in the split; from 1 on."""
    location: str
    """File and line, for error messages."""
    values: dict[str, Any]


class Source(Protocol):
    """Rows of a file, in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> NumberedRow: ...

    def __iter__(self) -> Iterator[NumberedRow]: ...


@dataclass(frozen=True)
class Facts:
    """What is kept of all rows of a file."""

    prompt_bytes: Array
    """Size of each prompt; three times its bytes if they are not ASCII, which normalizers may write
    longer."""
    response_bytes: Array
    """Size of `meta["response"]` of each row in the same way, 0 without one."""
    questions: Array
    """A hash of each prompt."""
    ids: Array
    """A hash of each id."""
    kinds: Sequence[Prompt]
    """One prompt of each kind: with an answer or none, and of the same source, columns and
    roles."""
    digest: bytes
    """Digest of all rows."""


@dataclass(eq=False)
class FileRows(Sequence[Prompt]):
    """Prompts that are read from a file when they are asked for, in the memory of 40 bytes a
    row."""

    source: Source
    convert: Callable[[NumberedRow], Prompt]
    """Makes a prompt of a row."""
    facts: Facts
    positions: Array
    """Rows of the file that are among these prompts, in ascending order."""

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.convert(self.source[int(self.positions[index])])

    def __iter__(self) -> Iterator[Prompt]:
        is_chosen = np.zeros(len(self.source), bool)
        is_chosen[self.positions] = True
        for chosen, row in zip(is_chosen.tolist(), self.source, strict=True):
            if chosen:
                yield self.convert(row)

    def select(self, kept: Sequence[int] | Array) -> FileRows:
        """Return the prompts at these positions, which ascend."""
        positions = self.positions[np.asarray(kept, np.int64)]
        return FileRows(self.source, self.convert, self.facts, positions)

    def larger(self, num_bytes: int, has_response: bool) -> Iterator[tuple[int, Prompt]]:
        """Yield the positions and prompts of more bytes, with or without their response."""
        for i in np.flatnonzero(self._sizes(has_response) > num_bytes).tolist():
            yield i, self[i]

    def largest(self, num: int, has_response: bool) -> list[Prompt]:
        """Return the prompts with the most bytes, with or without their response."""
        order = np.argsort(-self._sizes(has_response), kind="stable")
        return [self[i] for i in order[:num].tolist()]

    def _sizes(self, has_response: bool) -> Array:
        sizes = self.facts.prompt_bytes[self.positions]
        return sizes + self.facts.response_bytes[self.positions] if has_response else sizes

    @property
    def digest(self) -> bytes:
        """Digest of these prompts."""
        return hashlib.sha256(self.facts.digest + self.positions.tobytes()).digest()

    def check_ids(self, others: Iterable[Prompt], source: str) -> None:
        """Check that the ids, and those of the other prompts, are unique.

        Raises:
            UserError: an id that occurs twice.
        """
        known = np.array([hash(prompt.id) for prompt in others], np.int64)
        ids = np.concatenate([known, self.facts.ids[self.positions]])
        order = np.argsort(ids, kind="stable")
        repeated = order[1:][ids[order[1:]] == ids[order[:-1]]] - len(known)
        for i in repeated[repeated >= 0].tolist():
            raise UserError(repeated_id(self[i], source))


def question_of(prompt: Prompt) -> str | None:
    """Return what prompts of the same question have in common."""
    return prompt.text if prompt.messages is None else repr(prompt.messages)


def repeated_id(prompt: Prompt, source: str) -> str:
    """Return the error about a prompt whose id another one has."""
    return (
        f"{prompt.location or source}: the id {prompt.id} occurs twice; type data.id=COLUMN with "
        "unique values, or data.id=null to number the rows"
    )


def scan(source: Source, convert: Callable[[NumberedRow], Prompt]) -> FileRows:
    """Read all rows once, which checks them, and return them as prompts."""
    prompt_bytes = array("i")
    response_bytes = array("i")
    questions = array("q")
    ids = array("q")
    kinds: dict[Any, Prompt] = {}
    digest = hashlib.sha256()
    for row in source:
        prompt = convert(row)
        messages = prompt.messages or ()
        texts = [prompt.text or "", *(message["content"] for message in messages)]
        prompt_bytes.append(sum(map(_size, texts)))
        response_bytes.append(_size(prompt.meta.get("response") or ""))
        question = question_of(prompt)
        questions.append(hash(question))
        ids.append(hash(prompt.id))
        columns = tuple(name for name, value in prompt.meta.items() if value is not None)
        roles = tuple(message["role"] for message in messages)
        kinds.setdefault((prompt.source, prompt.answer is None, columns, roles), prompt)
        content = (prompt.id, question, prompt.answer, prompt.meta, prompt.source)
        digest.update(repr(content).encode(errors="surrogatepass"))
    facts = Facts(
        np.array(prompt_bytes),
        np.array(response_bytes),
        np.array(questions),
        np.array(ids),
        list(kinds.values()),
        digest.digest(),
    )
    return FileRows(source, convert, facts, np.arange(len(ids)))


def _size(text: str) -> int:
    return len(text) if text.isascii() else 3 * len(text.encode(errors="surrogatepass"))


# What readers of all prompts ask, of a list and of a large file


def kinds(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Return prompts of all kinds (`Facts.kinds`): all prompts, if they are in memory."""
    return prompts.facts.kinds if isinstance(prompts, FileRows) else prompts


def examples(prompts: Sequence[Prompt]) -> Iterable[Prompt]:
    """Return the prompts whose texts are searched for a warning: the first of a large file."""
    return islice(prompts, NUM_EXAMPLES) if isinstance(prompts, FileRows) else prompts


def select(prompts: Sequence[Prompt], kept: Sequence[int] | Array) -> Sequence[Prompt]:
    """Return the prompts at these positions, which ascend."""
    return prompts.select(kept) if isinstance(prompts, FileRows) else [prompts[i] for i in kept]


def largest(
    prompts: Sequence[Prompt], num: int, size: Callable[[Prompt], int], has_response: bool
) -> Sequence[Prompt]:
    """Return the prompts of the largest `size`, or of a large file those with the most bytes."""
    if isinstance(prompts, FileRows):
        return prompts.largest(num, has_response)
    return prompts if len(prompts) <= num else nlargest(num, prompts, key=size)
