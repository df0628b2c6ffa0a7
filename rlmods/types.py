"""The records, in the order in which they flow: Prompt -> Response -> Scores -> Experience -> (Credit, Surrogate, Totals).

Shapes: N responses, T token slots (prompt, response and right padding), G responses a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

Finish = Literal["stop", "length"]


class UserError(Exception):
    """A mistake of the user's. The command line prints its one line (what, where, what to type instead) and no traceback."""


def check_bounds(part: object, group: str, rules: Mapping[str, tuple[bool, str]]) -> None:
    """Check the fields of a configuration group's part. A rule is, by field: whether the value is valid, and the valid values in words.

    Raises: ValueError("group.field=value: must be WORDS") for the first field that is not valid."""
    for name, (valid, words) in rules.items():
        if not valid:
            raise ValueError(f"{group}.{name}={getattr(part, name)}: must be {words}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question."""

    id: str
    """Stable and unique in its data set; with the seed it decides what is sampled, so resuming needs no generator state."""
    text: str | None = None
    """Plain text, given to the model as it is. Exactly one of `text` and `messages` is set."""
    messages: Sequence[Mapping[str, str]] | None = None
    """Chat turns, `{"role": ..., "content": ...}`; the tokenizer's chat template writes them out."""
    answer: str | None = None
    """The gold answer, or None where the data has none."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Every other column of the data set."""
    time: int = 0
    """How often the data was passed before it is asked this time: another time, other samples."""


@dataclass(frozen=True, slots=True)
class Response:
    """What one rollout said to one prompt."""

    prompt: Prompt
    prompt_tokens: Sequence[int] = ()
    """Ids the model was given."""
    tokens: Sequence[int] = ()
    """Ids that were sampled, EOS included. These ids are the ids in the loss: never decoded and encoded again."""
    behavior_logprobs: Sequence[float] = ()
    """Natural log-probability of each of `tokens` under the distribution it was drawn from (temperature and truncation included)."""
    text: str = ""
    """`tokens` decoded, without EOS and other special tokens that only the machine reads."""
    finish: Finish = "stop"
    """"stop": an EOS token or a stop string ended it. "length": it was cut off by the token limit (truncated)."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """`sample`: index among the prompt's G responses; `iteration`: of the policy that sampled it."""


@dataclass(frozen=True, slots=True)
class Scores(Sequence[float | None]):
    """What a reward says of N responses: itself a sequence of N totals, None where it abstains."""

    values: Sequence[float | None]
    """The reward that is trained on, one a response. None: unscored, which is not 0: the row leaves baseline and loss."""
    correct: Sequence[bool | None] | None = None
    """Unshaped correctness, where the reward knows it: what accuracy and dynamic sampling read."""
    monitored: bool = False
    """`correct` is logged and decides nothing: nobody is paid for it, so sampling goes by `values`."""
    terms: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Each term's own score before weighting, by name."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Events among these N that are neither right nor wrong: `<term>/timeouts`, `<term>/errors`."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """More columns for the sample log, N long each."""
    tokens: Sequence[Sequence[float | None]] | None = None
    """Rewards by response token, where the reward gives them; `values` are then their sums. None on a token that ends no step."""

    @overload
    def __getitem__(self, index: int) -> float | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float | None]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float | None] | None:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)


R = TypeVar("R", bound="Rows")


