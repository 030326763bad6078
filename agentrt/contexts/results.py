"""The results of a context's operations, as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentrt.request import CallReport
from agentrt.request.sampling import TokenLogprobs
from agentrt.request.text import ReadsAsText


@dataclass(frozen=True, slots=True, repr=False)
class Completion(ReadsAsText):
    """A complete output of a model.

    ``token_ids`` are the tokens that were appended to the context, including the token that ended
    the output unless the output was constrained. ``text`` contains neither this token nor the stop
    string. ``finish_reason`` is ``stop`` or ``length``. ``logprobs`` has an entry for each token if
    log probabilities were requested. In a prompt, a completion is replaced by its ``text``;
    ``to_dict()`` returns all fields.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    report: CallReport = field(default_factory=CallReport)
    node: int = -1


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token with its log probability, and the likeliest tokens at its position."""

    token_id: int
    logprob: float
    top: TokenLogprobs = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a text's tokens. ``after`` are the likeliest tokens after the text."""

    tokens: tuple[TokenScore, ...]
    after: TokenLogprobs = ()
    report: CallReport = field(default_factory=CallReport)

    def __iter__(self) -> Iterator[TokenScore]:
        return iter(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def total(self) -> float:
        """The log probability of the whole text."""
        return sum(token.logprob for token in self.tokens)


def likeliest(position: TokenLogprobs, most: int) -> TokenLogprobs:
    """Return at most ``most`` tokens of a position, the likeliest first.

    The first entry of ``position`` is the token of the text at this position, however likely it is.
    """
    return tuple(sorted(position, key=lambda each: -each[1])[:most])
