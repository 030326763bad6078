"""What the operations of a context give back: plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentrt.request import CallReport
from agentrt.request.sampling import TokenLogprobs
from agentrt.request.text import ReadsAsText


@dataclass(frozen=True, slots=True, repr=False)
class Completion(ReadsAsText):
    """What a model has written, to its end.

    ``token_ids`` are those that the context has now got, the one that ended it too. ``text`` is
    without that, and without the stop string. ``finish_reason`` is ``stop`` or ``length``.
    ``logprobs`` are there, one a token, if they were asked for. In a prompt it is its ``text``, as
    a `Reply` is; ``to_dict()`` has all fields.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    report: CallReport = field(default_factory=CallReport)
    node: int = -1


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token, its log probability after all tokens before it, and the likeliest at its place."""

    token_id: int
    logprob: float
    top: TokenLogprobs = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a text, token by token. ``after`` are the likeliest tokens that follow it."""

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


def likeliest(place: TokenLogprobs, most: int) -> TokenLogprobs:
    """The ``most`` likeliest tokens at a place, in order. The token that is there comes first
    in ``place``, however likely it is.
    """
    return tuple(sorted(place, key=lambda each: -each[1])[:most])
