"""Each route whose request authorization hooks see, with what they get of it.

The values are those that LangGraph's own server gives to hooks, version 0.16.7, for the same
requests. An id is the letter of a thing: a thread, a run in it, an assistant, a cron.
"""

from __future__ import annotations

from typing import Any

from tests.serving.langgraph.runs.test_runs import IN

OWN = {"owner": "ann"}
RUN = {"assistant_id": "steps", "input": IN}
CRON = {"assistant_id": "steps", "schedule": "0 0 1 1 *"}
LIST = {"limit": 10, "offset": 0}
ROUTES: list[tuple[str, str, Any, list[tuple[str, dict[str, Any]]]]] = [
    ("POST", "/threads", {}, [("threads.create", {"metadata": {}, "if_exists": "raise"})]),
    (
        "POST",
        "/threads/search",
        {},
        [("threads.search", {"metadata": {}, "values": {}, "status": None, **LIST})],
    ),
    (
        "POST",
        "/threads/count",
        {"status": "idle"},
        [
            (
                "threads.search",
                {"metadata": {}, "values": {}, "status": "idle", "limit": 0, "offset": 0},
            )
        ],
    ),
    ("GET", "/threads/{t}", None, [("threads.read", {"thread_id": "{t}"})]),
    (
        "PATCH",
        "/threads/{t}",
        {"ttl": {"ttl": 5}},
        [("threads.update", {"thread_id": "{t}", "metadata": {}})],
    ),
    ("POST", "/threads/{t}/copy", None, [("threads.read", {}), ("threads.create", {})]),
    (
        "POST",
        "/threads/prune",
        {"thread_ids": []},
        [("threads.delete", {"thread_ids": []})],
    ),
    ("GET", "/threads/{t}/state", None, [("threads.read", {"thread_id": "{t}"})]),
    ("POST", "/threads/{t}/history", {}, [("threads.read", {"thread_id": "{t}"})]),
    (
        "POST",
        "/threads/{t}/state",
        {"values": {"steps": ["x"]}, "as_node": "first"},
        [("threads.update", {"thread_id": "{t}"})],
    ),
    (
        "POST",
        "/runs/wait",
        RUN,
        [
            (
                "threads.create_run",
                {
                    "thread_id": None,
                    "status": "pending",
                    "metadata": {},
                    "prevent_insert_if_inflight": False,
                    "multitask_strategy": "enqueue",
                    "if_not_exists": "create",
                    "after_seconds": 0,
                },
            )
        ],
    ),
    (
        "GET",
        "/threads/{t}/runs",
        None,
        [("threads.read", {}), ("threads.search", {"thread_id": "{t}", "metadata": {}})],
    ),
    ("GET", "/threads/{t}/runs/{r}", None, [("threads.read", {"thread_id": "{t}"})]),
    (
        "POST",
        "/threads/{t}/runs/{r}/cancel",
        None,
        [
            (
                "threads.update",
                {
                    "thread_id": "{t}",
                    "action": "interrupt",
                    "metadata": {"run_ids": ["{r}"], "status": None},
                },
            )
        ],
    ),
    (
        "POST",
        "/runs/cancel",
        {"status": "running"},
        [
            (
                "threads.update",
                {
                    "thread_id": None,
                    "action": "interrupt",
                    "metadata": {"run_ids": None, "status": "running"},
                },
            )
        ],
    ),
    (
        "DELETE",
        "/threads/{t}/runs/{r}",
        None,
        [("threads.delete", {"thread_id": "{t}", "run_id": "{r}"})],
    ),
    (
        "POST",
        "/assistants",
        {"graph_id": "steps"},
        [
            (
                "assistants.create",
                {"graph_id": "steps", "config": {}, "metadata": {}, "name": "Untitled"},
            )
        ],
    ),
    (
        "POST",
        "/assistants/search",
        {},
        [("assistants.search", {"graph_id": None, "metadata": {}, **LIST})],
    ),
    (
        "POST",
        "/assistants/count",
        {"graph_id": "steps"},
        [("assistants.search", {"graph_id": "steps", "metadata": {}, "limit": 0, "offset": 0})],
    ),
    ("GET", "/assistants/{a}", None, [("assistants.read", {"assistant_id": "{a}"})]),
    ("GET", "/assistants/{a}/schemas", None, [("assistants.read", {"assistant_id": "{a}"})]),
    (
        "PATCH",
        "/assistants/{a}",
        {"name": "x"},
        [
            (
                "assistants.update",
                {
                    "assistant_id": "{a}",
                    "graph_id": None,
                    "config": {},
                    "context": None,
                    "metadata": {},
                    "name": "x",
                },
            )
        ],
    ),
    (
        "POST",
        "/assistants/{a}/latest",
        {"version": 1},
        [("assistants.update", {"assistant_id": "{a}", "version": 1})],
    ),
    ("POST", "/assistants/{a}/versions", {}, [("assistants.read", {"assistant_id": "{a}"})]),
    (
        "POST",
        "/runs/crons",
        CRON,
        [
            (
                "crons.create",
                {
                    "thread_id": None,
                    "user_id": "ann",
                    "schedule": "0 0 1 1 *",
                    "end_time": None,
                    "metadata": {},
                },
            )
        ],
    ),
    (
        "POST",
        "/threads/{t}/runs/crons",
        {**CRON, "metadata": {"m": 1}},
        [
            ("threads.read", {"thread_id": "{t}", "metadata": {"m": 1}}),
            ("crons.create", {"thread_id": "{t}", "metadata": {"m": 1}}),
        ],
    ),
    (
        "POST",
        "/runs/crons/search",
        {},
        [
            ("crons.search", {"assistant_id": None, "thread_id": None, "metadata": {}, **LIST}),
            ("threads.search", {}),
        ],
    ),
    (
        "POST",
        "/runs/crons/count",
        {},
        [("crons.search", {"metadata": {}, "limit": 0, "offset": 0}), ("threads.search", {})],
    ),
    ("GET", "/runs/crons/{c}", None, [("crons.read", {"cron_id": "{c}"})]),
    (
        "PATCH",
        "/runs/crons/{c}",
        {"enabled": False},
        [
            (
                "crons.update",
                {
                    "cron_id": "{c}",
                    "schedule": None,
                    "end_time": None,
                    "enabled": False,
                    "on_run_completed": None,
                    "payload": {"enabled": False},
                },
            )
        ],
    ),
    ("DELETE", "/runs/crons/{c}", None, [("crons.delete", {"cron_id": "{c}"})]),
    (
        "PUT",
        "/store/items",
        {"namespace": ["d"], "key": "k", "value": OWN},
        [
            (
                "store.put",
                {"namespace": ("d",), "key": "k", "value": OWN, "index": None, "ttl": None},
            )
        ],
    ),
    (
        "GET",
        "/store/items?namespace=d.e&key=k",
        None,
        [("store.get", {"namespace": ("d", "e"), "key": "k", "refresh_ttl": None})],
    ),
    (
        "POST",
        "/store/items/search",
        {"namespace_prefix": []},
        [
            (
                "store.search",
                {"namespace": (), "filter": None, "query": None, "refresh_ttl": None, **LIST},
            )
        ],
    ),
    (
        "POST",
        "/store/namespaces",
        {},
        [
            (
                "store.list_namespaces",
                {
                    "namespace": None,
                    "suffix": None,
                    "max_depth": None,
                    "limit": 100,
                    "offset": 0,
                },
            )
        ],
    ),
    (
        "DELETE",
        "/store/items",
        {"namespace": ["d"], "key": "k"},
        [("store.delete", {"namespace": ("d",), "key": "k"})],
    ),
    ("GET", "/v1/questions", None, [("threads.search", {"metadata": {}, "values": {}})]),
    ("DELETE", "/assistants/{a}", None, [("assistants.delete", {"assistant_id": "{a}"})]),
    ("DELETE", "/threads/{t}", None, [("threads.delete", {"thread_id": "{t}"})]),
]
