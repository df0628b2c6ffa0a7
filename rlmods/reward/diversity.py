"""Penalty for responses that repeat those to other prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.reward.repetition import ngrams
from rlmods.settings.bounds import Count, bounded
from rlmods.types import Response, Scores


@dataclass(frozen=True)
@bounded("reward")
class Diversity:
    """Diversity penalty -(fraction of a response's distinct n-grams of words that also occur in a
    response to another prompt): 0 for a response of its own, -1 for phrases that fit every prompt.

    Against mode collapse across prompts, which rewards by response cannot see: the same opening,
    flattery or refusal everywhere. Responses to the same prompt are not compared. The other prompts
    are those of the same call: the batch of one rank, so the penalty depends on `batch.prompts` and
    on the number of ranks. The statistic is self-BLEU's idea (arXiv:1802.01886) with one n-gram
    size and no brevity term. Words are separated by whitespace, ignoring case. A response of fewer
    than `size` words scores 0 and is counted under `short`."""

    size: Count = 4
    """Words per n-gram."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        grams = [set(ngrams(response.text, self.size)) for response in responses]
        prompts: dict[tuple[str, ...], set[str]] = {}
        for response, own in zip(responses, grams, strict=True):
            for gram in own:
                prompts.setdefault(gram, set()).add(response.prompt.id)
        values = []
        for own in grams:
            num_shared = sum(len(prompts[gram]) > 1 for gram in own)
            values.append(-num_shared / len(own) if num_shared else 0.0)
        return Scores(values, counts={"short": grams.count(set())})
