"""Batches of messages from a client to its engine core, which the core reads before its next step.

vLLM's client sends each message separately, and an idle core starts a step as soon as it has the
first message. Calls that a program starts together would then be computed in two or three steps,
although one step has room for all.
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

_TIMEOUT_S = 10.0
"""Seconds that an idle core waits for each announced message, in case vLLM ever drops one."""
_OURS = "_agentrt_batches"

Message = tuple[Any, ...]
Send = Callable[[Message, bytes], Awaitable[Any]]


def send_together(llm: AsyncLLM) -> None:
    """Make an engine's client send all messages of one pass of the event loop as one batch."""
    client: Any = llm.engine_core
    client._send_input_message = Batches(client, client._send_input_message).post


class Batches:
    """The messages of the current pass of the event loop, in order."""

    def __init__(self, client: Any, send: Send) -> None:
        self._client, self._send = client, send
        self._waiting: list[tuple[Message, bytes]] = []

    def post(self, message: Message, engine: bytes) -> Awaitable[None]:
        """Queue a message for the batch of the current pass of the event loop. Raises
        `EngineDeadError` if the engine is dead.

        The returned future is already done: it does not wait until the message is sent.
        """
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
            # vLLM's core only wakes up at this message; a core with `read_together` reads the
            # count.
            count = (EngineCoreRequestType.WAKEUP.value, *self._client.encoder.encode(len(batch)))
            batch.insert(0, (count, batch[0][1]))
        with contextlib.suppress(EngineDeadError):  # vLLM raises it in the waiting calls, too
            for message, engine in batch:
                self._send(message, engine)


def read_together() -> None:
    """Make idle engine cores of this process read a whole batch before they start a step.

    A busy core does not wait for the batch: its running calls would wait, too, and before each step
    it reads all messages that have arrived.
    """
    from vllm.v1.engine import EngineCoreRequestType
    from vllm.v1.engine.core import EngineCoreProc

    ordinary = EngineCoreProc._handle_client_request
    prepare = EngineCoreProc.preprocess_add_request
    if hasattr(ordinary, _OURS):
        return

    @functools.wraps(ordinary)
    def handle(self: Any, request_type: Any, request: Any) -> None:
        ordinary(self, request_type, request)
        counts = request_type == EngineCoreRequestType.WAKEUP and isinstance(request, int)
        # Not `has_work`, which is still true after a core has reported the end of its last calls,
        # because it has yet to forget them.
        if counts and not self.scheduler.has_unfinished_requests():
            with contextlib.suppress(queue.Empty):
                for _ in range(request):
                    self._handle_client_request(*self.input_queue.get(timeout=_TIMEOUT_S))

    @functools.wraps(prepare)
    def prepared(self: Any, request: Any) -> Any:
        try:
            return prepare(self, request)
        except Exception:
            # vLLM answers the client and drops the message, whatever the error is. `handle` waits
            # for as many messages as were announced: replace the dropped message.
            self.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))
            raise

    setattr(handle, _OURS, True)
    EngineCoreProc._handle_client_request = handle
    EngineCoreProc.preprocess_add_request = prepared
