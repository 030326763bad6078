"""What a program waits for in tests/engine/test_retention.py; a worker process imports it, too."""

from __future__ import annotations

from pathlib import Path

from agentrt import tool


def wait(fifo: str) -> str:
    """Wait until somebody writes to a named pipe."""
    return Path(fifo).read_text(encoding="utf-8")


@tool(isolation="process")
def wait_in_a_process(fifo: str) -> str:
    """The same elsewhere."""
    return wait(fifo)


@tool
def wait_at_a_worker(fifo: str) -> str:
    """The same for an MQTT worker."""
    return wait(fifo)
