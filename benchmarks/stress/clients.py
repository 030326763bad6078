"""Clients that run the programs of a plan against an engine, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from zlib import crc32

from vllm import PoolingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from agentrt.errors import ConfigError
from agentrt.lab.engine.headless import make_request
from benchmarks.stress.engine import STALL_S, StressEngine
from benchmarks.stress.faults import Violation
from benchmarks.stress.plans import (
    HEAD,
    Branches,
    CallPlan,
    CasePlan,
    Disturbance,
    Gap,
    ProgramPlan,
    Stage,
)
from benchmarks.stress.runner import STOP, Text
from benchmarks.stress.watch import Watch

Context = list[int]
Then = Callable[[Context, bool], None]
"""The type of a function that is called when a call or a list of stages has ended. The arguments
are the context, and whether the call succeeded; for a list of stages, always True.
"""

TIMES_ALONE, SPARE_S = 4.0, 60.0
"""After the last arrival, all programs must end within `TIMES_ALONE` times the sum of the times
that the calls take alone, plus the clients' own time, plus `SPARE_S` seconds (plus `STALL_S`, if
the engine stalls).
"""
_FIRST_TICK_S, _LONGEST_TICK_S = 0.05, 1.0
"""The first and the longest step of the clock (seconds) while calls wait and nothing runs. The
steps double until the longest.
"""
_STEPS_TO_STALE = 600
"""The number of steps within which an engine looks for programs that have timed out."""
_PROBES = 3
"""The number of steps that are taken each time that a paused engine has nothing to do."""


class Grammar:
    """A compiled grammar that accepts all tokens or none."""

    def __init__(self, accepts: bool) -> None:
        self._accepts = accepts

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return self._accepts


@dataclass(slots=True)
class _Live:
    """A running program: its calls in the engine, and the number of calls that the program still
    has to make.
    """

    plan: ProgramPlan
    left: int
    active: dict[str, None] = field(default_factory=dict)
    over: bool = False


@dataclass(slots=True)
class _Call:
    """A call in the engine."""

    plan: CallPlan
    program: _Live
    prompt: list[int]
    then: Then
    request: Any
    tokens: list[int] = field(default_factory=list)
    turns: int = 0


class Clients:
    """The clients of a case. ``run`` runs all programs to their end, and raises `Violation` if an
    invariant is violated.

    ``ours`` is False for vLLM's own scheduler, which gets no messages about programs.
    """

    def __init__(self, engine: StressEngine, plan: CasePlan, watch: Watch, *, ours: bool) -> None:
        self.engine, self.plan, self.watch, self.ours = engine, plan, watch, ours
        self.scheduler = engine.scheduler
        self.calls: dict[str, _Call] = {}
        self.ended_at: dict[str, float] = {}
        """The time at which each program's stages ended."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._alone_s = self._apart_s = 0.0
        self._sessions: dict[str, Context] = {}
        self._draining: list[float] = []
        self._last_arrival = max(program.arrives for program in plan.programs)
        engine.deliver = self._deliver
        for program in plan.programs:
            self._at(program.arrives, partial(self._begin, program))
        for disturbance in plan.disturbances:
            self._at(disturbance.at, partial(self._disturb, disturbance))

    # -- time --------------------------------------------------------------------------

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), act))

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._apart_s += seconds
        self._at(self.engine.now + seconds, act)

    def run(self) -> None:
        """Run until all clients have finished and the engine has nothing to do."""
        engine, tick_s = self.engine, _FIRST_TICK_S
        while True:
            while self._events and self._events[0][0] <= engine.now:
                heapq.heappop(self._events)[2]()
            if self._is_paused():
                self._wait_for_the_pause()
                continue
            if not (self.scheduler.has_requests() or engine.busy):
                if self._events:
                    engine.now = self._events[0][0]
                elif not self._give_up_lost():
                    break
                continue
            if self.watch.step() or engine.busy:
                tick_s = _FIRST_TICK_S
            elif engine.host is not None and engine.host.copying:
                self._idle(self.plan.engine.base_s)  # vLLM polls its copies
            else:
                self._idle(tick_s)
                tick_s = min(2 * tick_s, _LONGEST_TICK_S)
            self._check_progress()
        for name in self.calls:
            detail = "the call has not ended, but the engine has nothing to do"
            raise Violation("progress", detail, name)

    def _give_up_lost(self) -> bool:
        """Abort the streaming sessions that vLLM itself has lost. Return whether there are any."""
        lost = self.watch.lost & self.calls.keys()
        for name in sorted(lost):
            self._abort(name)
        return bool(lost)

    def settle(self) -> None:
        """Wait until the engine has dropped the programs that have timed out."""
        scheduler, numbers = self.scheduler, count(1)
        if not self.ours or not len(scheduler.table):
            return
        away_s = scheduler.config.stale_after_s + 1.0
        self.engine.now += away_s
        self._apart_s += away_s
        until = self.engine.steps + _STEPS_TO_STALE
        while len(scheduler.table) and self.engine.steps < until:
            name = f"plain-last-{next(numbers)}"
            self._at(self.engine.now, partial(self._submit_alone, name))
            self.run()

    def _submit_alone(self, name: str) -> None:
        call = CallPlan(name, keeps=0.0, fresh=4, output=64)
        live = _Live(ProgramPlan(name, "last", (call,), says="nothing"), 1)
        self._submit(live, call, [], lambda context, well: None)

    def _idle(self, tick_s: float) -> None:
        """Advance the time while calls wait and nothing runs."""
        before = self.engine.now
        until = before + tick_s
        if self._events:
            until = min(until, self._events[0][0])
        self.engine.now = until
        self.watch.idled(until - before)

    def _check_progress(self) -> None:
        stalled_s = STALL_S if self.plan.engine.stalled is not None else 0.0
        limit_s = TIMES_ALONE * self._alone_s + self._apart_s + stalled_s + SPARE_S
        latest_s = self._last_arrival + limit_s
        if self.engine.now > latest_s:
            calls = ", ".join(
                f"{name} ({call.request.status.name})" for name, call in self.calls.items()
            )
            detail = (
                f"at {self.engine.now:.0f} s, the programs have not ended; the latest allowed time "
                f"is {latest_s:.0f} s; calls in the engine: {calls or 'none'}"
            )
            raise Violation("progress", detail, next(iter(self.calls), ""))

    # -- programs ----------------------------------------------------------------------

    def _begin(self, plan: ProgramPlan) -> None:
        live = _Live(plan, sum(1 for _ in plan.calls))
        context = [100 + crc32(plan.type.encode()) % 50] * HEAD
        if plan.session is not None:
            context = self._sessions.get(plan.session, context)
        self.watch.note(plan.name, f"begins: {plan.type}, {plan.says}, session {plan.session}")
        if plan.cancelled_s is not None:
            self._after(plan.cancelled_s, lambda: self._cancel(live))
        self._go_on(live, plan.stages, context, lambda context, well: self._finish(live, context))

    def _go_on(self, live: _Live, stages: Sequence[Stage], context: Context, then: Then) -> None:
        """Run the stages, one after the other."""
        if not stages or live.over:
            then(context, True)
            return
        stage, rest = stages[0], stages[1:]

        def next_stage(context: Context, well: bool) -> None:
            self._go_on(live, rest if well else (), context, then)

        if isinstance(stage, CallPlan):
            self._submit(live, stage, context, next_stage)
        elif isinstance(stage, Gap):
            self._leave(live, stage, context, next_stage)
        else:
            self._fork(live, stage, context, next_stage)

    def _fork(self, live: _Live, stage: Branches, context: Context, then: Then) -> None:
        running = len(stage.branches)

        def joined(end: Context, well: bool) -> None:
            nonlocal running
            running -= 1
            if not running:
                then(context, True)

        for branch in stage.branches:
            self._go_on(live, branch, context, joined)

    def _leave(self, live: _Live, gap: Gap, context: Context, then: Then) -> None:
        begin, end = ("human", "answered") if gap.kind == "human" else ("tool", "returned")
        if gap.reported:
            self._report(live, begin, gap.name)

        def back() -> None:
            if gap.reported:
                self._report(live, end, gap.name)
            then(context, True)

        self._after(gap.seconds, back)

    def _report(self, live: _Live, event: str, name: str) -> None:
        if not live.over:
            self.watch.note(live.plan.name, f"reports {event} {name}")
            self._control("boundary", [(live.plan.name, event, name)])

    def _finish(self, live: _Live, context: Context) -> None:
        """Record that a program's stages have ended. Unless the program was cancelled, also report
        the end to the engine in the way that the plan states.
        """
        plan = live.plan
        self.ended_at[plan.name] = self.engine.now
        if plan.session is not None:
            self._sessions[plan.session] = context
        if not live.over:
            live.over = True
            self._end(plan)

    def _end(self, plan: ProgramPlan) -> None:
        self.watch.note(plan.name, f"is over (its client reports the end: {plan.end})")
        if plan.end != "silent":
            for _ in range(2 if plan.end == "twice" else 1):
                self._control("ends", [plan.name])

    def _cancel(self, live: _Live) -> None:
        """Abort all calls of a program, and report the end of the program: before the aborts if the
        plan's end is ``early``, and otherwise after them.
        """
        if live.over:
            return
        live.over = True
        names = list(live.active)
        if live.plan.end == "early":
            self._end(live.plan)
        for name in names:
            self._abort(name)
        if live.plan.end != "early":
            self._end(live.plan)

    def _control(self, op: str, argument: Any) -> None:
        if self.ours:
            self.scheduler.control(op, argument)

    # -- calls -------------------------------------------------------------------------

    def _submit(self, live: _Live, plan: CallPlan, context: Context, then: Then) -> None:
        engine = self.plan.engine
        prompt = context[: int(len(context) * plan.keeps)]
        room = 0 if plan.too_large else max(0, engine.longest - plan.fresh - plan.output)
        prompt = prompt[:room] + _words(plan.name, plan.fresh)
        request = self._request(live, plan, prompt)
        call = _Call(plan, live, prompt, then, request)
        self.calls[plan.name] = call
        live.active[plan.name] = None
        live.left -= 1
        self._expect(plan, prompt)
        if not plan.too_large:
            self._alone_s += engine.alone_s(len(prompt), plan.output)
        self.watch.sent(plan.name, live.plan.name, f"{len(prompt)} + {plan.output} tokens")
        self.scheduler.add_request(request)
        if plan.gives_up_s is not None:
            self._after(plan.gives_up_s, lambda: self._give_up(plan.name))
        if live.plan.end == "early" and not live.left:
            self._control("ends", [live.plan.name])

    def _expect(self, plan: CallPlan, prompt: list[int]) -> None:
        """Give the model runner the tokens that the request must get."""
        stops_at = -1 if plan.stops_at is None else len(prompt) + plan.stops_at
        flavour = crc32(f"{plan.salt} {plan.lora}".encode()) if plan.salt or plan.lora else 0
        text = Text(plan.name, list(prompt), len(prompt), flavour, stops_at)
        runner = self.engine.runner
        runner.texts[plan.name] = text
        if plan.kind == "pooling":
            runner.pooling.add(plan.name)

    def _request(self, live: _Live, plan: CallPlan, prompt: list[int]) -> Request:
        session, extra = _identity(live.plan, plan)
        params: dict[str, Any] = {"max_tokens": plan.output, "extra_args": extra}
        if plan.stops_at is None:
            params["ignore_eos"] = True
        else:
            params["stop_token_ids"] = [STOP]
        if plan.kind == "grammar":
            params["structured_outputs"] = StructuredOutputsParams(json={"type": "object"})
        request = make_request(
            plan.name,
            prompt,
            self.scheduler.block_size,
            salt=plan.salt,
            session=session,
            priority=plan.priority,
            resumable=plan.kind == "stream",
            lora=LoRARequest(f"lora{plan.lora}", plan.lora, "/nowhere") if plan.lora else None,
            pooling=PoolingParams(task="embed") if plan.kind == "pooling" else None,
            **params,
        )
        request.arrival_time = self.engine.now
        if plan.kind == "grammar":
            self._compile(plan, request)
        return request

    def _compile(self, plan: CallPlan, request: Request) -> None:
        compiling: Future[Grammar] = Future()
        assert request.structured_output_request is not None
        request.structured_output_request.grammar = compiling

        def compiled() -> None:
            effect = plan.grammar_ends or "accepts"
            self.watch.note(plan.name, f"the grammar of the call is compiled ({effect})")
            if plan.grammar_ends == "error":
                compiling.set_exception(ValueError("no grammar"))
            else:
                compiling.set_result(Grammar(plan.grammar_ends != "rejects"))

        if plan.grammar_s is not None:
            self._after(plan.grammar_s, compiled)

    def _give_up(self, name: str) -> None:
        if name in self.calls:
            self._abort(name)

    def _abort(self, name: str) -> None:
        call = self.calls[name]
        self.watch.note(name, "aborted by its client")
        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        self._ended(call, well=False)

    # -- outputs of the engine -------------------------------------------------------------

    def _deliver(self, output: Any) -> None:
        call = self.calls.get(output.request_id)
        if call is None:
            raise Violation("output", "the call has output after its end", output.request_id)
        call.tokens += output.new_token_ids
        if not output.finished:
            return
        if call.request.is_finished():
            self._check_answer(call, str(output.finish_reason))
            self._ended(call, well=str(output.finish_reason) in ("stop", "length"))
        else:
            self._turn_ended(call)

    def _check_answer(self, call: _Call, reason: str) -> None:
        plan = call.plan
        self.watch.note(plan.name, f"ends: {reason}, {len(call.tokens)} tokens")
        if plan.kind == "stream":
            return
        engine = self.plan.engine
        lost = (plan.kind == "wait" and engine.connector == "fail") or engine.host_fails == "fail"
        well = reason in ("stop", "length")
        if not (well or lost or plan.grammar_ends) or (well and plan.grammar_ends):
            raise Violation("output", f"the call ends with {reason!r}", plan.name)
        if not well:
            return
        text = self.engine.runner.texts[plan.name]
        length = 0 if plan.kind == "pooling" else plan.output
        text.reach(len(call.prompt) + length)
        right = text.tokens[len(call.prompt) : len(call.prompt) + length]
        if STOP in right:
            right = right[: right.index(STOP) + 1]
        if call.tokens != right:
            detail = f"the call got the tokens {call.tokens} instead of {right}"
            raise Violation("output", detail, plan.name)

    def _ended(self, call: _Call, *, well: bool) -> None:
        name = call.plan.name
        del self.calls[name]
        call.program.active.pop(name, None)
        context = call.prompt + call.tokens if well else call.prompt
        # The call's program continues after the scheduler has finished this step.
        self._at(self.engine.now, lambda: call.then(context, well))

    def _turn_ended(self, call: _Call) -> None:
        """Handle an answer in a streaming session: after a pause, send the session's next turn, or
        close the session.
        """
        turns, nth = call.plan.turns, call.turns
        call.turns += 1
        self.watch.note(call.plan.name, f"ends its turn {nth}")
        if nth < len(turns):
            pause_s, fresh, output = turns[nth]
            self._after(pause_s, lambda: self._next_turn(call, nth, fresh, output))
        else:
            self._at(self.engine.now, lambda: self._close(call))

    def _next_turn(self, call: _Call, nth: int, fresh: int, output: int) -> None:
        if call.plan.name not in self.calls:
            return
        self._alone_s += self.plan.engine.alone_s(fresh, output)
        self.watch.note(call.plan.name, f"sends its turn {nth + 1}")
        chunk = make_request(
            call.plan.name,
            _words(f"{call.plan.name} {nth}", fresh),
            self.scheduler.block_size,
            resumable=True,
            max_tokens=output,
            ignore_eos=True,
            extra_args=_identity(call.program.plan, call.plan)[1],
        )
        self.scheduler.add_request(chunk)

    def _close(self, call: _Call) -> None:
        """Tell the engine that a streaming session has no further input."""
        name = call.plan.name
        if name not in self.calls:
            return
        self.watch.note(name, "its client closes the session")
        end = make_request(name, [0], self.scheduler.block_size, max_tokens=1)
        self.scheduler.add_request(end)
        if call.request.is_finished():
            self._ended(call, well=True)

    # -- disturbances ------------------------------------------------------------------

    def _disturb(self, event: Disturbance) -> None:
        scheduler = self.scheduler
        self.watch.note("", f"disturbance: {event.kind} {event.seconds:.2f} s")
        if event.kind == "messages":
            for op in ("tool", "returned", "human", "answered", "dropped"):
                self._control("boundary", [("nobody", op, "x")])
            self._control("ends", ["nobody"])
            self._control("snapshot", None)
            self._control("cached_blocks", None)
            self._control("report", "nobody")
        elif event.kind == "configure":
            with suppress(ConfigError):
                self._control("configure", self.plan.settings)
        elif event.kind in ("reset", "restart"):
            # If sessions that wait for input hold blocks, vLLM's restart raises an error.
            restart = event.kind == "restart" and not len(scheduler.kv_holding_waiting)
            scheduler.reset_prefix_cache(restart)
        else:
            pause = PauseState.PAUSED_ALL if event.kind == "all" else PauseState.PAUSED_NEW
            scheduler.set_pause_state(pause)
            if event.kind == "drain":
                self._draining.append(event.seconds)
            else:
                self._after(event.seconds, self._resume)

    def _resume(self) -> None:
        if not self._draining:
            self.watch.note("", "resumed")
            self.scheduler.set_pause_state(PauseState.UNPAUSED)

    def _is_paused(self) -> bool:
        return self.scheduler.pause_state is not PauseState.UNPAUSED

    def _wait_for_the_pause(self) -> None:
        """Take the steps that a paused engine may take, or wait for the next event."""
        engine, scheduler = self.engine, self.scheduler
        if scheduler.has_unfinished_requests() or engine.busy:
            if not (self.watch.step() or engine.busy):
                self._idle_paused()
            self._check_progress()
            return
        if self._draining:
            held_s = max(self._draining)
            self._draining.clear()
            self._after(held_s, self._resume)
        for _ in range(_PROBES):
            self.watch.step()
        if not self._events:
            raise Violation(
                "progress", "paused for ever: this is a mistake of the stress test itself"
            )
        engine.now = max(engine.now, self._events[0][0])

    def _idle_paused(self) -> None:
        before = self.engine.now
        until = before + _FIRST_TICK_S
        self.engine.now = min(until, self._events[0][0]) if self._events else until


def _words(name: str, length: int) -> list[int]:
    """Return ``length`` tokens that depend on ``name``. Other names seldom have the same tokens."""
    seed = crc32(name.encode())
    return [200 + (seed + 7919 * position) % 9973 for position in range(length)]


def _identity(program: ProgramPlan, call: CallPlan) -> tuple[str | None, dict[str, Any] | None]:
    """Return vLLM's session id and the extra arguments by which a call names its program."""
    if call.kind == "pooling" or program.says == "session":
        return (program.name if program.says != "nothing" else None), None
    if program.says == "flat":
        return None, {
            "agentrt_program": program.name,
            "agentrt_type": program.type,
            "agentrt_tenant": program.tenant,
        }
    if program.says == "nothing":
        return None, None
    values = {
        "call_id": call.name,
        "program_id": program.name,
        "program_type": program.type,
        "tenant": program.tenant,
        "session": program.session,
        "node": call.node,
        "size_hint": call.size_hint,
        "report": True,
    }
    return None, {"agentrt": values}
