"""Batches: a program runs on each record of a file, and each result becomes a line of another file.

    async for result in batch(program, ["a question", "another one"], out="results.jsonl"):
        print(result.id, result.result)

The names are imported on first use, because the file of a program usually needs only `score`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrt.batch.inputs import Condition, Fields, InputFile, Item
    from agentrt.batch.recorded import RecordedTokens, read_tokens
    from agentrt.batch.results import Result, read_results
    from agentrt.batch.runner import batch
    from agentrt.batch.scores import Score, score, score_process
    from agentrt.batch.statistics import compare, summarize
    from agentrt.runtime.tokens import TokenSequence

_HOMES = {
    "Condition": "inputs",
    "Fields": "inputs",
    "InputFile": "inputs",
    "Item": "inputs",
    "RecordedTokens": "recorded",
    "Result": "results",
    "Score": "scores",
    "TokenSequence": "recorded",
    "batch": "runner",
    "compare": "statistics",
    "read_results": "results",
    "read_tokens": "recorded",
    "score": "scores",
    "score_process": "scores",
    "summarize": "statistics",
}

__all__ = [
    "Condition",
    "Fields",
    "InputFile",
    "Item",
    "RecordedTokens",
    "Result",
    "Score",
    "TokenSequence",
    "batch",
    "compare",
    "read_results",
    "read_tokens",
    "score",
    "score_process",
    "summarize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agentrt.batch' has no attribute {name!r}")
    value = getattr(import_module(f"agentrt.batch.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
