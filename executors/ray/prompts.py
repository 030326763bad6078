"""A call's prompt travels once each way, and not with every piece of its output."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from agentrt.executors.base import Chunk
from agentrt.request import Call

_OF_THE_PROMPT = ("prompt", "prompt_token_ids")
"""What vLLM's ``RequestOutput`` has of a prompt, the same in each piece."""


def without_copies(call: Call) -> Call:
    """The call with its prompt in one place: what was rendered has its token ids, too."""
    if call.spec.rendered is None or call.spec.sampling is not None:
        return call
    return replace(call, spec=replace(call.spec, prompt_token_ids=None))


def without_prompt(chunk: Chunk) -> Chunk:
    """A piece without the prompt, for who has had it with the first."""
    return _with(chunk, dict.fromkeys(_OF_THE_PROMPT))


class PromptRestorer:
    """Puts the prompt of a call's first piece back into those after it."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] | None = None

    def restored(self, chunk: Chunk) -> Chunk:
        """The piece as the engine made it."""
        if self._kept is None:
            self._kept = {name: getattr(chunk.output, name, None) for name in _OF_THE_PROMPT}
            return chunk
        return _with(chunk, self._kept)


def _with(chunk: Chunk, values: dict[str, Any]) -> Chunk:
    if not hasattr(chunk.output, "prompt_token_ids"):
        return chunk  # of an engine that is not vLLM's
    output = copy.copy(chunk.output)
    for name, value in values.items():
        setattr(output, name, value)
    return replace(chunk, output=output)
