"""Asks for runs that stop to ask something, and continues with them."""

from __future__ import annotations

from tests.serving.langgraph.corpus.asking import IN, Asking, all_of


async def interrupts_answered(c: Asking) -> None:
    """A question is asked, shown everywhere, and answered."""
    thread = await c.thread()
    await c.runs.wait(thread, "ask", input=IN)
    await c.threads.get(thread)
    await c.threads.get_state(thread)
    await c.threads.get_history(thread)
    await c.runs.list(thread)
    await c.runs.wait(thread, "ask", command={"resume": "left"})
    await c.threads.get(thread)
    await c.threads.get_state(thread)
    await c.runs.wait(thread, "ask", command={"resume": "again"})
    await c.threads.get_history(thread, limit=2)


async def interrupts_of_several(c: Asking) -> None:
    """Questions one after the other, and at once, answered by their ids."""
    thread = await c.thread()
    await c.runs.wait(thread, "twice", input=IN)
    await c.runs.wait(thread, "twice", command={"resume": 1})
    await c.threads.get(thread)
    await c.runs.wait(thread, "twice", command={"resume": {"a": [2]}})
    thread = await c.thread()
    await c.runs.wait(thread, "fan", input=IN)
    state = await c.threads.get_state(thread)
    await c.threads.get(thread)
    asked = [task["interrupts"][0]["id"] for task in state["tasks"]]
    await c.runs.wait(thread, "fan", command={"resume": {asked[0]: "yes"}})
    await c.threads.get_state(thread)
    await c.runs.wait(thread, "fan", command={"resume": "for all?"}, raise_error=False)
    await c.runs.wait(thread, "fan", command={"resume": {asked[1]: "no"}})


async def interrupts_at_nodes(c: Asking) -> None:
    """Stopped before and after nodes, and gone on."""
    thread = await c.thread()
    await c.runs.wait(thread, "steps", input=IN, interrupt_before=["middle"])
    await c.threads.get(thread)
    await c.threads.get_state(thread)
    await c.runs.wait(thread, "steps", input=None, interrupt_after=["middle"])
    await c.threads.get_state(thread)
    await c.runs.wait(thread, "steps", input=None)
    await c.threads.get(thread)
    thread = await c.thread()
    await c.runs.wait(thread, "steps", input=IN, interrupt_after="*")
    await c.runs.wait(thread, "steps", input=None, interrupt_before="*")


async def interrupts_commanded(c: Asking) -> None:
    """Gone on elsewhere, with other state."""
    thread = await c.thread()
    await c.runs.wait(thread, "steps", input=IN)
    await c.runs.wait(thread, "steps", command={"goto": "last"})
    await c.runs.wait(thread, "steps", command={"update": {"steps": ["mine"]}, "goto": "middle"})
    await c.runs.wait(
        thread, "steps", command={"goto": [{"node": "last", "input": {"steps": ["sent"]}}]}
    )
    await c.runs.wait(thread, "steps", command={"update": {"steps": ["only"]}})
    await c.threads.get_state(thread)
    await all_of(
        c.runs.stream(thread, "steps", command={"goto": ["middle"]}, stream_mode="updates")
    )
    await c.runs.wait(thread, "steps", command={"resume": "nothing asked"})
    fresh = await c.thread()
    await c.runs.wait(fresh, "steps", command={"resume": "too early"}, raise_error=False)
    await c.runs.wait(fresh, "ask", command={"resume": "x"}, strict_resume=True, raise_error=False)
    await c.refused(
        c.runs.wait(thread, "steps", input=IN, command={"goto": "last"}),
        c.runs.wait(thread, "steps", command={"goto": "no_such_node"}, raise_error=False),
    )
