"""Takes a recorded run's decisions again, without a model, and compares them.

A fresh scheduler over as many KV-cache blocks is told what the recorded one was told,
in the same order, at the same clock readings. Each step has to hold the same calls with
as many tokens each, find as much in the prefix cache, and preempt and end the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)
from vllm.v1.outputs import KVConnectorOutput

from agentrt.lab.engine.headless import complete, make_request, make_scheduler
from agentrt.lab.engine.host import transfer_config
from tests.lab.engine.recording import Event, Recorder, read

_COMPARED = {
    "schedule": ("scheduled", "computed", "preempted", "queued", "loads", "stores"),
    "update": ("finished",),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that was taken otherwise: ``what`` of step ``step``."""

    step: int
    what: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"step {self.step}: {self.what} was {self.recorded}, and is {self.replayed}"


@dataclass(frozen=True, slots=True)
class Replay:
    """What was compared, up to the first difference; without one, everything agrees."""

    calls: int
    steps: int
    preemptions: int
    cached_tokens: int
    loaded_tokens: int
    difference: Difference | None


def replay(recording: Path | Iterable[Event], settings: Mapping[str, Any] | None = None) -> Replay:
    """Replay a recording, or its events, and compare.

    ``settings`` change those of the scheduler, to see what another policy would have
    decided first.
    """
    events = iter(read(recording) if isinstance(recording, Path) else recording)
    return _Replayer(next(events), settings or {}).run(events)


class _Replayer:
    """Feeds events to a scheduler whose own events a `Recorder` notes."""

    def __init__(self, start: Event, settings: Mapping[str, Any]) -> None:
        from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler

        engine = start["engine"]
        self._scheduler = make_scheduler(
            ProgramScheduler,
            blocks=engine["blocks"],
            block_size=engine["block_size"],
            max_model_len=engine["max_model_len"],
            prefix_caching=engine["prefix_caching"],
            settings={**start["settings"], **settings},
            vllm=_offload(engine.get("host")),
            **engine["scheduler"],
        )
        self._first_copy = (engine.get("host") or {}).get("first_copy", 0)
        self._scheduler.steps = start["steps"]
        self._scheduler.clock = self._read_clock
        self._readings: deque[float] = deque()
        self._now = 0.0
        self._outputs: dict[int, Any] = {}
        self._got: list[Event] = []
        self._step = 0
        self.calls = self.steps = self.preemptions = 0
        self.cached_tokens = self.loaded_tokens = 0
        self._kinds: dict[str, Callable[[Event], Any]] = {
            "add": self._add,
            "schedule": self._schedule,
            "update": self._update,
            "finish": self._finish,
            "reset": lambda event: self._scheduler.reset_prefix_cache(event["running"]),
            "control": lambda event: self._scheduler.control(event["op"], event["argument"]),
            "stop": lambda event: None,
        }

    def run(self, events: Iterable[Event]) -> Replay:
        Recorder(self._scheduler, self._got.append).attach()
        difference = None
        for event in events:
            difference = self._take(event)
            if difference is not None:
                break
        counts = self.cached_tokens, self.loaded_tokens
        return Replay(self.calls, self.steps, self.preemptions, *counts, difference)

    def _take(self, event: Event) -> Difference | None:
        kind = event["event"]
        self._step = event.get("step", self._step)
        self._readings = deque(event["clock"])
        self._got.clear()
        self._kinds[kind](event)
        got: Event = next((e for e in self._got if e["event"] == kind), {})
        for what in _COMPARED.get(kind, ()):
            if what not in event:  # older recordings have no copies
                continue
            recorded, replayed = _ordered(event[what]), _ordered(got.get(what))
            if recorded != replayed:
                return Difference(self._step, what, recorded, replayed)
        self._count(event)
        return None

    def _count(self, event: Event) -> None:
        if event["event"] == "schedule" and event["scheduled"]:
            self.steps += 1
            self.preemptions += len(event["preempted"])

    def _read_clock(self) -> float:
        """The recorded readings one by one; the last stands where more are asked for."""
        if self._readings:
            self._now = self._readings.popleft()
        return self._now

    def _add(self, event: Event) -> None:
        self.calls += 1
        request = make_request(
            event["id"],
            event["prompt"],
            self._scheduler.block_size,
            salt=event["salt"],
            session=event["session"],
            max_tokens=event["max_tokens"],
            stop_token_ids=event["stop"],
            extra_args=event["extra"],
        )
        self._scheduler.add_request(request)

    def _schedule(self, event: Event) -> None:
        self._outputs[event["step"]] = self._scheduler.schedule()

    def _update(self, event: Event) -> None:
        sampled = event["sampled"]
        output = self._outputs.pop(event["step"])
        tokens = {name: sampled.get(name, []) for name in output.num_scheduled_tokens}
        for one in complete(self._scheduler, output, tokens, **self._copied(event)):
            if one.finished:
                report = (one.kv_transfer_params or {}).get("agentrt") or {}
                self.cached_tokens += report.get("cached_tokens", 0)
                self.loaded_tokens += report.get("loaded_tokens", 0)

    def _copied(self, event: Event) -> dict[str, Any]:
        """What the recorded engine's worker told of its copies."""
        if self._scheduler.connector is None:
            return {}
        copied = event["copied"]
        ended = {number - self._first_copy: 1 for number in copied["copies"]}
        return {
            "kv_connector_output": KVConnectorOutput(
                finished_recving=set(copied["received"]),
                kv_connector_worker_meta=OffloadingWorkerMetadata(ended),
            )
        }

    def _finish(self, event: Event) -> None:
        from vllm.v1.request import RequestStatus

        for request_id in event["ids"]:
            self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)


def _offload(host: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of vLLM's configuration for the recorded host memory."""
    if host is None:
        return {}
    return {"kv_transfer_config": transfer_config(host["blocks"], host["settings"])}


def _ordered(value: Any) -> Any:
    """With its order: that of a batch is a decision as well."""
    return list(value.items()) if isinstance(value, Mapping) else value
