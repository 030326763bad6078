"""Notes what a scheduler was told and what it decided, event by event.

A `Recorder` stands in front of a scheduler's methods while it is on, and is not there
when it is off. What it notes is enough to take the same decisions again without a
model (`tests.lab.engine.replaying`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.executors.vllm._compat.core import ask_scheduler
from agentrt.executors.vllm._compat.requests import Request, extra_args
from agentrt.executors.vllm._compat.scheduling import SchedulerOutput, computed_before
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.executors.vllm.options import HOST_TIER
from agentrt.lab.engine.engines import LabEngine
from agentrt.scheduler.state import EngineProgram
from agentrt.scheduler.table import ProcessTable

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Event = Mapping[str, Any]
"""One line of a recording: plain values, ``event`` is its kind.

``start``: the engine's dimensions and the scheduler's settings. ``add``: a request,
with its prompt's token ids. ``schedule``: what a step runs, {request: tokens}, what of
it was computed before, who was preempted, what waits then: each call's state, level and
promotions, the best first, and which copies from host memory and to it begin: the call, and their
blocks there. ``update``: the tokens that came out of step ``step``, who finished, and which copies
have ended. ``finish``: requests aborted. ``control``: a client's
message. ``reset``: the prefix cache was emptied. ``stop``: how much there was.
``clock`` are the scheduler's clock readings within an event, in seconds.
"""
_NOTED_OPS = ("ends", "boundary", "configure")


class Recorder:
    """Gives the events of ``scheduler`` to ``sink`` from `attach` to `detach`."""

    def __init__(self, scheduler: ProgramScheduler, sink: Callable[[Event], None]) -> None:
        self._scheduler = scheduler
        self._sink = sink
        self._clock = scheduler.clock
        self._readings: list[float] = []
        self._preempted: list[str] = []
        self._open: dict[int, int] = {}
        self._inside = False
        self.steps = 0

    def attach(self) -> None:
        """Begin, and note what the scheduler is."""
        scheduler = self._scheduler
        self._note("start", self._start())
        scheduler.clock = self._read_clock
        # A method looked up on the instance hides the class's; deleted, it is back.
        self._stand_before("add_request", self._added)
        self._stand_before("schedule", self._scheduled)
        self._stand_before("update_from_output", self._updated)
        self._stand_before("finish_requests", self._finished)
        self._stand_before("reset_prefix_cache", self._reset)
        self._stand_before("control", self._controlled)
        # Shadowed on this one object, while it records.
        scheduler._preempt_request = self._preempt  # type: ignore[method-assign]

    def detach(self) -> None:
        """End, and leave the scheduler as it was."""
        scheduler = self._scheduler
        scheduler.clock = self._clock
        for name in (
            *("add_request", "schedule", "update_from_output", "finish_requests"),
            *("reset_prefix_cache", "control", "_preempt_request"),
        ):
            delattr(scheduler, name)
        self._note("stop", {"steps": self.steps})

    # -- standing in front -------------------------------------------------------------

    def _stand_before(
        self, name: str, describe: Callable[..., tuple[str, dict[str, Any]] | None]
    ) -> None:
        method = getattr(self._scheduler, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # a part of the event that called it
                return method(*args, **kwargs)
            self._inside = True
            try:
                result = method(*args, **kwargs)
                described = describe(result, *args, **kwargs)
                if described is not None:
                    self._note(*described)
                return result
            finally:
                self._inside = False
                self._readings.clear()
                self._preempted.clear()

        setattr(self._scheduler, name, noted)

    def _note(self, kind: str, values: Mapping[str, Any]) -> None:
        self._sink({"event": kind, **values, "clock": list(self._readings)})

    def _read_clock(self) -> float:
        now = self._clock()
        self._readings.append(now)
        return now

    def _preempt(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._preempted.append(request.request_id)
        type(self._scheduler)._preempt_request(self._scheduler, request, *args, **kwargs)

    # -- what is noted of each event ---------------------------------------------------

    def _start(self) -> dict[str, Any]:
        scheduler = self._scheduler
        return {
            "engine": _dimensions(scheduler),
            "settings": scheduler.config.to_dict(),
            "steps": scheduler.steps,
        }

    def _added(self, _: Any, request: Request) -> tuple[str, dict[str, Any]]:
        return "add", _described(request)

    def _scheduled(self, output: SchedulerOutput, *_: Any, **__: Any) -> tuple[str, dict[str, Any]]:
        self._open[id(output)] = self.steps
        self.steps += 1
        return "schedule", {
            "step": self.steps - 1,
            "scheduled": dict(output.num_scheduled_tokens),
            "computed": computed_before(output),
            "preempted": list(self._preempted),
            "queued": [
                [call.call_id, call.state.value, call.level, call.promotions]
                for call in self._scheduler.core.in_order()
            ],
            **_copies_begun(output),
        }

    def _updated(
        self, outputs: Any, output: SchedulerOutput, result: Any
    ) -> tuple[str, dict[str, Any]] | None:
        step = self._open.pop(id(output), None)
        if step is None:  # scheduled before the recording began
            return None
        return "update", {
            "step": step,
            "sampled": _sampled_tokens(result),
            "copied": _copies_ended(result),
            "finished": [
                one.request_id
                for engine in outputs.values()
                for one in engine.outputs
                if one.finished
            ],
        }

    def _finished(self, requests: Any, *_: Any, **__: Any) -> tuple[str, dict[str, Any]]:
        # vLLM goes through a set, in whatever order: what counts is in which it did.
        return "finish", {"ids": [request.request_id for request in requests]}

    def _reset(self, done: bool, *args: Any, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        return "reset", {"running": bool((*args, *kwargs.values(), False)[0])}

    def _controlled(
        self, _: Any, op: str, argument: Any = None
    ) -> tuple[str, dict[str, Any]] | None:
        return ("control", {"op": op, "argument": argument}) if op in _NOTED_OPS else None


class FileRecorder(Recorder):
    """A recorder into a JSONL file, from an engine without calls and with an empty cache."""

    def __init__(self, scheduler: ProgramScheduler, path: Path) -> None:
        # A replay could not know of cached prefixes, programs, a policy's memory.
        assert not scheduler.requests
        assert scheduler.reset_prefix_cache()
        assert scheduler.reset_connector_cache()
        scheduler.table = ProcessTable(EngineProgram)
        scheduler.use(scheduler.config)
        self._file = path.open("w", encoding="utf-8")
        super().__init__(scheduler, self._write)

    def detach(self) -> None:
        super().detach()
        self._file.close()

    def _write(self, event: Event) -> None:
        self._file.write(json.dumps(event) + "\n")


class RecordedScheduler(ProgramScheduler):
    """Our scheduler with one control operation more: ``record`` into a file, None to stop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recorder: Recorder | None = None

    def control(self, op: str, argument: Any = None) -> Any:
        if op != "record":
            return super().control(op, argument)
        if self.recorder is not None:
            self.recorder.detach()
        self.recorder = None if argument is None else FileRecorder(self, Path(argument))
        if self.recorder is not None:
            self.recorder.attach()
        return None


