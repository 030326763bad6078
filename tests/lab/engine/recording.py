"""Notes what a scheduler was told and what it decided, event by event.

A `Recorder` stands in front of a scheduler's methods while it is on, and is not there
when it is off. What it notes is enough to take the same decisions again without a
model (`tests.lab.engine.replaying`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.errors import ConfigError
from agentrt.executors.vllm._compat.core import ask_scheduler
from agentrt.executors.vllm._compat.requests import Request
from agentrt.executors.vllm._compat.scheduling import SchedulerOutput, computed_before
from agentrt.executors.vllm.scheduler import ProgramScheduler
from agentrt.lab.engine.engines import LabEngine
from agentrt.scheduler.table import ProcessTable
from tests.lab.engine.recorded import (
    describe_request,
    dimensions,
    not_replayable,
    sampled_tokens,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

FORMAT = 2  # of 1, ends of programs came one by one, as the operation `end`
Event = Mapping[str, Any]
"""One line of a recording: plain values, ``event`` is its kind.

``start``: the engine's dimensions and the scheduler's settings. ``add``: a request,
with its prompt's token ids. ``schedule``: what a step runs, {request: tokens}, what of
it was computed before, and who was preempted. ``update``: the tokens that came out of
step ``step``, and who finished. ``finish``: requests aborted. ``control``: a client's
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
        self.events = 0
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
        self.events += 1
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
            "format": FORMAT,
            "engine": dimensions(scheduler),
            "settings": scheduler.config.to_dict(),
            "steps": scheduler.steps,
        }

    def _added(self, _: Any, request: Request) -> tuple[str, dict[str, Any]]:
        return "add", describe_request(request)

    def _scheduled(self, output: SchedulerOutput, *_: Any, **__: Any) -> tuple[str, dict[str, Any]]:
        self._open[id(output)] = self.steps
        self.steps += 1
        return "schedule", {
            "step": self.steps - 1,
            "scheduled": dict(output.num_scheduled_tokens),
            "computed": computed_before(output),
            "preempted": list(self._preempted),
        }

    def _updated(
        self, outputs: Any, output: SchedulerOutput, result: Any
    ) -> tuple[str, dict[str, Any]] | None:
        step = self._open.pop(id(output), None)
        if step is None:  # scheduled before the recording began
            return None
        return "update", {
            "step": step,
            "sampled": sampled_tokens(result),
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
        _begin_anew(scheduler)
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{str(path)!r} cannot be written: {error.strerror}") from error
        super().__init__(scheduler, self._write)

    def detach(self) -> None:
        super().detach()
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, event: Event) -> None:
        # A full disk must not stop the engine: the recording ends there, and it shows.
        # What a foreign client attached need not be JSON, and decides nothing.
        with contextlib.suppress(OSError):
            self._file.write(json.dumps(event, default=repr) + "\n")


def _begin_anew(scheduler: ProgramScheduler) -> None:
    """Forget what a replay could not know: cached prefixes, programs, a policy's memory."""
    reason = not_replayable(scheduler)
    if reason is not None:
        raise ConfigError(f"this engine cannot be recorded: {reason}")
    if scheduler.requests:
        raise ConfigError(f"{len(scheduler.requests)} calls are unfinished; wait for them")
    if not scheduler.reset_prefix_cache():
        raise ConfigError("the prefix cache cannot be emptied; wait for the engine to settle")
    scheduler.table = ProcessTable()
    scheduler.use(scheduler.config)


def record(scheduler: RecordedScheduler, path: str | None) -> dict[str, int]:
    """Record into a file at ``path``, or with None stop. What was recorded before, counted.

    Recording begins anew: the prefix cache is emptied and live programs are forgotten.
    Raises `ConfigError` while calls are unfinished.
    """
    recorder, scheduler.recorder = scheduler.recorder, None
    if recorder is not None:
        recorder.detach()
    if path is not None:
        scheduler.recorder = FileRecorder(scheduler, Path(path))
        scheduler.recorder.attach()
    return {
        "events": recorder.events if recorder else 0,
        "steps": recorder.steps if recorder else 0,
    }


class RecordedScheduler(ProgramScheduler):
    """Our scheduler with one control operation more: ``record`` into a file, None to stop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recorder: Recorder | None = None

    def control(self, op: str, argument: Any = None) -> Any:
        if op == "record":
            return record(self, argument)
        return super().control(op, argument)


def read(path: Path) -> Iterator[Event]:
    """The events of a recording. Raises `ConfigError` for a file that is none."""
    try:
        with path.open(encoding="utf-8") as lines:
            events = (json.loads(line) for line in lines)
            first: Event = next(events, {})
            if first.get("event") != "start" or first.get("format") != FORMAT:
                raise ConfigError(f"{str(path)!r} is no recording of format {FORMAT}")
            yield first
            yield from events
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{str(path)!r} is no recording: {error}") from error


class RecordedEngine(LabEngine):
    """An embedded engine whose scheduler can be recorded."""

    def _prepare(self, config: VllmConfig) -> None:
        config.scheduler_config.scheduler_cls = f"{__name__}.RecordedScheduler"

    async def record(self, path: Path | None) -> None:
        """Record the scheduler's events and decisions into a file, or with None stop."""
        await ask_scheduler(self._engine(), "record", None if path is None else str(path))
