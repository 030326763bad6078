"""Prints what a version of LangGraph's Python client can ask: each method, with all its options.

Runs in an environment that has that version, and nothing else of this project; no server answers.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import httpx
from langgraph_sdk import get_client

OPTIONS: dict[str, Any] = {
    "thread_id": "{thread}", "assistant_id": "{assistant}", "run_id": "{run}",
    "checkpoint_id": "{checkpoint}", "graph_id": "steps", "thread_ids": [], "run_ids": ["{run}"],
    "checkpoint": {"thread_id": "{thread}", "checkpoint_ns": "", "checkpoint_id": "{checkpoint}"},
    "input": {"steps": ["in"]}, "command": {"goto": "last"}, "context": {"who": "Ann"},
    "config": {"tags": ["t"], "recursion_limit": 30, "configurable": {"who": "Ann"}},
    "metadata": {"m": 1}, "stream_mode": ["values", "updates"], "stream_subgraphs": True,
    "stream_resumable": True, "checkpoint_during": True, "durability": "sync",
    "interrupt_before": ["last"], "interrupt_after": ["last"], "feedback_keys": ["good"],
    "on_disconnect": "continue", "webhook": "http://127.0.0.1:9/hook", "strict_resume": False,
    "multitask_strategy": "enqueue", "if_not_exists": "reject", "on_completion": "keep",
    "after_seconds": 0, "langsmith_tracing": {"project_name": "p"}, "raise_error": False,
    "name": "a name", "description": "what for", "if_exists": "do_nothing", "version": 1,
    "limit": 3, "offset": 0, "sort_by": "created_at", "sort_order": "asc", "select": ["metadata"],
    "ids": ["{thread}"], "extract": {"a": "values.steps[0]"}, "include": ["ttl"], "ttl": 60,
    "status": "idle", "return_minimal": True, "strategy": "delete", "as_node": "first",
    "values": {"steps": ["in"]}, "subgraphs": True, "recurse": True, "xray": True, "key": "k",
    "value": {"v": 1}, "index": ["v"], "filter": {"v": 1}, "query": "words", "refresh_ttl": True,
    "namespace": ["n"], "namespace_prefix": ["n"], "prefix": ["n"], "suffix": ["n"],
    "max_depth": 2, "wait": True, "action": "interrupt", "cancel_on_disconnect": False,
    "last_event_id": "-1", "delete_threads": False, "response_format": "array",
    "supersteps": [{"updates": [{"values": {"steps": ["was"]}, "as_node": "first"}]}],
}  # fmt: skip
RUN = ("input", "config", "context", "metadata", "multitask_strategy", "webhook")
APART = (("command", "checkpoint_id", "supersteps"), ("input", "checkpoint", "ids"))
"""Options that do not go together: each call is made without these, and without those."""
CALLS: dict[str, dict[str, Any]] = {
    "runs.list": {"status": "success", "select": ["run_id"]},
    "runs.cancel_many": {"status": None},
    "threads.join_stream": {"stream_mode": "run_modes", "last_event_id": None},
    "threads.get_state": {"select": ["values"]},
    "threads.get_history": {"select": ["values"], "before": "{checkpoint}"},
    "assistants.get_subgraphs": {"namespace": "first"},
    "store.put_item": {"index": False},
}
"""Where an option means something else."""


def options_of(name: str, method: Any) -> Iterator[dict[str, Any]]:
    """Return the options of a method."""
    known = inspect.signature(method).parameters
    if name == "runs.create_batch":
        run = {option: OPTIONS[option] for option in RUN}
        yield {"payloads": [{"assistant_id": "steps", **run}]}
        return
    every = {**OPTIONS, **CALLS.get(name, {})}
    given = {key: every[key] for key in known if every.get(key) is not None}
    for left in APART:
        yield {key: value for key, value in given.items() if key not in left}
    if name in ("runs.create", "runs.stream", "runs.wait"):
        in_threads = ("command", "checkpoint", "checkpoint_id")
        yield {key: given[key] for key in given if key not in in_threads} | {"thread_id": None}


def called(method: Any, options: dict[str, Any]) -> Any:
    """Call a method, some of whose options have no names."""
    known = inspect.signature(method).parameters.values()
    bare = [one.name for one in known if one.kind is one.POSITIONAL_ONLY]
    named = {key: value for key, value in options.items() if key not in bare}
    return method(*(options[key] for key in bare), **named)


async def main() -> None:
    """Print a line for each request: its method and path, and its body."""
    by = f"python {version('langgraph_sdk')}"

    def heard(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        path = request.url.raw_path.decode().replace("%7B", "{").replace("%7D", "}")
        line = {"by": by, "asked": f"{request.method} {path}", "body": body}
        sys.stdout.write(json.dumps(line) + "\n")
        if path.partition("?")[0].endswith("/stream"):
            return httpx.Response(200, headers={"content-type": "text/event-stream"})
        return httpx.Response(200, json={})

    client = get_client(url="http://127.0.0.1:9", api_key=None)
    client.http.client._transport = httpx.MockTransport(heard)
    for room in ("assistants", "threads", "runs", "store"):
        for name, method in inspect.getmembers(getattr(client, room), inspect.isroutine):
            if name.startswith("_") or f"{room}.{name}" == "threads.stream":
                continue
            for options in options_of(f"{room}.{name}", method):
                try:
                    asked = called(method, options)
                    answer = asked if hasattr(asked, "__aiter__") else await asked
                    if hasattr(answer, "__aiter__"):
                        async for _ in answer:
                            pass
                except (KeyError, TypeError, ValueError, AttributeError):
                    continue  # of an answer that says nothing


if __name__ == "__main__":
    asyncio.run(main())
