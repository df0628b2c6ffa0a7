"""Penalties for n-grams of words that a response repeats: its own, those of the prompt, or those of
responses to other prompts. Words are separated by whitespace, ignoring case."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.settings.bounds import Count, ProperFraction, bounded
from rlmods.types import Response, Scores

NGram = tuple[str, ...]


def ngrams(text: str, size: int) -> list[NGram]:
    """Return the n-grams of `size` words of a text in lower case; none for a text of fewer words.
    Words are separated by whitespace."""
    words = text.lower().split()
    return [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]


@dataclass(frozen=True)
@bounded("reward")
class Repetition:
    """Repetition penalty -(1 - distinct n-grams / n-grams) over the words of a response: 0 without
    repetition, close to -1 if one phrase is repeated throughout (arXiv:2502.03373, which adds it to
    the cosine reward).

    Languages without whitespace between words need another term. A response of fewer than `size`
    words scores 0 and is counted under `short`."""

    size: Count = 3
    """Words per n-gram."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        grams = [ngrams(response.text, self.size) for response in responses]
        values = [len(set(own)) / len(own) - 1.0 if own else 0.0 for own in grams]
        return Scores(values, counts={"short": grams.count([])})


@dataclass(frozen=True)
@bounded("reward")
class Copying:
    """Copying penalty -max(0, c - allowed) / (1 - allowed), where c is the fraction of a response's
    n-grams of words that occur in the prompt: 0 up to the allowed fraction, -1 if every n-gram is
    copied.

    Against summaries that repeat their source, which reward models tend to score highly. c is 1
    less the n-gram novelty of See et al. 2017, arXiv:1704.04368, section 6. n-grams do not span
    chat messages, and all messages of the prompt count. A response of fewer than `size` words
    scores 0 and is counted under `short`."""

    size: Count = 4
    """Words per n-gram."""
    allowed: ProperFraction = 0.0
    """Fraction of copied n-grams without a penalty, such as names and quotations; 0 to below 1."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        values = []
        num_short = 0
        sources: dict[int, set[NGram]] = {}
        for response in responses:
            prompt = response.prompt
            if id(prompt) not in sources:
                messages = prompt.messages or [{"content": prompt.text or ""}]
                texts = [str(message.get("content", "")) for message in messages]
                sources[id(prompt)] = set().union(*(ngrams(text, self.size) for text in texts))
            grams = ngrams(response.text, self.size)
            copied = sum(map(sources[id(prompt)].__contains__, grams)) / max(1, len(grams))
            values.append(-max(0.0, copied - self.allowed) / (1 - self.allowed))
            num_short += not grams
        return Scores(values, counts={"short": num_short})


@dataclass(frozen=True)
@bounded("reward")
class Diversity:
    """Diversity penalty -(fraction of a response's distinct n-grams of words that also occur in a
    response to another prompt): 0 for a response of its own, -1 for phrases that fit every prompt.

    Against mode collapse across prompts, which rewards by response cannot see: the same opening,
    flattery or refusal everywhere. Responses to the same prompt are not compared. The other prompts
    are those of the same call: the batch of one rank, so the penalty depends on `batch.prompts` and
    on the number of ranks. The statistic is self-BLEU's idea (arXiv:1802.01886) with one n-gram
    size and no brevity term. A response of fewer than `size` words scores 0 and is counted under
    `short`."""

    size: Count = 4
    """Words per n-gram."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        grams = [set(ngrams(response.text, self.size)) for response in responses]
        prompts: dict[NGram, set[str]] = {}
        for response, own in zip(responses, grams, strict=True):
            for gram in own:
                prompts.setdefault(gram, set()).add(response.prompt.id)
        values = []
        for own in grams:
            num_shared = sum(len(prompts[gram]) > 1 for gram in own)
            values.append(-num_shared / len(own) if num_shared else 0.0)
        return Scores(values, counts={"short": grams.count(set())})
