"""How the engine core compiles grammars beside its steps, and refuses those that would slow them.

vLLM's pool compiles them in the order of their requests, aborted ones included: one tenant's slow
grammars would hold up everybody's. So `GrammarThreads` compiles them; tenants take turns.

For each token of a structured output a step computes the mask of allowed tokens, and all calls in
the batch wait for it. With a pattern of 30 characters that can take a second. So a grammar is first
tried in its own thread, and a request ends when one of its masks takes too long later.

How a constraint is checked before its call is submitted is in `grammars`, for the engine's client.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from agentrt.errors import AgentrtError
from agentrt.executors.vllm.turns import InTurn

SLOW_S = 5.0
"""After this time another grammar may start beside it."""
MOST_SLOW = 2
"""A tenant with so many slow grammars starts no other."""
LONGEST_S = 60.0
"""After this time it fails. Its thread cannot be stopped, and counts until it ends."""


class Wanting(Protocol):
    """A request that needs a grammar."""

    def is_finished(self) -> bool:
        """Whether it needs none any more."""


@dataclass(eq=False, slots=True)
class _Job:
    owner: str
    work: Callable[[], Any]
    is_over: Callable[[], bool]
    future: Future[Any] = field(default_factory=Future)
    is_slow: bool = False


class GrammarThreads:
    """An executor as far as vLLM asks for one; ``at_once`` that are not slow run at a time.

    ``owner`` names the tenant of a request, and ``begin`` is called by each thread first.
    """

    def __init__(
        self,
        at_once: int,
        owner: Callable[[Any], str],
        begin: Callable[[], None] = lambda: None,
        later: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer,
    ) -> None:
        self._at_once, self._owner, self._begin, self._later = at_once, owner, begin, later
        self._lock = threading.RLock()
        self._waiting = InTurn[_Job](lambda job: job.is_over())
        self._running: list[_Job] = []

    def submit(self, create: Callable[[Any], Any], request: Wanting) -> Future[Any]:
        """What ``create`` makes for the request, some time; nothing if it is over by then."""
        job = _Job(self._owner(request), partial(create, request), request.is_finished)
        with self._lock:
            self._waiting.add(job.owner, job)
            self._start()
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin no more. What runs is not waited for: it ends with the process."""
        with self._lock:
            self._waiting.clear()

    def _start(self) -> None:
        while sum(not job.is_slow for job in self._running) < self._at_once:
            job = self._next()
            if job is None:
                return
            self._running.append(job)
            threading.Thread(target=self._run, args=(job,), name="grammar", daemon=True).start()

    def _next(self) -> _Job | None:
        slow = Counter(job.owner for job in self._running if job.is_slow)
        return self._waiting.next(without=[one for one in slow if slow[one] >= MOST_SLOW])

    def _run(self, job: _Job) -> None:
        self._begin()
        timers = [
            self._later(SLOW_S, partial(self._slow, job)),
            self._later(LONGEST_S, partial(_fail, job)),
        ]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            _settle(job.future.set_result, job.work())
        except BaseException as error:
            _settle(job.future.set_exception, error)
        for timer in timers:
            timer.cancel()
        with self._lock:
            self._running.remove(job)
            self._start()

    def _slow(self, job: _Job) -> None:
        with self._lock:
            job.is_slow = True
            self._start()


def _fail(job: _Job) -> None:
    _settle(job.future.set_exception, TimeoutError(f"a grammar took more than {LONGEST_S:g} s"))


def _settle(settle: Callable[[Any], None], value: Any) -> None:
    """It may have failed by its time meanwhile."""
    with contextlib.suppress(InvalidStateError):
        settle(value)


# -- token masks ---------------------------------------------------------------------------

MASKS_S = 0.25
"""CPU time for all masks of the trial together, and for one mask in a step."""
TRIED = 16
"""Tokens of the trial. With an ordinary schema they take some milliseconds together."""


class SlowGrammarError(AgentrtError):
    """A grammar's masks take too long."""


def try_masks(
    grammar: Any, mask: Any, clock: Callable[[], float] = time.thread_time, seed: int = 0
) -> None:
    """Feed one of vLLM's grammars some random tokens that it allows, then reset it.

    ``mask`` is a buffer for one mask. Raises `SlowGrammarError`.
    """
    chance, took_s = random.Random(seed), 0.0
    for _ in range(TRIED):
        if grammar.is_terminated():
            break
        began = clock()
        grammar.fill_bitmask(mask, 0)
        took_s += clock() - began
        if took_s > MASKS_S:
            raise SlowGrammarError(f"its masks take more than {MASKS_S:g} s for {TRIED} tokens")
        token = _any_of(mask, grammar.vocab_size, chance)
        if token is None or not grammar.accept_tokens("tried", [token]):
            break
    grammar.reset()


def _any_of(mask: Any, vocabulary: int, chance: random.Random) -> int | None:
    """A token that the mask allows."""
    import numpy as np  # it comes with vLLM, and commands load this module without one

    bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little", count=vocabulary)
    allowed = np.flatnonzero(bits)
    return int(chance.choice(allowed)) if allowed.size else None


def watch(grammar: Any, clock: Callable[[], float] = time.thread_time) -> Any:
    """Make the grammar accept no token after a mask that took too long: vLLM ends its request."""
    fill, accept, longest_s = grammar.fill_bitmask, grammar.accept_tokens, 0.0

    def fill_bitmask(mask: Any, row: int) -> None:
        nonlocal longest_s
        began = clock()
        fill(mask, row)
        longest_s = max(longest_s, clock() - began)

    def accept_tokens(request_id: str, tokens: list[int]) -> bool:
        return longest_s <= MASKS_S and bool(accept(request_id, tokens))

    grammar.fill_bitmask, grammar.accept_tokens = fill_bitmask, accept_tokens
    return grammar
