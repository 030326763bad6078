"""How a call of bare token ids is sampled, beyond what every call says: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from agentrt.contexts.attention import Attention

TokenLogprobs = tuple[tuple[int, float], ...]
"""The token at one place with its log probability (natural), and then the likeliest there."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an output has to obey, as the engine's structured outputs name it."""

    kind: Literal["json", "regex", "choice", "grammar"]
    value: Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a call of token ids asks for beside its `CallSpec`'s ``temperature`` and ``seed``.

    With ``logprobs`` the reply has the log probability of each output token, and those of so many
    likeliest. With ``score_from`` it has those of the prompt's tokens from that position on
    (at least 1: nothing comes before the first), with the ``score_top`` likeliest at each.
    ``logits`` are arguments of registered logits processors, by name. ``attention`` is for
    executors that offer other kinds than the model's own. Without ``as_text`` nobody reads the
    output's text, and the reply need not have it.
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
