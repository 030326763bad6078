"""An agent that watches machines: it hears an alarm, looks at the machine, thinks, asks, acts.

    mosquitto -p 1883 &
    agentrt worker demos/plant_machines.py --broker mqtt://127.0.0.1 &
    agentrt run demos/plant.py --broker mqtt://127.0.0.1
    # in another terminal, while the command above runs:
    mosquitto_pub -t plant/press-3/alarm -m '{"sensor": "temperature", "value": 97}'

The machines' tools run in the worker, which may be on another computer. Nothing is stopped before
a human has said so; a program that waits for an alarm, or for the human, holds no engine.
"""

from __future__ import annotations

import json
from typing import Any

from agentrt import Context, node, program

VERDICTS = ["harmless", "dangerous"]
ACTIONS = ["stop it", "leave it on"]


@node
async def judge(ctx: Context, machine: str, alarm: Any, readings: dict[str, float]) -> str:
    """What the model thinks of the alarm."""
    ask = (
        f"Machine {machine} sent the alarm {json.dumps(alarm)}. "
        f"Its sensors say {json.dumps(readings)}. A temperature above 90 is dangerous. "
        "Is this harmless or dangerous?"
    )
    reply = await ctx.llm(ask, schema={"enum": VERDICTS}, max_tokens=16)
    return str(reply.parsed)


@node
async def handle(ctx: Context, machine: str, alarm: Any) -> dict[str, Any]:
    """Handle one alarm, from the first look to the last act."""
    readings = await ctx.tool("read_sensors", machine=machine)
    verdict = await judge(ctx, machine, alarm, readings)
    question = f"{machine}: {alarm}. It seems {verdict}. What shall I do?"
    decision = await ctx.human(question, choices=ACTIONS, timeout=600, default="leave it on")
    if decision == "stop it":
        await ctx.tool("stop_machine", machine=machine)
    return {"machine": machine, "readings": readings, "verdict": verdict, "decision": decision}


@program
async def plant(ctx: Context, alarms: int = 1) -> list[dict[str, Any]]:
    """Handle ``alarms`` alarms, each in a task of its own, and return what was done."""
    handled = []
    async for event in ctx.event("plant/+/alarm"):
        machine = event.topic.split("/")[1]
        handled.append(ctx.spawn(handle, machine, event.payload))
        if len(handled) == alarms:
            break
    return [await one for one in handled]
