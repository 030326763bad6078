"""Compiles grammars in parallel to the engine core's steps, and refuses grammars that would slow
the steps down.

vLLM's thread pool compiles grammars in the order of their requests, including aborted ones, so one
tenant's slow grammars would delay all others. `GrammarThreads` replaces the pool, and lets tenants
take turns.

For each token of a structured output, a step computes the mask of allowed tokens, and all calls in
the batch wait for it. The mask for a pattern of 30 characters can take a second. Therefore a
grammar is first tested in the thread that compiles it, and a request ends if one of its masks takes
too long later.

The module `calls` checks a constraint in the engine's client before the call with this constraint
is submitted.
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
"""Seconds after which a grammar counts as slow, so that another grammar may start in addition to
it.
"""
MOST_SLOW = 2
"""While this many slow grammars of a tenant are running, the tenant starts no other grammar."""
LONGEST_S = 60.0
"""Seconds after which a grammar fails. Its thread cannot be stopped, and counts as running until it
ends.
"""


class Wanting(Protocol):
    """A request that needs a grammar."""

    def is_finished(self) -> bool:
        """Return whether the request has ended and needs no grammar any more."""


@dataclass(eq=False, slots=True)
class _CompileJob:
    owner: str
    work: Callable[[], Any]
    is_over: Callable[[], bool]
    future: Future[Any] = field(default_factory=Future)
    is_slow: bool = False


class GrammarThreads:
    """A replacement for vLLM's `ThreadPoolExecutor` that compiles grammars. Tenants take turns.

    At most ``at_once`` grammars are compiled at the same time. A grammar that takes longer than
    `SLOW_S` seconds no longer counts, so that another grammar can start. ``owner`` returns the
    tenant of a request. Each thread first calls ``begin``. ``later`` creates timers.
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
        self._waiting = InTurn[_CompileJob](lambda job: job.is_over())
        self._running: list[_CompileJob] = []

    def submit(self, create: Callable[[Any], Any], request: Wanting) -> Future[Any]:
        """Call ``create(request)`` in a thread when it is the turn of the request's tenant. Return
        the future of the result.

        If the request has ended before this turn, the future never gets a result.
        """
        job = _CompileJob(self._owner(request), partial(create, request), request.is_finished)
        with self._lock:
            self._waiting.add(job.owner, job)
            self._start()
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Start no more grammars. Running threads are not awaited; they end with the process."""
        with self._lock:
            self._waiting.clear()

    def _start(self) -> None:
        while sum(not job.is_slow for job in self._running) < self._at_once:
            job = self._next()
            if job is None:
                return
            self._running.append(job)
            threading.Thread(target=self._run, args=(job,), name="grammar", daemon=True).start()

    def _next(self) -> _CompileJob | None:
        slow = Counter(job.owner for job in self._running if job.is_slow)
        blocked = [owner for owner in slow if slow[owner] >= MOST_SLOW]
        return self._waiting.next(without=blocked)

    def _run(self, job: _CompileJob) -> None:
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

    def _slow(self, job: _CompileJob) -> None:
        with self._lock:
            job.is_slow = True
            self._start()


def _fail(job: _CompileJob) -> None:
    text = f"the grammar took more than {LONGEST_S:g} s to compile"
    _settle(job.future.set_exception, TimeoutError(text))


def _settle(settle: Callable[[Any], None], value: Any) -> None:
    """Set a future's result or error, unless it has timed out already."""
    with contextlib.suppress(InvalidStateError):
        settle(value)


# -- token masks ---------------------------------------------------------------------------

MASKS_S = 0.25
"""Maximum CPU seconds for all masks of a test (`try_masks`) together, and for one mask in a
step.
"""
TRIED = 16
"""Number of tokens in a test (`try_masks`). An ordinary schema's masks take a few milliseconds
together.
"""


class SlowGrammarError(AgentrtError):
    """Raised for a grammar whose masks take too long."""


def try_masks(
    grammar: Any, mask: Any, clock: Callable[[], float] = time.thread_time, seed: int = 0
) -> None:
    """Test a grammar of vLLM's: feed it random tokens that it allows, then reset it.

    ``mask`` is a buffer for one mask, ``clock`` returns CPU seconds, and ``seed`` is for the choice
    of tokens. Raises `SlowGrammarError` if the masks take more than `MASKS_S` seconds together.
    """
    chance, took_s = random.Random(seed), 0.0
    for _ in range(TRIED):
        if grammar.is_terminated():
            break
        began = clock()
        grammar.fill_bitmask(mask, 0)
        took_s += clock() - began
        if took_s > MASKS_S:
            raise SlowGrammarError(
                f"a grammar is too slow: its masks take more than {MASKS_S:g} s for {TRIED} tokens"
            )
        token = _any_of(mask, grammar.vocab_size, chance)
        if token is None or not grammar.accept_tokens("tried", [token]):
            break
    grammar.reset()


def _any_of(mask: Any, vocabulary: int, chance: random.Random) -> int | None:
    """Return a random token that the mask allows; None if it allows none."""
    import numpy as np  # installed with vLLM; commands import this module without vLLM

    bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little", count=vocabulary)
    allowed = np.flatnonzero(bits)
    return int(chance.choice(allowed)) if allowed.size else None


def watch(grammar: Any, clock: Callable[[], float] = time.thread_time) -> Any:
    """Make a grammar refuse all tokens after a mask that took too long, and return the grammar.

    vLLM then ends the grammar's request.
    """
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
