"""Penalty for text copied from the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.reward.repetition import ngrams
from rlmods.settings.bounds import Count, ProperFraction, bounded
from rlmods.types import Response, Scores


@dataclass(frozen=True)
@bounded("reward")
class Copying:
    """Copying penalty -max(0, c - allowed) / (1 - allowed), where c is the fraction of a response's
    n-grams of words that occur in the prompt: 0 up to the allowed fraction, -1 if every n-gram is
    copied.

    Against summaries that repeat their source, which reward models tend to score highly. c is 1
    less the n-gram novelty of See et al. 2017, arXiv:1704.04368, section 6. Words are separated by
    whitespace, ignoring case. n-grams do not span chat messages, and all messages of the prompt
    count. A response of fewer than `size` words scores 0 and is counted under `short`."""

    size: Count = 4
    """Words per n-gram."""
    allowed: ProperFraction = 0.0
    """Fraction of copied n-grams without a penalty, such as names and quotations; 0 to below 1."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        values = []
        num_short = 0
        sources: dict[int, set[tuple[str, ...]]] = {}
        for response in responses:
            prompt = response.prompt
            if id(prompt) not in sources:
                messages = prompt.messages or [{"content": prompt.text or ""}]
                source = [
                    ngrams(str(message.get("content", "")), self.size) for message in messages
                ]
                sources[id(prompt)] = set().union(*source)
            grams = ngrams(response.text, self.size)
            copied = sum(gram in sources[id(prompt)] for gram in grams) / max(1, len(grams))
            values.append(-max(0.0, copied - self.allowed) / (1 - self.allowed))
            num_short += not grams
        return Scores(values, counts={"short": num_short})
