"""vLLM's request: what a client attached to it, how far it is, what it is scheduled by."""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request

__all__ = ["Request", "describe_request", "extra_args", "tokens_left"]


def extra_args(request: Request) -> dict[str, Any]:
    """What the client attached to the request's sampling parameters."""
    params = request.sampling_params
    return (params.extra_args or {}) if params is not None else {}


def tokens_left(request: Request) -> int:
    """Tokens that the request may still produce, those in flight counted as produced."""
    done = len(request.output_token_ids) + request.num_output_placeholders
    return int(request.max_tokens) - done


def describe_request(request: Request) -> dict[str, Any]:
    """All of a request that decides how it is scheduled, as plain values.

    ``cannot`` says why its part in a recording cannot be replayed, else None.
    """
    params = request.sampling_params
    return {
        "id": request.request_id,
        "prompt": list(request.prompt_token_ids or ()),
        "max_tokens": request.max_tokens,
        "stop": sorted(_stop_tokens(params)) if params is not None else [],
        "extra": extra_args(request),
        "session": request.session_id,
        "salt": request.cache_salt,
        "cannot": _cannot_replay(request),
    }


def _stop_tokens(params: Any) -> set[int]:
    eos = params.eos_token_id
    return {*(params.stop_token_ids or ()), *(() if eos is None else (eos,))}


def _cannot_replay(request: Request) -> str | None:
    reasons = {
        "its output is bound to a grammar, which becomes ready at some moment": (
            request.use_structured_output
        ),
        "it has images or embeddings in its prompt": (
            request.mm_features or request.prompt_token_ids is None
        ),
        "it is fed while it runs": request.resumable,
        "it wants an embedding, not tokens": request.pooling_params is not None,
        "it uses a LoRA adapter": request.lora_request is not None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)
