"""A client that has slow grammars compiled, or gives them up, does not delay those of others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from agentrt.executors.vllm.compiling import LONGEST_S, SLOW_S, GrammarThreads

_SOON_S = 30.0


class Timer(threading.Timer):
    """A timer that a test fires itself."""

    def start(self) -> None:
        pass


@dataclass(eq=False)
class Request:
    name: str
    over: bool = False
    go_on: threading.Event = field(default_factory=threading.Event)

    def is_finished(self) -> bool:
        return self.over


class Compiling:
    """Threads whose work ends when a test says so. ``begun`` has the names of the work in order."""

    def __init__(self) -> None:
        self.begun: queue.Queue[str] = queue.Queue()
        self.timers: dict[tuple[str, float], Timer] = {}
        self.requests: list[Request] = []
        self.threads = GrammarThreads(1, lambda request: str(request.name[0]), later=self._later)

    def ask(self, name: str, *, over: bool = False) -> Future[Any]:
        self.requests.append(request := Request(name, over))
        return self.threads.submit(self._create, request)

    def end(self, name: str) -> None:
        next(one for one in self.requests if one.name == name).go_on.set()

    def next(self) -> str:
        return self.begun.get(timeout=_SOON_S)

    def fire(self, name: str, after_s: float) -> None:
        self.timers[name, after_s].function()

    def _later(self, after_s: float, function: Callable[[], None]) -> Timer:
        made = Timer(after_s, function)
        assert isinstance(function, partial)
        job = function.args[0]
        self.timers[job.work.args[0].name, after_s] = made
        return made

    def _create(self, request: Request) -> str:
        self.begun.put(request.name)
        assert request.go_on.wait(_SOON_S)
        if request.name == "bad":
            raise ValueError("no grammar")
        return request.name.upper()


@pytest.fixture
def compiling() -> Iterator[Compiling]:
    made = Compiling()
    yield made
    made.threads.shutdown()
    for request in made.requests:
        request.go_on.set()


def test_tenants_take_turns_and_what_was_given_up_is_left_out(compiling: Compiling) -> None:
    first = compiling.ask("a1")
    assert compiling.next() == "a1"
    gone = compiling.ask("a2", over=True)
    rest = [compiling.ask(name) for name in ("a3", "a4", "b1")]
    for name, then in [("a1", "a3"), ("a3", "b1"), ("b1", "a4")]:
        compiling.end(name)
        assert compiling.next() == then
    compiling.end("a4")
    assert [one.result(_SOON_S) for one in (first, *rest)] == ["A1", "A3", "A4", "B1"]
    assert not gone.done()


def test_a_slow_one_makes_room_but_for_its_tenants_third(compiling: Compiling) -> None:
    compiling.ask("a1")
    assert compiling.next() == "a1"
    for name in ("a2", "a3", "b1"):
        compiling.ask(name)
    compiling.fire("a1", SLOW_S)
    assert compiling.next() == "a2"
    compiling.fire("a2", SLOW_S)
    assert compiling.next() == "b1"
    compiling.end("b1")
    compiling.ask("b2")
    assert compiling.next() == "b2"
    compiling.end("a1")
    compiling.end("b2")
    assert compiling.next() == "a3"


def test_what_takes_too_long_fails_and_may_end_later(compiling: Compiling) -> None:
    future = compiling.ask("a1")
    assert compiling.next() == "a1"
    compiling.fire("a1", LONGEST_S)
    with pytest.raises(TimeoutError, match="more than 60 s"):
        future.result(_SOON_S)
    compiling.ask("b1")
    compiling.end("a1")
    assert compiling.next() == "b1"


def test_an_error_is_its_requests_alone(compiling: Compiling) -> None:
    bad = compiling.ask("bad")
    good = compiling.ask("good")
    compiling.end("bad")
    compiling.end("good")
    with pytest.raises(ValueError, match="no grammar"):
        bad.result(_SOON_S)
    assert good.result(_SOON_S) == "GOOD"


def test_nothing_begins_after_the_end(compiling: Compiling) -> None:
    first = compiling.ask("a1")
    assert compiling.next() == "a1"
    later = compiling.ask("a2")
    compiling.threads.shutdown(wait=False)
    compiling.end("a1")
    assert first.result(_SOON_S) == "A1"
    assert not later.done()
    assert compiling.begun.empty()
