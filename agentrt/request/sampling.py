"""The sampling options of a call whose prompt is token ids, in addition to the options of
`CallSpec`.
"""

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
    """A constraint on an output. ``kind`` is a name of vLLM's structured outputs, and ``value`` is
    the constraint in vLLM's form.
    """

    kind: Literal["json", "regex", "choice", "grammar"]
    value: Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling options of a call whose prompt is token ids, in addition to the ``temperature``
    and the ``seed`` of its `CallSpec`.

    With ``logprobs``, the reply has the log probability of each output token, and at each position
    the log probabilities of the ``logprobs`` most likely tokens. With ``score_from``, the reply has
    the log probabilities of the prompt's tokens from this position on (at least 1, because no token
    precedes the first token), and of the ``score_top`` most likely tokens at each position.
    ``logits`` are the arguments of registered logits processors, by name. ``attention`` is for
    executors that support other kinds of attention than the model's own. If ``as_text`` is False,
    the program does not need the text of the output, and the reply may leave the text out.
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
