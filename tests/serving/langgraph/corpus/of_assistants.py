"""Asks for assistants, their versions and their graphs."""

from __future__ import annotations

from uuid import uuid4

from tests.serving.langgraph.corpus.asking import NOBODY, Asking


async def assistants_made(c: Asking) -> None:
    """Made, with an id of their own and with a given one, twice."""
    made = await c.assistants.create("steps")
    await c.assistants.get(made["assistant_id"])
    given = str(uuid4())
    await c.assistants.create(
        "memory",
        {"configurable": {"who": "Ann"}, "tags": ["t"], "recursion_limit": 9},
        assistant_id=given,
        metadata={"n": 1, "deep": {"er": [1, 2]}},
        name="Ann's",
        description="of Ann",
    )
    await c.assistants.create("memory", assistant_id=given, if_exists="do_nothing")
    await c.refused(
        c.assistants.create("memory", assistant_id=given),
        c.assistants.create("memory", assistant_id=given, if_exists="raise"),
        c.assistants.create("no_such_graph"),
        c.http.post("/assistants", json={}),
        c.http.post("/assistants", json={"graph_id": 3}),
        c.http.post("/assistants", json={"graph_id": "steps", "assistant_id": "no-uuid"}),
        c.http.post("/assistants", json={"graph_id": "steps", "if_exists": "shout"}),
        c.http.post("/assistants", json={"graph_id": "steps", "metadata": []}),
    )
    await c.assistants.create("memory", context={"who": "Bob"})
    await c.runs.wait(None, given, input={"steps": []})


async def assistants_changed(c: Asking) -> None:
    """Changed, which makes versions; one of them made the latest again."""
    made = await c.assistants.create("memory", metadata={"a": 1}, name="one")
    key = made["assistant_id"]
    await c.assistants.update(key, metadata={"b": 2}, name="two")
    await c.assistants.update(key, config={"configurable": {"who": "Eve"}}, description="of Eve")
    await c.assistants.update(key, context={"who": "Zoe"})
    await c.assistants.update(key, graph_id="steps")
    await c.assistants.get_versions(key)
    await c.assistants.get_versions(key, limit=1)
    await c.assistants.get_versions(key, limit=2, offset=1)
    await c.refused(
        c.assistants.get_versions(key, metadata={"b": 2}),
        c.assistants.get_versions(key, metadata={"b": 3}),
    )
    await c.assistants.set_latest(key, 1)
    await c.assistants.get(key)
    await c.assistants.update(key, metadata={"c": 3})
    await c.refused(
        c.assistants.set_latest(key, 77),
        c.http.post(f"/assistants/{key}/latest", json={}),
        c.http.post(f"/assistants/{key}/latest", json={"version": "x"}),
        c.assistants.update(key, graph_id="no_such_graph"),
        c.assistants.update(NOBODY, metadata={}),
        c.assistants.set_latest(NOBODY, 1),
    )
    await c.refused(c.assistants.get_versions(NOBODY))


async def assistants_deleted(c: Asking) -> None:
    """Deleted, and asked for afterwards."""
    made = await c.assistants.create("steps")
    key = made["assistant_id"]
    thread = await c.thread()
    await c.runs.wait(thread, key, input={"steps": []})
    await c.assistants.delete(key)
    await c.threads.get(thread)
    await c.threads.get_state(thread)
    await c.refused(
        c.assistants.get(key),
        c.assistants.delete(key),
        c.assistants.delete(NOBODY),
        c.assistants.get_versions(key),
        c.runs.wait(thread, key, input={"steps": []}),
        c.http.delete("/assistants/no-uuid"),
    )


async def assistants_found(c: Asking) -> None:
    """Searched and counted by all that they can be searched by."""
    for n in range(3):
        await c.assistants.create("ask", metadata={"found": n, "all": "yes"}, name=f"find {n}")
    mine = {"all": "yes"}
    for order in ("asc", "desc"):
        for by in ("name", "created_at", "updated_at", "graph_id"):
            found = {"metadata": mine, "sort_by": by, "sort_order": order, "select": ["name"]}
            if by != "graph_id":
                await c.assistants.search(**found)
            else:
                await c.assistants.search(**found | {"limit": 1, "select": ["graph_id"]})
    await c.assistants.search(metadata={"found": 1})
    await c.assistants.search(metadata=mine, limit=2, sort_by="name", sort_order="asc")
    await c.assistants.search(metadata=mine, limit=2, offset=2, sort_by="name")
    await c.assistants.search(metadata=mine, graph_id="ask", name="FIND 2")
    await c.assistants.search(metadata=mine, graph_id="steps")
    await c.assistants.search(metadata=mine, limit=1, response_format="object")
    await c.assistants.search(metadata={"created_by": "system"}, graph_id="ask")
    await c.assistants.count(metadata=mine)
    await c.assistants.count(metadata=mine, graph_id="steps")
    await c.assistants.count(metadata=mine, name="find")
    await c.refused(
        c.http.post("/assistants/search", json={"limit": 0}),
        c.http.post("/assistants/search", json={"limit": 100000}),
        c.http.post("/assistants/search", json={"offset": -1}),
        c.http.post("/assistants/search", json={"sort_by": "colour"}),
        c.http.post("/assistants/search", json={"select": ["colour"]}),
        c.http.post("/assistants/search", json={"graph_id": "no_such_graph"}),
    )


async def assistants_graphs(c: Asking) -> None:
    """Their graphs, their schemas, and those inside."""
    for name in ("steps", "nested"):
        [system] = await c.assistants.search(graph_id=name, metadata={"created_by": "system"})
        key = system["assistant_id"]
        await c.assistants.get_graph(key)
        await c.assistants.get_graph(name, xray=True)
        await c.assistants.get_graph(name, xray=1)
        await c.assistants.get_schemas(key)
        await c.assistants.get_subgraphs(key)
        await c.assistants.get_subgraphs(key, recurse=True)
    [system] = await c.assistants.search(graph_id="memory", metadata={"created_by": "system"})
    await c.assistants.get_schemas(system["assistant_id"])
    await c.refused(
        c.assistants.get("steps"),
        c.assistants.get_subgraphs("nested", "sub"),
        c.assistants.get_subgraphs(key, "sub"),
        c.assistants.get_schemas("steps"),
        c.assistants.get_subgraphs("nested", "no_such_node"),
        c.assistants.get(NOBODY),
        c.assistants.get("no_such_graph"),
        c.assistants.get_graph(NOBODY),
        c.assistants.get_schemas(NOBODY),
        c.assistants.get_graph("steps", xray=-1),
        c.http.get("/assistants/steps/graph", params={"xray": "maybe"}),
    )