def read(path: Path) -> Iterator[Event]:
    """The events of a recording."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


class RecordedEngine(LabEngine):
    """An embedded engine whose scheduler can be recorded."""

    def _prepare(self, config: VllmConfig) -> None:
        config.scheduler_config.scheduler_cls = f"{__name__}.RecordedScheduler"

    async def record(self, path: Path | None) -> None:
        """Record the scheduler's events and decisions into a file, or with None stop."""
        await ask_scheduler(self._engine(), "record", None if path is None else str(path))


# -- as plain values -------------------------------------------------------------------


def _dimensions(scheduler: ProgramScheduler) -> dict[str, Any]:
    """The engine's sizes and settings that its decisions depend on."""
    config = scheduler.scheduler_config
    settings = {f.name: getattr(config, f.name) for f in fields(config)}
    return {
        "blocks": scheduler.kv_cache_config.num_blocks,
        "block_size": scheduler.block_size,
        "max_model_len": scheduler.max_model_len,
        "prefix_caching": scheduler.cache_config.enable_prefix_caching,
        "host": _host_of(scheduler),
        "scheduler": {
            name: value
            for name, value in settings.items()
            if name != "scheduler_cls" and isinstance(value, bool | int | float | str | None)
        },
    }


def _host_of(scheduler: ProgramScheduler) -> dict[str, Any] | None:
    """The blocks of host memory, and the settings of its eviction; None without host memory."""
    if scheduler.connector is None:
        return None
    half = scheduler.connector.connector_scheduler
    settings = scheduler.vllm_config.kv_transfer_config.kv_connector_extra_config
    return {
        "blocks": half.manager._num_chunks,
        "settings": {name: settings[name] for name in HOST_TIER if name in settings},
        "first_copy": half._job_counter,
    }


def _copies_begun(output: SchedulerOutput) -> dict[str, Any]:
    """The copies that begin with a step: [call, blocks in host memory] for each."""
    metadata = output.kv_connector_metadata
    if metadata is None:
        return {"loads": [], "stores": []}
    loads, stores = metadata.load_jobs.values(), metadata.store_jobs.values()
    return {
        "loads": [[job.req_id, [*map(int, job.src_spec.block_ids)]] for job in loads],
        "stores": [[job.req_id, [*map(int, job.dst_spec.block_ids)]] for job in stores],
    }


def _copies_ended(result: Any) -> dict[str, Any]:
    """The calls whose loads ended, and the numbers of all copies that ended."""
    output = result.kv_connector_output
    if output is None:
        return {"received": [], "copies": []}
    meta = output.kv_connector_worker_meta
    return {
        "received": sorted(output.finished_recving or ()),
        "copies": sorted(() if meta is None else meta.completed_jobs),
    }


def _sampled_tokens(result: Any) -> dict[str, list[int]]:
    """The tokens that a step's model output holds for each request."""
    sampled = result.sampled_token_ids
    return {
        request_id: [int(token) for token in sampled[index]]
        for request_id, index in result.req_id_to_index.items()
        if sampled and len(sampled[index])
    }


def _described(request: Request) -> dict[str, Any]:
    """All of a request that decides how it is scheduled."""
    params: Any = request.sampling_params
    eos = params.eos_token_id
    return {
        "id": request.request_id,
        "prompt": list(request.prompt_token_ids or ()),
        "max_tokens": request.max_tokens,
        "stop": sorted({*(params.stop_token_ids or ()), *(() if eos is None else (eos,))}),
        "extra": extra_args(request),
        "session": request.session_id,
        "salt": request.cache_salt,
    }