class Rows:
    """Tensors of equal length N in the fields of a frozen dataclass."""

    __slots__ = ()

    def select(self: R, rows: Tensor) -> R:
        """The given rows, by index [n] or by bool mask [N]."""
        return self._map(lambda x: x[rows])

    def to(self: R, device: torch.device | str) -> R:
        return self._map(lambda x: x.to(device))

    def tensors(self) -> dict[str, Tensor | None]:
        """By field name: the plain form that checkpoints hold."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def _map(self: R, change: Callable[[Tensor], Tensor]) -> R:
        changed: dict[str, Any] = {name: None if x is None else change(x) for name, x in self.tensors().items()}
        return type(self)(**changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience(Rows):
    """PolicyOutput responses as tensors, right-padded: what an optimizer step consumes. Column t of every [N, T] speaks of token t."""

    tokens: Int[Tensor, "N T"]
    """Prompt, response, then padding ids (which are never looked at)."""
    mask: Bool[Tensor, "N T"]
    """True on the tokens that carry loss: sampled ones, EOS included. Slots where it is False may hold garbage."""
    lengths: Int[Tensor, " N"]
    """Tokens of prompt and response together; what is to the right of it is padding."""
    rewards: Float[Tensor, "N T"]
    """An outcome reward sits on the last sampled token."""
    old_logprobs: Float[Tensor, "N T"]
    """log pi_old by the trainer's own forward, with the parameters that sampled the row."""
    behavior_logprobs: Float[Tensor, "N T"]
    """The sampler's log-probabilities; their distance from `old_logprobs` is always logged."""
    advantages: Float[Tensor, "N T"]
    version: Int[Tensor, " N"]
    """Iteration of the policy that sampled the row: older than the current one for groups that waited in the pool."""
    group: Int[Tensor, " N"]
    """Id of the prompt occurrence a row answers; equal ids are one group, wherever the rows stand."""
    ref_logprobs: Float[Tensor, "N T"] | None = None
    """log pi_ref of the frozen reference; None where KL asks for none."""
    values: Float[Tensor, "N T"] | None = None
    """V(s_t), read at the token before t."""
    returns: Float[Tensor, "N T"] | None = None
    """Regression target of the critic."""
    steps: Bool[Tensor, "N T"] | None = None
    """True on the last token of each step that was graded; None where the reward is one number a response."""
    routes: Int[Tensor, "N T L k"] | None = None
    """Experts that each router chose at each token for `old_logprobs` (int16); -1: not scored yet. None of a dense policy."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sizes(self) -> Int[Tensor, " N"]:
        """Tokens that a forward of the row alone takes."""
        return self.lengths

    @property
    def counts(self) -> Int[Tensor, " 2"]:
        """Tokens and sequences that carry loss: this rank's share of `Totals`."""
        return torch.stack([self.mask.sum(), self.mask.any(1).sum()])

    def trim(self) -> Experience:
        """The same rows without the columns that are padding in all of them."""
        width = int(self.lengths.max()) if len(self) else 0
        return self._map(lambda x: x[:, :width] if x.ndim > 1 else x)

    def without_loss(self) -> Experience:
        """Same shapes, no loss: what a rank forwards while another still has work."""
        return replace(self, mask=torch.zeros_like(self.mask))

    @staticmethod
    def concat(parts: Sequence[Experience]) -> Experience:
        """Rows of all parts, padded to the widest."""
        width = max(part.tokens.shape[1] for part in parts)

        def join(name: str) -> Tensor | None:
            columns = [getattr(part, name) for part in parts]
            if any(x is None for x in columns):
                return None
            fill = -1 if name == "routes" else 0
            return torch.cat([x if x.ndim == 1 else pad(x, (0, 0) * (x.ndim - 2) + (0, width - x.shape[1]), value=fill) for x in columns])

        joined: dict[str, Any] = {f.name: join(f.name) for f in fields(Experience)}
        return Experience(**joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceBatch(Rows):
    """K candidate responses to each of P prompts as tensors, right-padded: what losses on preferences consume.

    A pair is K = 2, a ranking K > 2, a single response with a verdict (KTO) K = 1."""

    tokens: Int[Tensor, "P K T"]
    """Prompt, response, then padding ids (which are never looked at)."""
    mask: Bool[Tensor, "P K T"]
    """True on the tokens of the response, EOS included."""
    lengths: Int[Tensor, "P K"]
    """Tokens of prompt and response together; 0 where a prompt has fewer than K candidates."""
    rank: Int[Tensor, "P K"]
    """0 is the best of its prompt, equal ranks are ties. K = 1: 0 desirable, 1 undesirable."""
    margin: Float[Tensor, " P"] | None = None
    """By how much the better one should win, in units of the score; None: no margin."""
    ref_logprobs: Float[Tensor, "P K"] | None = None
    """Log-probability of the whole response under the frozen reference, where it was computed before."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def present(self) -> Bool[Tensor, "P K"]:
        """Where there is a candidate."""
        return self.lengths > 0

    @property
    def sizes(self) -> Int[Tensor, " P"]:
        """Tokens that a forward of the prompt's candidates takes."""
        return self.lengths.amax(1) * self.lengths.shape[1]

    @property
    def counts(self) -> Int[Tensor, " 2"]:
        """Response tokens, and prompts that have any: this rank's share of `Totals`."""
        return torch.stack([self.mask.sum(), self.mask.any(2).any(1).sum()])

    def trim(self) -> PreferenceBatch:
        """The same rows without the columns that are padding in all of them."""
        width = int(self.lengths.max()) if len(self) else 0
        return replace(self, tokens=self.tokens[..., :width], mask=self.mask[..., :width])

    def without_loss(self) -> PreferenceBatch:
        """Same shapes, no loss: what a rank forwards while another still has work."""
        return replace(self, mask=torch.zeros_like(self.mask))


@dataclass(frozen=True, slots=True)
class Credit:
    """What an advantage estimator returns."""

    advantages: Float[Tensor, "N T"]
    """0 where the mask is False."""
    returns: Float[Tensor, "N T"] | None = None
    """The critic's target, from estimators that use a critic."""


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What a ratio policy returns."""

    objective: Float[Tensor, "N T"]
    """Maximised."""
    clipped: Bool[Tensor, "N T"]
    """Where clipping decided the objective (and so took the gradient away), before anything is averaged."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Denominators of one optimizer step, over all its microbatches on all ranks. At least 1 each."""

    tokens: Tensor | float | int
    """Tokens with a true mask."""
    sequences: Tensor | float | int
    """Responses with at least one such token."""
