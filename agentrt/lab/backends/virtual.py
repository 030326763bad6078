"""Virtual engines: vLLM's real scheduler in virtual time. If there are several engines, the real
router spreads the calls.

Each engine is a scheduler with its own KV cache. For a router that needs to know the caches, the
engines publish the changes of their caches as KV events. A step begins when the previous step has
ended. Calls that arrive during a step are submitted before the next step, and the results of a step
are known at its end.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.backends.base import Backend, CallEnded, ReplicaRouter
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import EngineCounts, VirtualEngine, VirtualOptions
from agentrt.lab.oracles import KNOWING, Laws, make_policy
from agentrt.lab.program import LiveProgram, Stock
from agentrt.lab.workloads.shape import CallShape, ProgramShape, cached_tokens, prompt_tokens
from agentrt.request import CallReport
from agentrt.router import RouterCall
from agentrt.router.kv_events import KVEventBatch, KVEventStream, short
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import level_ends
from agentrt.scheduler.state import EngineProgram
from agentrt.scheduler.table import ProgramTotals


@dataclass(slots=True, eq=False)
class _Replica:
    """A virtual engine and its current step. ``stepping`` is True while a step runs or is about to
    begin.

    If an engine has calls but none of them may begin yet, the engine tries again each time
    the simulation advances (`Virtual.serve`).
    """

    engine: VirtualEngine
    stream: KVEventStream = field(default_factory=KVEventStream)
    reports: dict[str, CallReport] = field(default_factory=dict)
    stepping: bool = False


class Virtual(Backend):
    """A backend with ``replicas`` equal virtual engines and a ``router``, with agentrt's scheduler
    or vLLM's own. A router that reads cached blocks needs agentrt's scheduler.

    Without a router there is a single engine. Raises `ConfigError` for an unknown router, and for a
    call that is too long for an engine.
    """

    def __init__(
        self,
        scheduling: SchedulerConfig | Stock,
        options: VirtualOptions | None = None,
        step_time: StepTimeModel | None = None,
        *,
        replicas: int = 1,
        router: str | None = None,
        scheduler_cls: type[Any] | None = None,
    ) -> None:
        self._options = options = options or VirtualOptions()
        self._step_time = step_time = step_time or StepTimeModel()
        self._stock = scheduling if isinstance(scheduling, Stock) else None
        config = scheduling.scheduling if isinstance(scheduling, Stock) else scheduling
        self._router: ReplicaRouter | None = None
        reads = False
        self._token_s = step_time.decode_s(options.max_num_seqs)
        self._left_s: dict[str, float] = {}
        self._laws = Laws(self._token_s)
        policy = None
        if isinstance(config, SchedulerConfig) and config.policy in KNOWING:
            policy = make_policy(config, self.remaining_s, self._laws)
        if router is not None:
            ends: tuple[float, ...] = ()
            if isinstance(config, SchedulerConfig) and policy is None:
                ends = level_ends(config)
            self._router = ReplicaRouter(router, replicas, options.max_num_seqs, ends)
            reads = self._router.dispatcher.router.reads_blocks
        self.replicas = [
            _Replica(
                VirtualEngine(
                    config,
                    options,
                    step_time,
                    kv_events=reads,
                    scheduler_cls=scheduler_cls,
                    policy=policy,
                )
            )
            for _ in range(replicas)
        ]
        for replica in self.replicas if reads else ():
            replica.stream.take(
                KVEventBatch.from_wire(replica.engine.scheduler.control("cached_blocks"))
            )
        self._now = 0.0
        self._serial = 0
        self._stepping: list[tuple[float, int, _Replica]] = []
        self._beginning: list[_Replica] = []
        self._still: list[_Replica] = []
        self._live: dict[str, tuple[LiveProgram, int]] = {}

    # -- time --------------------------------------------------------------------------

    def next_moment(self, arrival: float) -> float:
        still = [replica.engine.stands_until for replica in self._still]
        arrival = min([arrival, *(moment for moment in still if moment is not None)])
        if not self._stepping:
            return arrival
        end = self._stepping[0][0]
        return end if self._router is None else min(arrival, end)

    def serve(self, moment: float, ended: CallEnded) -> None:
        self._now = max(self._now, moment)
        while self._stepping and self._stepping[0][0] <= moment:
            self._end_step(heapq.heappop(self._stepping)[2], ended)
        still, self._still = self._still, []
        for replica in still:
            replica.engine.wait_until(self._now)
            self._beginning.append(replica)

    def _end_step(self, replica: _Replica, ended: CallEnded) -> None:
        if self._router is not None:
            for note in replica.engine.events:
                for ready in replica.stream.take(note):
                    view = self._router.views[self.replicas.index(replica)]
                    self._router.dispatcher.cache_changed(view, ready)
            for call_id, report in replica.reports.items():
                self._router.ended(call_id, report)
        reports, replica.reports = replica.reports, {}
        for call_id, report in reports.items():
            ended(*self._live.pop(call_id), report)
        replica.stepping = replica.engine.busy
        if replica.stepping:
            self._beginning.append(replica)

    def choose(self) -> None:
        beginning, self._beginning = self._beginning, []
        for replica in beginning:
            replica.reports = replica.engine.step()
            if replica.engine.stands_until is not None:
                self._still.append(replica)
                continue
            self._serial += 1
            heapq.heappush(self._stepping, (replica.engine.now, self._serial, replica))

    def ideal_s(self, program: ProgramShape) -> float:
        """Return the seconds from the arrival of a program to its end, if the program runs alone on
        an engine that has cached all shared prefixes.
        """
        chunk = self._options.max_num_batched_tokens

        def alone_s(call: CallShape) -> float:
            cached, prompt = cached_tokens(program, call), prompt_tokens(call)
            return self._step_time.alone_s(cached, prompt, call.output_tokens, chunk)

        return max(program.ends(alone_s)) + program.tail_s

    def remaining_s(self, row: EngineProgram) -> float:
        """Return an estimate of the seconds of service that a program still needs, for `Srpt` and
        `Lrpt`.
        """
        return self._left_s.get(row.program_id, 0.0) - (row.attained_s - row.service_s)

    def _service_s(self, program: ProgramShape, call: CallShape) -> float:
        fresh = prompt_tokens(call) - cached_tokens(program, call)
        return call.output_tokens * self._token_s + fresh * self._step_time.per_prefill_token_s

    # -- calls and programs ------------------------------------------------------------

    def expect(self, program: ProgramShape) -> None:
        self._laws.add(program)
        most = self._options.max_model_len
        for index, call in enumerate(program.calls):
            prompt = prompt_tokens(call)
            output = call.max_tokens or call.output_tokens
            needed = prompt + output
            if needed > most:
                blocks = 1 + math.ceil(needed / self._options.block_size)
                factor = math.floor(100 * most / needed) / 100
                raise ConfigError(
                    f"program {program.program_id}: call {index} has {needed} tokens ({prompt} of "
                    f"prompt, {output} of output), more than the {most} of the virtual engine; use "
                    f"at least {blocks} KV blocks (--kv-blocks), or scale the program's tokens by "
                    f"{factor:.2f} or less"
                )

    def program_started(self, live: LiveProgram) -> None:
        needs_s = sum(self._service_s(live.shape, call) for call in live.shape.calls)
        self._left_s[live.row.program_id] = needs_s

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        done_s = self._service_s(live.shape, live.shape.calls[index])
        self._left_s[live.row.program_id] -= done_s

    def submit(self, live: LiveProgram, index: int) -> None:
        call = live.call(index, 0 if self._stock is None else self._stock.priority(live, index))
        self._live[call.call_id] = live, index
        shape = live.shape.calls[index]
        request = self.replicas[0].engine.prepare(call, live.prompt(index), shape.max_tokens)
        number = 0
        if self._router is not None:
            question = RouterCall(
                program_id=call.identity.program_id,
                prompt_tokens=len(live.prompt(index)),
                level_service_s=live.path_s[index],
                kind=f"{call.identity.program_type}/{call.identity.node}",
                block_size=self._options.block_size,
                blocks=partial(_hashes, request.block_hashes),
            )
            number = self._router.send(call.call_id, question)
        replica = self.replicas[number]
        self._wake(replica)
        stops_after = None if shape.max_tokens is None else shape.output_tokens
        replica.engine.submit(request, shape.output_ids, stops_after)
        if not replica.stepping:
            replica.stepping = True
            self._beginning.append(replica)

    def _wake(self, replica: _Replica) -> None:
        """Set the clock of an idle engine to the present time, because this clock does not
        advance while the engine is idle.
        """
        if not replica.engine.busy:
            replica.engine.wait_until(self._now)

    def _had(self, program_id: str) -> list[_Replica]:
        """Return the engines that have served a program."""
        if self._router is None:
            return self.replicas
        return [self.replicas[index] for index in sorted(self._router.served(program_id))]

    def boundary(self, program_id: str, change: str, name: str) -> None:
        for replica in self._had(program_id):
            self._wake(replica)
            replica.engine.boundary(program_id, change, name)

    def program_ended(self, live: LiveProgram) -> None:
        del self._left_s[live.row.program_id]
        totals = ProgramTotals.of(live.row)
        had = self._had(totals.program_id)
        if self._router is not None:
            self._router.program_ended(totals.program_id)
        for replica in had:
            self._wake(replica)
            replica.engine.end_program(totals)

    # -- counts ------------------------------------------------------------------------

    @property
    def counts(self) -> list[EngineCounts]:
        return [replica.engine.counts for replica in self.replicas]

    @property
    def busy_s(self) -> list[float]:
        return [replica.engine.busy_s for replica in self.replicas]


def _hashes(block_hashes: Sequence[bytes]) -> list[int]:
    return [short(value) for value in block_hashes]
