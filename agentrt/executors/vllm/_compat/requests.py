"""vLLM's request: the arguments that a client attached to it, and its progress."""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request, RequestStatus

__all__ = [
    "Request",
    "compiles_grammar",
    "extra_args",
    "rehash",
    "tokens_left",
    "waits_for_input",
]


def extra_args(request: Request) -> dict[str, Any]:
    """Return the ``extra_args`` that the client attached to the request's sampling parameters."""
    params = request.sampling_params
    return (params.extra_args or {}) if params is not None else {}


def compiles_grammar(request: Request) -> bool:
    """Return whether the request cannot start because its grammar is still being compiled.

    A grammar that could not be compiled counts as compiled, because vLLM then ends the request.
    """
    structured = request.structured_output_request
    return (
        request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        and structured is not None
        and structured.grammar is None
    )


def waits_for_input(request: Request) -> bool:
    """Return whether the request is a streaming session that waits for its client's next input."""
    return bool(request.status is RequestStatus.WAITING_FOR_STREAMING_REQ)


def tokens_left(request: Request) -> int:
    """Return how many tokens the request may still produce; tokens in flight count as produced."""
    done = len(request.output_token_ids) + request.num_output_placeholders
    return int(request.max_tokens) - done


def rehash(request: Request, salt: str | None) -> None:
    """Replace the request's cache salt, and compute the hashes of its blocks again."""
    request.cache_salt = salt
    request.block_hashes = []
    request.update_block_hashes()
