"""Several data sets in one stream of prompts."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest

from rlmods.data.schema import Splits, checked_splits
from rlmods.errors import UserError, suggest
from rlmods.types import Prompt


@dataclass(frozen=True)
class Mixture:
    """Several data sets, mixed by weight: every batch has a share of prompts from each. Within a
    data set, each pass is a new permutation.

    A prompt keeps the name of its data set in `source`, and its id begins with that name. Metrics
    are logged by source, and `reward=by_source` grades by it. Prompts of both splits are listed
    from the data sets in turn, so that the first ones (`validation.max_prompts`) are of all.

        data=mixture +data@data.sources.sums=arithmetic +data@data.sources.stories=stories
        +data.weights.sums=2

    Raises: UserError without data sets, for a weight that is not positive or of an unknown data
    set, and the errors of the data sets."""

    sources: Mapping[str, Callable[[], Splits]] = field(default_factory=dict)
    """Data sets by name, each an option of `data`. In YAML, `_convert_: all` keeps Hydra from
    treating them as configuration."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each data set, 1 unless given: its share of the prompts is its weight divided by
    the sum of all weights."""

    def __call__(self) -> Splits:
        if not self.sources:
            raise UserError(
                "data=mixture needs data sets; type +data@data.sources.NAME=OPTION for each, "
                "such as OPTION=arithmetic"
            )
        for name, weight in self.weights.items():
            if name not in self.sources:
                raise UserError(
                    f"data.weights.{name}: no such data set; {suggest(name, self.sources)}"
                )
            if not 0 < weight < math.inf:
                raise UserError(
                    f"data.weights.{name}={weight}: must be above 0; to leave out the data set, "
                    f"type ~data.sources.{name}"
                )
        splits = {name: _load(name, source) for name, source in self.sources.items()}
        train = _in_turn({name: part.train for name, part in splits.items()})
        val = _in_turn({name: part.val for name, part in splits.items()})
        weights = {name: float(self.weights.get(name, 1.0)) for name in self.sources}
        return replace(checked_splits(train, val, "data=mixture"), weights=weights)


def _load(name: str, source: Callable[[], Splits]) -> Splits:
    """Return the splits of a data set. Raises: UserError whose message names its settings
    `data.sources.<name>`."""
    if not callable(source):
        raise UserError(
            f"data.sources.{name}: is not a data set; type +data@data.sources.{name}=OPTION"
        )
    if getattr(source, "max_prompt_tokens", None) is not None:
        raise UserError(
            f"data.sources.{name}.max_prompt_tokens is not read in a mixture: shorten or "
            "remove the prompts in the data"
        )
    try:
        splits = source()
    except UserError as error:
        problem = re.sub(r"(?<![/\w.-])data\.(?=\w)", f"data.sources.{name}.", str(error))
        raise UserError(f"data.sources.{name}: {problem}") from error
    if splits.weights is not None:
        raise UserError(
            f"data.sources.{name}: a mixture cannot be part of a mixture; type its data sets "
            "as +data@data.sources.NAME=OPTION"
        )
    return splits


def _in_turn(sources: Mapping[str, Sequence[Prompt]]) -> list[Prompt]:
    """Return the prompts of all sources in turn, with the name of the source in `source` and in
    front of the id."""
    named = []
    for name, prompts in sources.items():
        named.append([replace(p, id=f"{name}/{p.id}", source=name) for p in prompts])
    in_turn = chain.from_iterable(zip_longest(*named))
    return [prompt for prompt in in_turn if prompt is not None]
