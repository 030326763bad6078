"""Collects the log probabilities of a call from vLLM's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrt.request import CallSpec, Reply
from agentrt.request.sampling import TokenLogprobs

COMPUTE_FROM = "agentrt_compute_from"
"""The key in a request's ``extra_args`` of the position from which tokens are always computed."""

OF_MODEL = "agentrt_of_model"
"""The key in a request's ``extra_args`` that asks for the model's own log probabilities of an
output that a grammar constrains, not those relative to the allowed tokens.
"""


class LogprobCollector:
    """The log probabilities of a call, collected from the pieces of its output."""

    def __init__(self, spec: CallSpec) -> None:
        sampling, ids = spec.sampling, spec.prompt_token_ids or ()
        first = None if sampling is None else sampling.score_from
        self._scored = 0 if first is None else len(ids) - first
        # For allowed tokens, vLLM returns the log probabilities of all of them, in no order.
        is_limited = sampling is not None and sampling.allowed_token_ids is not None
        most = sampling.logprobs if sampling is not None and is_limited else None
        self._most = None if most is None or most < 0 else most  # below 0, all are requested
        self._output: list[TokenLogprobs] = []
        self._prompt: tuple[TokenLogprobs, ...] = ()

    @classmethod
    def of(cls, spec: CallSpec) -> LogprobCollector | None:
        """Return the collector of a call; None if its log probabilities are not needed."""
        return cls(spec) if spec.with_logprobs or spec.sampling is not None else None

    def add(self, output: Any) -> tuple[float, ...]:
        """Add a piece of vLLM's output, and return the log probabilities of the piece's tokens."""
        added = [_listed(position, self._most) for position in output.outputs[0].logprobs or ()]
        self._output += added
        if self._scored and output.prompt_logprobs:
            # Earlier tokens may be cached: vLLM leaves their entries out, or empty.
            self._prompt = tuple(map(_listed, output.prompt_logprobs[-self._scored :]))
        return tuple(position[0][1] for position in added)

    def added_to(self, reply: Reply) -> Reply:
        """Return ``reply`` with the log probabilities."""
        return replace(reply, token_logprobs=tuple(self._output), prompt_logprobs=self._prompt)


def _listed(position: Mapping[int, Any], most: int | None = None) -> TokenLogprobs:
    """Return (token, log probability) pairs of a position: its own token first, then the
    likeliest. With ``most``, sort the pairs, and return at most this number of the likeliest.
    """
    pairs = tuple((token, value.logprob) for token, value in position.items())
    if most is None:
        return pairs
    likely = sorted(pairs, key=lambda pair: -pair[1])[:most]
    return (pairs[0], *(pair for pair in likely if pair[0] != pairs[0][0]))
