"""Messages that a client sends to its engine core at once, read before the core's next step.

vLLM's client sends each by itself, and an idle core takes a step as soon as it has the first: what
a program forks would be computed in two steps or three where there is room in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_MOST_S = 10.0
"""How long an idle core waits for a message whose number it has, should vLLM ever drop one."""
_OURS = "_agentrt_batches"

Message = tuple[Any, ...]
Send = Callable[[Message, bytes], Awaitable[Any]]


def send_together(llm: AsyncLLM) -> None:
    """Have an engine's client send what comes up in one pass of the event loop as one batch."""
    client: Any = llm.engine_core
    client._send_input_message = Batches(client, client._send_input_message).post


class Batches:
    """What waits for the end of the event loop's pass, in its order."""

    def __init__(self, client: Any, send: Send) -> None:
        self._client, self._send = client, send
        self._waiting: list[tuple[Message, bytes]] = []

    def post(self, message: Message, engine: bytes) -> Awaitable[None]:
        """Send a message with others. Raises vLLM's error where the engine is dead."""
        self._client.ensure_alive()
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((message, engine))
        (sent := loop.create_future()).set_result(None)
        return sent

    def _flush(self) -> None:
        from vllm.v1.engine import EngineCoreRequestType
        from vllm.v1.engine.exceptions import EngineDeadError

        batch, self._waiting = self._waiting, []
        if len(batch) > 1:
            # A core does nothing with it but to wake up; ours reads the number.
            count = (EngineCoreRequestType.WAKEUP.value, *self._client.encoder.encode(len(batch)))
            batch.insert(0, (count, batch[0][1]))
        with contextlib.suppress(EngineDeadError):  # whoever waits for an answer is told
            for message, engine in batch:
                self._send(message, engine)


def read_together() -> None:
    """Let idle engine cores of this process read a batch to its end before they take a step.

    A busy one finds what came during its last step, and does not keep its running calls waiting.
    """
    from vllm.v1.engine import EngineCoreRequestType
    from vllm.v1.engine.core import EngineCoreProc

    ordinary = EngineCoreProc._handle_client_request
    unreadable = EngineCoreProc._handle_request_preproc_error
    if hasattr(ordinary, _OURS):
        return

    @functools.wraps(ordinary)
    def handle(self: Any, request_type: Any, request: Any) -> None:
        ordinary(self, request_type, request)
        counts = request_type == EngineCoreRequestType.WAKEUP and isinstance(request, int)
        # Not `has_work`: a core still has to forget the calls that have ended when it told of them.
        if counts and not self.scheduler.has_unfinished_requests():
            with contextlib.suppress(queue.Empty):
                for _ in range(request):
                    self._handle_client_request(*self.input_queue.get(timeout=_MOST_S))

    @functools.wraps(unreadable)
    def dropped(self: Any, request: Any) -> None:
        unreadable(self, request)
        self.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))  # in its place

    setattr(handle, _OURS, True)
    EngineCoreProc._handle_client_request = handle
    EngineCoreProc._handle_request_preproc_error = dropped
