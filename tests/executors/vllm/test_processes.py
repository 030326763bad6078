"""What is done around the start of an engine's process."""

from __future__ import annotations

import gc

from agentrt.executors.vllm.processes import collections_paused


def test_collections_go_on_after_a_pause_and_not_where_they_were_off() -> None:
    """Two engines may start at once, and the first to be done ends the pause."""
    with collections_paused():
        assert not gc.isenabled()
        with collections_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with collections_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
