"""Calls whose KV cache is loaded from host memory: their state, their tokens, and admission."""

from __future__ import annotations

import pytest

from agentrt.errors import InvariantError
from agentrt.scheduler import QueuedCall
from agentrt.scheduler.events import CallFinished, CallLoaded, CallLoading, CallStarted
from agentrt.scheduler.state import CallState
from tests.scheduler.admitting import TOKEN_S, Admitting, Counted


def load(engine: Admitting, tokens: int = 64) -> QueuedCall:
    """The engine takes the head of the queue, and begins to load tokens for it."""
    call = engine.core.queue.take()
    engine.core.handle(CallLoading(call, engine.now, 16, tokens))
    return call


def start(engine: Admitting, call: QueuedCall) -> None:
    engine.core.handle(CallStarted(call, engine.now, 80))


def counts(call: QueuedCall) -> tuple[int, int]:
    return call.loaded_tokens, call.unused_loaded_tokens


def test_a_load_counts_when_its_call_starts() -> None:
    engine = Counted()
    engine.wants("a", 20)
    engine.let_in(0)
    call = load(engine)
    assert (call.state, counts(call)) == (CallState.LOADING, (0, 0))
    engine.now = 3.0
    engine.core.handle(CallLoaded(call, engine.now))
    assert (call.state, counts(call)) == (CallState.LOADING, (0, 0))
    start(engine, call)
    assert (call.state, counts(call)) == (CallState.RUNNING, (64, 0))
    assert call.waited_s == 3.0


def test_a_load_that_fails_was_for_nothing_and_the_call_may_load_again() -> None:
    engine = Counted()
    engine.wants("a", 20)
    engine.let_in(0)
    call = load(engine)
    engine.core.handle(CallLoaded(call, 1.0, failed=True))
    assert (call.state, counts(call)) == (CallState.UNQUEUED, (0, 64))
    engine.core.handle(CallLoading(call, 2.0, 16, 48))
    engine.core.handle(CallLoaded(call, 3.0))
    start(engine, call)
    assert counts(call) == (48, 64)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_load_of_a_call_that_ends_before_it_runs_was_for_nothing(loaded: bool) -> None:
    engine = Counted()
    engine.wants("a", 20)
    engine.let_in(0)
    call = load(engine)
    if loaded:
        engine.core.handle(CallLoaded(call, 1.0))
    engine.core.handle(CallFinished(call, 2.0))
    assert (call.state, counts(call)) == (CallState.ENDED, (0, 64))
    assert not engine.core.loading


def test_an_engine_that_only_loads_is_not_idle() -> None:
    """No program is admitted without room for it while the only call of another one loads."""
    engine = Counted()
    engine.wants("a", 60)
    engine.let_in(0)
    call = load(engine)
    engine.wants("b", 60)
    engine.let_in(0)
    assert engine.inside() == {"a"}
    engine.core.handle(CallFinished(call, engine.now))
    engine.end_program("a")
    engine.let_in(0)
    assert engine.inside() == {"b"}


@pytest.mark.parametrize(("waited_s", "inside"), [(0.9, {"a"}), (1.0, {"a", "b"})])
def test_a_load_that_takes_longer_than_computing_its_tokens_keeps_nobody_out(
    waited_s: float, inside: set[str]
) -> None:
    engine = Counted()
    engine.wants("a", 60)
    engine.let_in(0)
    load(engine, round(1.0 / TOKEN_S))
    engine.wants("b", 60)
    engine.now += waited_s
    engine.let_in(0)
    assert engine.inside() == inside


def test_a_running_call_cannot_load() -> None:
    engine = Counted()
    engine.wants("a", 20)
    engine.step()
    (call,) = engine.running
    with pytest.raises(InvariantError, match="cannot go from 'running' to 'loading'"):
        engine.core.handle(CallLoading(call, 1.0, 0, 16))
