"""The machines of `plant.py`: tools that a worker offers, beside what they control.

agentrt worker demos/plant_machines.py --broker mqtt://127.0.0.1
"""

from __future__ import annotations

from agentrt import tool

MACHINES = {
    "press-1": {"temperature": 61.0, "pressure": 4.1},
    "press-3": {"temperature": 97.0, "pressure": 6.8},
}
STOPPED: set[str] = set()


@tool(idempotent=True, timeout=5)
def read_sensors(machine: str) -> dict[str, float]:
    """What a machine's sensors say now."""
    if machine not in MACHINES:
        raise LookupError(f"unknown machine {machine!r}; available: {', '.join(MACHINES)}")
    return MACHINES[machine]


@tool(timeout=5)
def stop_machine(machine: str) -> str:
    """Stop a machine. It takes an hour to start again, so nobody does it twice."""
    STOPPED.add(machine)
    return f"{machine} has stopped"
