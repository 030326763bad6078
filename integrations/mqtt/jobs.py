"""What a worker was asked to do: what runs, and what it remembers of what is over. Pure."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

import aiomqtt

from agentrt.integrations.mqtt.messages import Failure, Reply, Request

_KEPT = 10_000
_KEPT_BYTES = 64 << 20
_KEPT_S = 900.0


@dataclass(frozen=True, slots=True)
class Sender:
    """Where replies to one attempt go."""

    topic: str
    correlation: bytes

    @classmethod
    def of(cls, message: aiomqtt.Message, request: Request | None) -> Sender:
        """The properties of MQTT 5 say it, or the request of a client of MQTT 3."""
        topic = getattr(message.properties, "ResponseTopic", None)
        data = getattr(message.properties, "CorrelationData", None)
        if topic is None and request is not None:
            topic, data = request.reply_to, request.id.encode()
        return cls(topic or "", bytes(data or b""))


@dataclass(slots=True, eq=False)
class Job:
    """One call, whose attempts share its key. ``deadline`` is on the event loop's clock.

    Once it is over, ``reply`` says how, and has ``size`` bytes.
    """

    request: Request
    sender: Sender
    deadline: float | None
    task: asyncio.Task[None] | None = None
    reply: Reply | None = None
    size: int = 0
    ended_at: float | None = None
    cancelled: bool = False

    @property
    def failed(self) -> Failure | None:
        """Why it has no result, if that is so."""
        return None if self.reply is None else self.reply.error


class Jobs:
    """Jobs by key: all that run, and of those that ended the last ones, for some minutes."""

    def __init__(self) -> None:
        self.live: dict[str, Job] = {}
        self._ended: OrderedDict[str, Job] = OrderedDict()
        self._bytes = 0

    def find(self, request: Request, now: float) -> Job | None:
        """The job that this request asks for again. A new attempt at one that failed is new."""
        self._forget(now)
        known = self.live.get(request.key) or self._ended.get(request.key)
        if known is None or known.ended_at is None:
            return known
        is_over = known.failed is None and not known.cancelled
        return known if is_over or request.attempt <= known.request.attempt else None

    def begin(self, job: Job) -> None:
        """It is to run."""
        self.live[job.request.key] = job

    def end(self, job: Job, now: float) -> None:
        """It is over."""
        key = job.request.key
        if self.live.get(key) is job:
            del self.live[key]
        if (before := self._ended.pop(key, None)) is not None:
            self._bytes -= before.size
        job.ended_at = now
        self._ended[key] = job
        self._bytes += job.size
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._ended:
            oldest = next(iter(self._ended.values()))
            assert oldest.ended_at is not None
            if (
                len(self._ended) <= _KEPT
                and self._bytes <= _KEPT_BYTES
                and now - oldest.ended_at <= _KEPT_S
            ):
                return
            self._ended.popitem(last=False)
            self._bytes -= oldest.size
