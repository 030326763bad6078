"""The sampling options of a call of token ids, in addition to those of every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from agentrt.contexts.attention import Attention

TokenLogprobs = tuple[tuple[int, float], ...]
"""The token at a position with its natural log probability, followed by the most likely tokens."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on an output, with the names of the engine's structured outputs."""

    kind: Literal["json", "regex", "choice", "grammar"]
    value: Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling options of a call of token ids, in addition to the ``temperature`` and the
    ``seed`` of its `CallSpec`.

    With ``logprobs``, the reply has the log probability of each output token and of so many most
    likely tokens. With ``score_from``, it has the log probabilities of the prompt's tokens from
    that position on (at least 1, because no token precedes the first), and of the ``score_top``
    most likely tokens at each position. ``logits`` are arguments of registered logits processors,
    by name. ``attention`` is for executors that support other kinds of attention than the model's.
    If ``as_text`` is False, the output's text is not needed, and the reply may leave it out.
    """

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    score_from: int | None = None
    score_top: int = 0
    constraint: Constraint | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    logits: Mapping[str, Any] = field(default_factory=dict)
    attention: Attention | None = None
    as_text: bool = True
