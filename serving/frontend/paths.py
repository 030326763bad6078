"""Which of vLLM's routes are for clients, for operators, and for nobody here."""

from __future__ import annotations

_CLIENTS = (
    *("/v1/", "/v2/", "/inference/v1/generate", "/generative_scoring", "/version"),
    *("/tokenize", "/detokenize", "/tokenizer_info"),
    *("/pooling", "/classify", "/score", "/rerank"),
)
_OPERATORS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""vLLM has these only if its environment says VLLM_ALLOW_RUNTIME_LORA_UPDATING."""
_NO_CALLS = (
    *("/tokenize", "/detokenize", "/v1/messages/count_tokens", *_OPERATORS),
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
)


def is_public(path: str, *, operator: bool) -> bool:
    """Whether vLLM may answer at ``path``.

    Its health checks and metrics are not here, since the server has its own, nor what steers the
    engine (sleep, caches, profiles, weights), nor SageMaker's.
    """
    if path in _OPERATORS:
        return operator
    return any(path == one or (path.startswith(one) and one.endswith("/")) for one in _CLIENTS)


def makes_calls(path: str) -> bool:
    """Whether a request at ``path`` generates text, which is some program's call."""
    return path not in _NO_CALLS and not path.startswith("/v1/responses/") and not is_render(path)


def is_render(path: str) -> bool:
    """Whether vLLM only renders a prompt, or reads an output."""
    return path.endswith(("/render", "/derender"))
