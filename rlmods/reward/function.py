"""Plain Python functions as rewards."""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rlmods.errors import UserError
from rlmods.reward.scores import as_scores
from rlmods.reward.weighted_sum import WeightedSum
from rlmods.run.functions import example, load_function
from rlmods.types import Response, Scores

KEY = "reward.function"


@dataclass(frozen=True)
class Function:
    """Score by a Python function, or by the weighted sum of several. A function has one of these
    signatures, and the names of its parameters tell which:

        def f(responses): ...                                    # one number or None for each
        def f(completions, prompts, answer, **columns): ...      # TRL: lists, as many as responses
        def f(solution_str, ground_truth, data_source, extra_info): ...  # verl: one response

    A function with TRL's signature gets each column of the data that it names, or all if it has
    `**columns`, beside `prompts`, `completions`, `completion_ids` and `answer`. Prompts and
    completions are texts, or lists of messages if the data has messages. A list of None abstains.
    It may be a coroutine. `log_extra(column, values)` adds a column to the sample log.

    A function with verl's signature returns a number, or a dictionary with "score"; its other
    entries are columns of the sample log.

    Raises:
        UserError: no function, one that cannot be imported, weights of another number, or a
            parameter that is neither a column nor has a default.
    """

    function: str | Sequence[str] | None = None
    """MODULE:FUNCTION or FILE.py:FUNCTION, also in the working directory; several: a list."""
    weights: Sequence[float] | None = None
    """Weight of each function; null: 1."""
    success: float | None = None
    """Smallest score of the first function that counts as correct; null: correctness is not
    reported."""

    def __post_init__(self) -> None:
        if not self.names:
            raise UserError(f"reward=function needs a function: {example(KEY)}")
        if self.weights is not None and len(self.weights) != len(self.names):
            raise UserError(
                f"reward.weights: {len(self.weights)} weights for {len(self.names)} functions: "
                "type one for each"
            )
        for name in self.names:
            load_function(name, KEY)

    @property
    def names(self) -> list[str]:
        return [self.function] if isinstance(self.function, str) else list(self.function or ())

    def __call__(self, responses: Sequence[Response]) -> Scores:
        if len(self.names) > 1 or self.weights is not None:
            return self._sum(responses)
        scores = call(load_function(self.names[0], KEY), responses)
        if self.success is None:
            return scores
        correct = [None if value is None else value >= self.success for value in scores.values]
        return replace(scores, correct=correct)

    @cached_property
    def _sum(self) -> WeightedSum:
        weights = self.weights or [1.0] * len(self.names)
        terms: dict[str, dict[str, Any]] = {}
        for number, name in enumerate(self.names):
            reward = Function(name, success=self.success if number == 0 else None)
            term = name.rpartition(":")[2]
            if term in terms:
                term = name.replace("/", ".").replace(":", ".")
            terms[term] = {"reward": reward, "weight": weights[number]}
        return WeightedSum(terms)


def call(function: Callable[..., Any], responses: Sequence[Response]) -> Scores:
    """Return the scores of a function with one of the signatures of `Function`.

    Raises:
        UserError: the function raises an exception, or returns something else than scores.
    """
    try:
        parameters = inspect.signature(function).parameters
        if "solution_str" in parameters:
            return _call_one_by_one(function, responses)
        if "completions" in parameters:
            return _call_with_columns(function, responses)
        return as_scores(_finished(function(responses)), len(responses), _name(function))
    except UserError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        file = inspect.getfile(inspect.unwrap(function))
        own = [frame for frame in frames if frame.filename == file]
        place = (own or frames)[-1]
        raise UserError(
            f"reward function {_name(function)}: {type(error).__name__}: {error} "
            f"({place.filename}:{place.lineno})"
        ) from error


def _call_one_by_one(function: Callable[..., Any], responses: Sequence[Response]) -> Scores:
    """Call a function with verl's signature."""
    values = []
    columns: dict[str, list[Any]] = {}
    for row, response in enumerate(responses):
        prompt = response.prompt
        arguments = {
            "solution_str": response.text,
            "ground_truth": prompt.answer,
            "data_source": prompt.source or prompt.meta.get("data_source"),
            "extra_info": prompt.meta.get("extra_info", prompt.meta),
        }
        result = function(**_accepted(function, arguments))
        extra = dict(result) if isinstance(result, Mapping) else {"score": result}
        values.append(extra.pop("score", None))
        for column, cell in extra.items():
            columns.setdefault(column, [None] * len(responses))[row] = cell
    return replace(as_scores(values, len(responses), _name(function)), columns=columns)


def _call_with_columns(function: Callable[..., Any], responses: Sequence[Response]) -> Scores:
    """Call a function with TRL's signature."""
    logged: dict[str, list[Any]] = {}
    arguments: dict[str, Any] = {
        **_columns(responses),
        "prompts": [response.prompt.messages or response.prompt.text for response in responses],
        "completions": list(map(_completion, responses)),
        "completion_ids": [list(response.tokens) for response in responses],
        "log_extra": lambda column, cells: logged.update({column: list(cells)}),
    }
    result = _finished(function(**_accepted(function, arguments)))
    scores = as_scores(result, len(responses), _name(function))
    return replace(scores, columns={**scores.columns, **logged})


def _accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function names, or all if it has `**columns`."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def _columns(responses: Sequence[Response]) -> dict[str, list[Any]]:
    """Return the columns of the data, one entry for each response; None where a row lacks it."""
    names = dict.fromkeys(name for response in responses for name in response.prompt.meta)
    columns = {name: [response.prompt.meta.get(name) for response in responses] for name in names}
    columns.setdefault("answer", [response.prompt.answer for response in responses])
    return columns


def _completion(response: Response) -> Any:
    if response.prompt.messages is None:
        return response.text
    return [{"role": "assistant", "content": response.text}]


def _finished(result: object) -> Any:
    """Return a result; run a coroutine until it has one."""
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
