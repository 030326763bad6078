"""Log probabilities of a call of token ids: how they are asked for, and read from vLLM's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrt.request import CallSpec, Reply
from agentrt.request.sampling import TokenLogprobs

COMPUTE_FROM = "agentrt_compute_from"
"""In a request's ``extra_args``: tokens from this position on are computed, cached or not."""


class Likely:
    """What a call's output says of log probabilities, collected over its pieces."""

    def __init__(self, spec: CallSpec) -> None:
        sampling, ids = spec.sampling, spec.prompt_token_ids or ()
        first = None if sampling is None else sampling.score_from
        self._scored = 0 if first is None else len(ids) - first
        self._output: list[TokenLogprobs] = []
        self._prompt: tuple[TokenLogprobs, ...] = ()

    def add(self, output: Any) -> None:
        """A piece of vLLM's output."""
        self._output += map(_listed, output.outputs[0].logprobs or ())
        if self._scored and output.prompt_logprobs:
            # What comes before was in the prefix cache: vLLM has left its places out, or empty.
            self._prompt = tuple(map(_listed, output.prompt_logprobs[-self._scored :]))

    def on(self, reply: Reply) -> Reply:
        """The reply with what was collected."""
        return replace(reply, token_logprobs=tuple(self._output), prompt_logprobs=self._prompt)


def _listed(place: Mapping[int, Any]) -> TokenLogprobs:
    """The token at a place, which vLLM puts first, and then the likeliest."""
    return tuple((token, found.logprob) for token, found in place.items())
