"""The invariants of every step of a scheduler, and of the end of a case. At the end, no call or
program may be left in the scheduler.

The checks read vLLM's own fields, and public fields of agentrt's scheduler. At the end, all objects
that the scheduler holds are searched for calls and programs, so that parts that are added later are
searched, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from agentrt.executors.vllm._compat.offloading import policy_of
from agentrt.executors.vllm._compat.scheduling import started
from agentrt.scheduler.state import CallState, EngineProgram, QueuedCall
from benchmarks.stress.engine import StressEngine
from benchmarks.stress.faults import Violation
from benchmarks.stress.host import left_on_host

FRUITLESS = 8
"""An invariant is violated if a call is preempted this number of times in a row for other calls,
without progress in between.
"""
WASTED_STEPS = 8
"""The number of steps within which a call must begin or load after running calls were preempted
for others.
"""
PROMPTS, SLACK_S = 2.0, 2.0
"""An idle engine may let a call that could run wait for at most `SLACK_S` seconds plus `PROMPTS`
times the computing time of the prompts of all calls of the same program that could run. The slack
is needed because the clock advances by up to a second while nothing happens.
"""
_EVERY = 8
"""The number of steps between two complete checks."""
_UNPAUSED, _PAUSED_ALL = 0, 2
_BLOCKED = ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "WAITING_FOR_REMOTE_KVS")


@dataclass(slots=True)
class Figures:
    """The results of a run: the ``seconds`` until all programs had ended, the number of ``steps``
    in which a call ran, the number of computed ``tokens``, and figures that explain the time.

    ``recomputed_tokens`` is the number of tokens that had to be computed again. ``gave_way`` is the
    number of preemptions for other calls, and ``for_memory`` the number of preemptions by vLLM for
    lack of memory. ``idle_slots`` is the number of steps with a free slot while a call waited that
    could run; in ``kept_out`` of these steps, admission control held a call back. ``idle_s`` is the
    time in seconds in which nothing ran although a call could run. ``loads`` and ``stores`` are the
    numbers of copies from and to host memory, ``failed_loads`` is the number of loads that failed,
    ``left_loading`` the number of calls that ended while they were loading, and ``full_stores`` the
    number of stores for which host memory had no room.
    """

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    gave_way: int = 0
    for_memory: int = 0
    recomputed_tokens: int = 0
    idle_slots: int = 0
    kept_out: int = 0
    idle_s: float = 0.0
    loads: int = 0
    stores: int = 0
    failed_loads: int = 0
    left_loading: int = 0
    full_stores: int = 0


@dataclass(slots=True)
class _Preempted:
    """The most output tokens and computed tokens that a call had at a preemption for another call,
    and the number of such preemptions in a row without progress.
    """

    progress: tuple[int, int] = (-1, -1)
    times: int = 0


@dataclass(slots=True)
class _Before:
    """The state that a step must not change while the engine is paused."""

    queued: dict[str, CallState]
    promotions: int


class Watch:
    """A checker that raises `Violation` if a step of an engine violates an invariant.

    ``events`` has all events, each with its time, its step, the call or program, and a text. If the
    engine has stock's scheduler, only vLLM's own state is checked.
    """

    def __init__(self, engine: StressEngine, *, checks: bool = True) -> None:
        self.engine, self.scheduler = engine, engine.scheduler
        self.events: list[tuple[float, int, str, str]] = []
        self.figures = Figures()
        self.lost: set[str] = set()
        """Streaming sessions that stock's scheduler may have lost (see `_preempting`)."""
        self.waited_s: dict[str, float] = {}
        """The total seconds that the calls of each program waited."""
        self._program: dict[str, str] = {}
        self._since: dict[str, float] = {}
        self._checks = checks
        self._preempted: list[tuple[Any, tuple[int, int], str]] = []
        self._fruitless: dict[str, _Preempted] = {}
        self._reached: dict[str, int] = {}
        self._owed: deque[int] = deque()
        self._idle_s: dict[str, float] = {}
        self._could_run: frozenset[str] = frozenset()
        """The calls that could run at the end of the last time in which nothing ran."""
        self._before: _Before | None = None
        self._free_at_start = engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        engine.watch = self._scheduled
        self._preempt = engine.scheduler._preempt_request
        engine.scheduler._preempt_request = self._preempting

    @property
    def core(self) -> Any:
        """The core of agentrt's scheduler, which is replaced when the settings change; None for
        stock's scheduler.
        """
        return getattr(self.scheduler, "core", None)

    def note(self, subject: str, text: str) -> None:
        """Record an event of a call or a program, or, if ``subject`` is empty, of the engine."""
        self.events.append((self.engine.now, self.engine.steps, subject, text))

    def sent(self, name: str, program: str, size: str) -> None:
        """Record that a program's client sends a call."""
        self.note(name, f"sent by {program}: {size}")
        self._program[name] = program
        self._since[name] = self.engine.now

    def standing(self) -> list[str]:
        """Return a line for each call in the engine, with its state."""
        calls = {} if self.core is None else self.core.calls
        lines = []
        for name, request in self.scheduler.requests.items():
            state = calls[name].state.value if name in calls else "ended"
            tokens = f"{request.num_computed_tokens} of {request.num_tokens} tokens"
            lines.append(f"{name} {state} ({request.status.name}), {tokens}")
        return lines

    # -- a step ------------------------------------------------------------------------

    def step(self) -> bool:
        """Take a step and check it. Return whether anything ran."""
        scheduler = self.scheduler
        paused = scheduler.pause_state.value != _UNPAUSED
        self._before = self._standing() if paused and self.core is not None else None
        ran = bool(self.engine.step().scheduled)
        self.figures.steps += ran
        if self._checks and self.engine.steps % _EVERY == 0:
            self.check_everything()
        return ran

    def _standing(self) -> _Before:
        calls = self.core.calls
        promotions = sum(call.promotions for call in calls.values())
        return _Before({name: call.state for name, call in calls.items()}, promotions)

    def _preempting(self, request: Any, *args: Any, **kwargs: Any) -> None:
        call = None if self.core is None else self.core.calls.get(request.request_id)
        better = "" if call is None else call.gave_way_to
        progress = request.num_output_tokens, request.num_computed_tokens
        self._preempted.append((request, progress, better))
        if self.core is None and request.resumable and request.num_in_flight_tokens:
            self.lost.add(request.request_id)  # if its turn ends now, vLLM drops it from its queues
        self._preempt(request, *args, **kwargs)

    def _scheduled(self, output: Any) -> None:
        """Check a step that was scheduled."""
        begun = list(started(output))
        for name in begun:
            self._began(name, output)
        preempted, self._preempted = self._preempted, []
        for request, progress, better in preempted:
            self._was_preempted(request, progress, better)
        self._check_sizes(output)
        if self._before is not None:
            self._owed.clear()
            requests = [request for request, *_ in preempted]
            self._check_paused(output.total_num_scheduled_tokens, begun, requests)
        elif begun:
            self._owed.clear()
        elif self._owed and self.engine.steps - self._owed[0] >= WASTED_STEPS:
            self._check_wasted()
        self._count_idle_slots(output)

    def _began(self, name: str, output: Any) -> None:
        request = self.scheduler.requests[name]
        cached = request.num_computed_tokens - output.num_scheduled_tokens[name]
        recomputed = max(0, min(self._reached.get(name, 0), request.num_tokens) - cached)
        self.figures.recomputed_tokens += recomputed
        self.note(name, f"begins with {cached} of {request.num_tokens} tokens computed")
        self._idle_s.pop(name, None)
        if name in self._since:  # the waits of a streaming session's later turns do not count
            waited_s = self.engine.now - self._since.pop(name)
            program = self._program[name]
            self.waited_s[program] = self.waited_s.get(program, 0.0) + waited_s

    def _was_preempted(self, request: Any, progress: tuple[int, int], better: str) -> None:
        """Check a preemption of a call. ``progress`` has the numbers of the call's output tokens
        and computed tokens. ``better`` is the program for which the call was preempted, or "" if it
        is not known or there is none.
        """
        name, (outputs, computed) = request.request_id, progress
        call = None if self.core is None else self.core.calls.get(name)
        better = better or ("" if call is None else call.gave_way_to)
        reason = f"for {better}" if better else "for memory"
        self.note(name, f"preempted {reason} after {computed} tokens, {outputs} of them output")
        self._reached[name], self._since[name] = computed, self.engine.now
        if not better:
            self.figures.for_memory += 1
            return
        self.figures.gave_way += 1
        self._owed.append(self.engine.steps)
        last = self._fruitless.setdefault(name, _Preempted())
        fruitless = outputs <= last.progress[0] and computed <= last.progress[1]
        last.times = last.times + 1 if fruitless else 0
        last.progress = max(last.progress[0], outputs), max(last.progress[1], computed)
        if last.times >= FRUITLESS:
            detail = (
                f"the call was preempted {last.times} times in a row for other calls, without "
                "progress"
            )
            raise Violation("kept progress", detail, name)

    def _check_sizes(self, output: Any) -> None:
        scheduler, plan = self.scheduler, self.engine.plan
        slots = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        if slots > plan.places:
            raise Violation("slots", f"{slots} calls hold slots, but only {plan.places} may")
        if output.total_num_scheduled_tokens > plan.step_tokens:
            detail = (
                f"the step has {output.total_num_scheduled_tokens} tokens; allowed are "
                f"{plan.step_tokens}"
            )
            raise Violation("step tokens", detail)

    def _check_paused(self, ran: int, begun: list[str], preempted: list[Any]) -> None:
        """Check a step of a paused engine: only calls that have begun may continue.

        vLLM may preempt such a call for memory. The call may then begin again, unless all calls are
        paused (then no call may run at all).
        """
        assert self._before is not None
        before, calls = self._before, self.core.calls
        pauses_all = self.scheduler.pause_state.value == _PAUSED_ALL
        if ran and pauses_all:
            raise Violation("paused", f"{ran} tokens are computed while all calls are paused")
        for request in preempted:
            call = calls.get(request.request_id)  # None: aborted meanwhile, in a reset of the cache
            if call is not None and call.gave_way_to:
                detail = "the call was preempted for another call"
                raise Violation("paused", detail, request.request_id)
        # A call that runs again may first load its KV cache.
        requests = self.scheduler.requests
        may_load = () if pauses_all else before.queued
        again = {
            name
            for name in {*begun, *may_load}
            if name in requests and requests[name].num_preemptions
        }
        for name in begun:
            waited = before.queued.get(name) in (CallState.WAITING, CallState.NOT_ADMITTED)
            if waited and name not in again:
                raise Violation("paused", "the call begins", name)
        for name, state in before.queued.items():
            if name in again:
                continue
            call = calls.get(name)
            if state is CallState.NOT_ADMITTED and call is not None and call.state is not state:
                raise Violation(
                    "paused",
                    f"a call that was not admitted changed its state to {call.state}",
                    name,
                )
        if sum(call.promotions for call in calls.values()) > before.promotions:
            raise Violation("paused", "a call was promoted")

    def _check_wasted(self) -> None:
        self._owed.clear()
        slots = len(self.scheduler.running) + self.scheduler.num_waiting_for_streaming_input
        loads = self.core is not None and bool(self.core.loading)
        # A call may have to wait until its own blocks have been copied to host memory.
        copies = self.engine.host is not None and self.engine.host.copying
        if slots < self.engine.plan.places and not (loads or copies):
            detail = (
                "running calls were preempted for other calls, but no call began within "
                f"{WASTED_STEPS} steps"
            )
            raise Violation("preempted in vain", detail)

    def count_copies(self) -> None:
        """Put the counts of the copies from and to host memory into the figures."""
        if (host := self.engine.host) is not None:
            figures = self.figures
            figures.loads, figures.stores = host.loads, host.stores
            figures.failed_loads, figures.left_loading = host.failed, host.aborted
            figures.full_stores = host.full

    # -- waiting calls -------------------------------------------------------------------

    def _startable(self) -> list[Any]:
        """Return the waiting requests that could run if nothing else ran.

        The list is empty if a request does not fit into the free blocks, or if vLLM reserves
        further blocks for it, as for KV cache that will arrive: no request may overtake such a
        request. It is also empty while copies from or to host memory are in flight, because calls
        wait for them.
        """
        scheduler, host = self.scheduler, self.engine.host
        if not len(scheduler.waiting) or (host is not None and host.copying):
            return []
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        startable = []
        for request in scheduler.waiting:
            tokens = request.num_tokens + 1
            kind = request.request_id.split("-")[0]
            if kind in ("large", "wait") or (
                request.status.name == "WAITING_FOR_STREAMING_REQ"
                or sum(-(-tokens // manager.block_size) for manager in managers) > free
            ):
                return []
            blocked = request.status.name in _BLOCKED or request.num_in_flight_tokens
            if not (blocked or kind == "load"):
                startable.append(request)
        return startable

    def idled(self, seconds: float) -> None:
        """Check that no call that could run waits too long, after ``seconds`` in which nothing ran
        although the engine was not paused. The seconds count only for calls that could run both
        at their beginning and at their end, because at the beginning a connector may still have
        held the blocks that a call needs.
        """
        plan, scheduler = self.engine.plan, self.scheduler
        before, self._could_run = self._could_run, frozenset()
        if scheduler.num_waiting_for_streaming_input >= plan.places or self._loads():
            return
        startable = self._startable()
        self._could_run = frozenset(request.request_id for request in startable)
        self.figures.idle_s += seconds if startable else 0.0
        if not self._checks:
            return
        prompts_s: defaultdict[str, float] = defaultdict(float)
        for request in startable:
            prompts_s[self._program[request.request_id]] += plan.alone_s(request.num_tokens, 0)
        for request in startable:
            name = request.request_id
            if name not in before:
                continue
            idle_s = self._idle_s[name] = self._idle_s.get(name, 0.0) + seconds
            limit_s = PROMPTS * prompts_s[self._program[name]] + SLACK_S
            if idle_s > limit_s:
                state = "waiting" if self.core is None else self.core.calls[name].state.value
                detail = (
                    f"the call (state {state}) could run, but waited for {idle_s:.1f} s on an idle "
                    f"engine; at most {limit_s:.1f} s are allowed"
                )
                raise Violation("idle", detail, name)

    def _loads(self) -> bool:
        """Return whether a call loads KV cache, and has loaded for a shorter time than computing
        the same tokens takes. By design, an engine is not idle then.
        """
        loading = () if self.core is None else self.core.loading
        return any(self.engine.now < call.load_due for call in loading)

    def _count_idle_slots(self, output: Any) -> None:
        scheduler, figures = self.scheduler, self.figures
        running = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        plan = self.engine.plan
        full = running >= plan.places or output.total_num_scheduled_tokens >= plan.step_tokens
        if full or not len(scheduler.waiting):
            return
        startable = [request.request_id for request in self._startable()]
        figures.idle_slots += bool(startable)
        if self.core is not None:
            states = (self.core.calls[name].state for name in startable)
            figures.kept_out += any(state is CallState.NOT_ADMITTED for state in states)

    # -- everything ----------------------------------------------------------------------

    def check_everything(self) -> None:
        """Check that each block is counted once, and that the scheduler's queues, the process table
        and vLLM's lists agree.
        """
        self._check_blocks()
        if self.core is None:
            return
        scheduler, calls = self.scheduler, self.core.calls
        live = {name for name, call in scheduler.requests.items() if not call.is_finished()}
        if live != set(calls):
            raise Violation(
                "queues",
                "only one of vLLM and the scheduler's core has the calls "
                f"{', '.join(sorted(live ^ set(calls)))}",
            )
        running = {request.request_id for request in scheduler.running}
        queued = 0
        for name, call in calls.items():
            queued += call.queued
            if (call.since is None) != (call.state is CallState.RUNNING):
                raise Violation(
                    "queues",
                    f"the call has the state {call.state}, but its wait began at {call.since}",
                    name,
                )
            if call.queued and name in running:
                raise Violation(
                    "queues", f"the call runs in vLLM, but its state is {call.state}", name
                )
            if call.program.queued.get(name) is not call:
                raise Violation("queues", "the call is not among the calls of its program", name)
        if len(self.core.queue) != queued:
            raise Violation(
                "queues", f"{queued} calls wait, but the queue counts {len(self.core.queue)}"
            )
        scheduler.table.check_integrity()

    def _check_blocks(self) -> None:
        pool = self.scheduler.kv_cache_manager.block_pool
        used = sum(block.ref_cnt > 0 and not block.is_null for block in pool.blocks)
        free = pool.free_block_queue.get_all_free_blocks()
        ids = {block.block_id for block in free}
        if not len(ids) == len(free) == pool.get_num_free_blocks():
            raise Violation(
                "blocks",
                f"the free list has {len(free)} blocks, {len(ids)} of them different, but its "
                f"counter is {pool.get_num_free_blocks()}",
            )
        if used + len(free) != self._free_at_start:
            raise Violation(
                "blocks",
                f"{used} used blocks and {len(free)} free blocks, but {self._free_at_start} "
                "blocks in total",
            )

    # -- the end -------------------------------------------------------------------------

    def check_end(self) -> None:
        """Check that nothing is left after all calls and programs have ended or timed out."""
        self.check_everything()
        scheduler = self.scheduler
        left = {
            "requests": len(scheduler.requests),
            "running calls": len(scheduler.running),
            "waiting calls": len(scheduler.waiting) + len(scheduler.kv_holding_waiting),
            "deferred calls": len(scheduler.deferred_waiting),
            "sessions that wait for input": scheduler.num_waiting_for_streaming_input,
            "deferred blocks": len(scheduler.deferred_frees),
        }
        pool = scheduler.kv_cache_manager.block_pool
        left["used blocks"] = self._free_at_start - pool.get_num_free_blocks()
        if self.core is not None:
            left["rows"] = len(scheduler.table)
            admission = self.core.admission
            left["residents"] = 0 if admission is None else len(admission.residents)
            left["protected blocks of ended programs"] = _protected_of_nobody(scheduler)
        if self.engine.host is not None:
            left |= left_on_host(scheduler)
        for place, number in left.items():
            if number:
                raise Violation("left", f"{number} {place}")
        for path, record in reachable(scheduler):
            subject = record.call_id if isinstance(record, QueuedCall) else record.program_id
            raise Violation("left", f"{subject} is in {path}", subject)


def _protected_of_nobody(scheduler: Any) -> int:
    """Count the blocks that are kept for programs that have ended. Blocks of sessions and of types
    do not count.
    """
    queue = scheduler.retention.queue
    if queue is None:
        return 0
    return sum(
        queue.protected_of(owner)
        for owner in queue.order.in_order(queue.now)
        if not (owner.shared or owner.session)
    )


def reachable(scheduler: Any) -> Iterator[tuple[str, QueuedCall | EngineProgram]]:
    """Yield the calls and programs that the scheduler's own objects still hold, each with the path
    on which it was found.
    """
    stack: list[tuple[str, Any]] = list(vars(scheduler).items())
    # vLLM's connector holds the cache policy of the host memory, so the search would not find it.
    stack += list(_fields(policy_of(scheduler)))
    seen: set[int] = set()
    while stack:
        path, thing = stack.pop()
        if isinstance(thing, QueuedCall | EngineProgram):
            yield path, thing
            continue
        if id(thing) in seen or thing is scheduler:
            continue
        seen.add(id(thing))
        stack += [(f"{path}{name}", part) for name, part in _parts(thing)]


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield "[key]", key
            yield f"[{key!r:.30}]", value
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        for part in thing:
            yield "[]", part
    elif type(thing).__module__.startswith("agentrt.") and not isinstance(thing, Enum):
        yield from _fields(thing)


def _fields(thing: Any) -> Iterator[tuple[str, Any]]:
    names = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    for name in [*names, *getattr(thing, "__dict__", {})]:
        if hasattr(thing, name):
            yield f".{name}", getattr(thing, name)
