"""What is done around the start of an engine's process."""

from __future__ import annotations

import gc

import pytest

from agentrt.executors.vllm.early import EarlyCore
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


def test_a_core_started_early_fits_while_what_is_read_once_is_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = EarlyCore((), {"OMP_NUM_THREADS": "7"})
    try:
        assert not core.fits()
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb.set_trace")  # as Ray does
        assert core.fits()
        monkeypatch.setenv("PYTHONHASHSEED", "1")
        assert not core.fits()
    finally:
        core.dismiss()
    assert not core.is_alive()
