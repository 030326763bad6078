"""Log probabilities as vLLM gives them, as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrt.request import CallSpec, TokenLogprob

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput


def logprobs_of(spec: CallSpec, output: RequestOutput | None = None) -> tuple[TokenLogprob, ...]:
    """Those of the tokens that came now; none unless the call asked for them."""
    if spec.logprobs is None or output is None or not output.outputs[0].logprobs:
        return ()
    last = output.outputs[0]
    new = last.logprobs[-len(last.token_ids) :] if last.token_ids else ()
    return tuple(
        _logprob(token, options, spec.logprobs)
        for token, options in zip(last.token_ids, new, strict=False)
    )


def _logprob(token: int, options: Mapping[int, Any], most: int) -> TokenLogprob:
    likeliest = sorted(options.values(), key=lambda option: option.rank or 0)[:most]
    own = options[token]
    top = tuple((option.decoded_token or "", option.logprob) for option in likeliest)
    return TokenLogprob(own.decoded_token or "", own.logprob, top)
