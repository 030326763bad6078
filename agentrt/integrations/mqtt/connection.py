"""A connection to a broker that reconnects whenever it breaks, and owns all its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from agentrt import tracking
from agentrt.errors import ToolUnavailableError
from agentrt.integrations._compat.aiomqtt import (
    connect,
    deliver,
    end_session,
    properties,
    publish_now,
)
from agentrt.integrations.mqtt.broker import Broker, Outgoing
from agentrt.steady import backoff_s

log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_GOODBYE_S = 2.0
_QUICK_S, _SUSPICIOUS = 5.0, 3
"""The first value is a time in seconds: a break of a connection within this time is suspicious. The
second value is a number of breaks in a row: from this number on, a suspicious break is logged as a
warning.
"""
_FIRST_TAKEN_S, _LONGEST_TAKEN_S = 1.0, 60.0
"""First and longest pause, in seconds, if another client has the same id: each client that connects
closes the other's connection.
"""
_STEADY_S = 2 * _LONGEST_TAKEN_S
"""Seconds after which a connection counts as stable. If a stable connection breaks, the pauses
begin with the shortest again.
"""
_TAKEN_OVER = 142
_NO_REASON = (0, 128)
"""Reason codes of MQTT 5 that say nothing: a normal end, and an unspecified error. paho also makes
the latter for a connection that breaks without a word.
"""
_REFUSED = (134, 135)
"""Reason codes of MQTT 5: bad user name or password, and not authorized."""
NO_DELAY = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
"""The socket option that disables Nagle's algorithm, which would add 40 ms to each round trip."""


def _reason_of(error: BaseException | None) -> ReasonCode | None:
    """Return the reason code with which a broker closed a connection; None if it gave no reason."""
    while error is not None:
        code = getattr(error, "rc", None)
        if isinstance(code, ReasonCode) and code.value not in _NO_REASON:
            return code
        error = error.__cause__
    return None


def _was_taken(error: BaseException | None) -> bool:
    """Return whether a broker closed a connection because another client has the same id."""
    reason = _reason_of(error)
    return reason is not None and reason.value == _TAKEN_OVER


class _LogForwarder(logging.Handler):
    """A log handler that calls ``on_line`` with each logged line."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        super().__init__()
        self._on_line = on_line

    def emit(self, record: logging.LogRecord) -> None:
        self._on_line(record.getMessage())


class Connection:
    """A connection of one client to a broker, which is restored whenever it breaks.

    ``on_connect`` is awaited on each new connection before anything else is sent; ``on_up`` is
    called after ``on_connect``. ``on_message`` is called with each message and must be fast. While
    the connection is broken, the broker keeps messages for ``session_s`` seconds; closing the
    connection ends the session. ``will`` is the message that the broker publishes if this client
    disappears without disconnecting and does not return within ``session_s``. ``sleep`` waits some
    seconds before reconnecting.
    """

    def __init__(
        self,
        broker: Broker,
        identifier: str,
        *,
        on_message: Callable[[aiomqtt.Message], None],
        on_connect: Callable[[aiomqtt.Client], Coroutine[Any, Any, None]],
        on_up: Callable[[], None] = lambda: None,
        will: Outgoing | None = None,
        session_s: int = 0,
        keepalive: int = 15,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self.broker = broker
        self.identifier = identifier
        self.refused = False
        self._largest: int | None = None  # packet that the broker of the last connection accepts
        self._sleep = sleep
        self._on_message, self._on_connect, self._on_up = on_message, on_connect, on_up
        self._will, self._session_s, self._keepalive = will, session_s, keepalive
        self._client: aiomqtt.Client | None = None
        self._newest: aiomqtt.Client | None = None
        self._kept: dict[int, Outgoing] = {}
        self._numbers = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._owner: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._tried = asyncio.Event()
        self._idle = asyncio.Event()
        self._fault, self._logged = "the broker has not answered yet", ""
        self._breaks, self._has_warned = 0, False
        self._taken = (
            f"another client has connected with the same id {identifier!r} and taken over the "
            "connection; give each client its own id"
        )
        self._library = logging.Logger("aiomqtt", logging.ERROR)  # noqa: LOG001 - one per connection
        self._library.addHandler(_LogForwarder(self._hint))

    def open(self) -> None:
        """Start connecting, without waiting for the connection."""
        with tracking.outside():
            self._owner = asyncio.create_task(self._run(), name=f"mqtt/{self.identifier}")

    async def finish(self) -> None:
        """Close the connection after the broker has confirmed all kept messages and requests, or
        after two seconds. If there is no connection now, drop the kept messages at once.
        """
        if self.is_up:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await self.sent()
                    if self._tasks:
                        await asyncio.wait(self._tasks)
        await self.close()

    async def close(self) -> None:
        """Disconnect, and end all tasks. Idempotent."""
        owner, self._owner = self._owner, None
        if owner is not None:
            if self._newest is not None:
                end_session(self._newest)
            owner.cancel()
            await asyncio.wait([owner])

    @property
    def is_up(self) -> bool:
        """Whether there is a connection now."""
        return self._client is not None

    async def ready(self, within: float) -> None:
        """Wait for a connection for at most ``within`` seconds. Raises `ToolUnavailableError` if
        there is none by then, or if the broker has refused the connection.
        """
        if self._up.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._tried.wait()
                if not self.refused:
                    await self._up.wait()
        if not self._up.is_set():
            raise ToolUnavailableError(f"broker {self.broker}: {self._fault}")

    def send(self, message: Outgoing, *, keep: bool = True) -> None:
        """Publish a message without waiting. With ``keep``, the message is sent again on every new
        connection until the broker has confirmed it; otherwise it is sent only if there is a
        connection now. A message that is too large for the broker (`check_size`) is dropped, with a
        warning.
        """
        number = next(self._numbers)
        if keep:
            self._kept[number] = message
        if self._client is not None:
            self._publish(self._client, number, message)

    def check_size(self, message: Outgoing) -> None:
        """Raise `ValueError` for a message that is larger than the broker accepts. The broker would
        close the connection, and again after each reconnection if the message is sent again.
        """
        if self._largest is not None and (size := message.size()) > self._largest:
            raise ValueError(
                f"the message has {size:,} bytes; the broker accepts at most {self._largest:,}"
            )

    async def ask(
        self, within: float, request: Callable[[aiomqtt.Client], Coroutine[Any, Any, None]]
    ) -> None:
        """Run a request on the broker, after waiting at most ``within`` seconds for a connection.

        Raises `ToolUnavailableError` if there is no connection, if it breaks, or if the broker
        refuses the request. Cancelling the caller does not cancel the request; only the end of the
        connection does.
        """
        await self.ready(within)
        assert self._client is not None
        asking = self._start(request(self._client))
        await asyncio.wait([asking])
        if asking.cancelled():
            raise ToolUnavailableError(f"broker {self.broker}: the connection broke")
        if (error := asking.exception()) is not None:
            if isinstance(error, aiomqtt.MqttError):
                raise ToolUnavailableError(f"broker {self.broker}: {error}") from error
            raise error

    def tell(self, request: Callable[[aiomqtt.Client], Coroutine[Any, Any, None]]) -> None:
        """Start a request on the broker without waiting for it, if there is a connection."""
        if self._client is not None:
            self._start(request(self._client))

    async def sent(self) -> None:
        """Wait until the broker has confirmed all kept messages."""
        while self._kept:
            self._idle.clear()
            await self._idle.wait()

    # -- the owning task ----------------------------------------------------------------

    async def _run(self) -> None:
        context = self.broker.context()
        while True:
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(aiomqtt.MqttError),
                wait=wait_exponential_jitter(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, jitter=0.1),
                before_sleep=self._failed,
            )
            async for attempt in retrying:
                with attempt:
                    client = self._new_client(context)
                    reading = await self._connected(client)
            began = asyncio.get_running_loop().time()
            try:
                await self._serve(client, reading)
            finally:
                await self._leave(client, reading)
            lasted = asyncio.get_running_loop().time() - began
            await self._sleep(self._pause_after(reading, lasted))

    def _pause_after(self, reading: asyncio.Task[None], lasted: float) -> float:
        """Handle a connection that broke after ``lasted`` seconds. Return the pause before the next
        connection, in seconds.

        The pause is 0 after a first break and 0.1 seconds after a second break, and doubles with
        each further break up to a limit. If another client has taken this client's id, the pause is
        1 second after a first break, and doubles in the same way.
        """
        if lasted > _STEADY_S:
            self._breaks, self._has_warned = 0, False
        self._breaks += 1
        error = None if reading.cancelled() else reading.exception()
        if _was_taken(error):
            self._warn(self._taken)
            return backoff_s(_FIRST_TAKEN_S, self._breaks, _LONGEST_TAKEN_S)
        reason = _reason_of(error)
        if self._breaks >= _SUSPICIOUS and lasted < _QUICK_S:
            why = f"its reason is {str(reason)!r}"
            if reason is None:  # as from older brokers
                name = repr(self.identifier)
                why = f"another client may have the same id {name}; give each client its own id"
            self._warn(f"the broker closes the connection repeatedly; {why}")
        else:
            self._fault = "the connection broke" + ("" if reason is None else f": {reason}")
            log.info("broker %s: %s", self.broker, self._fault)
        if self._breaks == 1:
            return 0.0
        return backoff_s(_FIRST_PAUSE_S, self._breaks - 1, _LONGEST_PAUSE_S)

    def _warn(self, fault: str) -> None:
        """Log a warning about a fault, once until connections are stable again."""
        self._fault = fault
        if not self._has_warned:
            log.warning(
                "broker %s: %s; trying again, with longer and longer pauses", self.broker, fault
            )
        self._has_warned = True

    async def _connected(self, client: aiomqtt.Client) -> asyncio.Task[None]:
        """Connect, and run ``on_connect``. Return the task that reads messages."""
        entering = asyncio.ensure_future(connect(client))
        try:
            self._largest = await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The library connects in a thread, so wait for it and close the connection.
            await asyncio.wait([entering])
            if not entering.exception():
                await client.__aexit__(None, None, None)
            raise
        reading = asyncio.create_task(self._read(client), name=f"mqtt/{self.identifier}/read")
        starting = asyncio.ensure_future(self._on_connect(client))
        try:
            await asyncio.wait([starting, reading], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                await reading  # raises, because the connection broke
            starting.result()
        except BaseException:
            starting.cancel()
            await self._leave(client, reading)
            raise
        return reading

    async def _serve(self, client: aiomqtt.Client, reading: asyncio.Task[None]) -> None:
        """Publish the kept messages, and serve until the connection breaks."""
        self._client, self.refused = client, False
        self._up.set()
        self._tried.set()
        for number, message in list(self._kept.items()):
            self._publish(client, number, message)
        self._on_up()
        await asyncio.wait([reading])

    async def _leave(self, client: aiomqtt.Client, reading: asyncio.Task[None]) -> None:
        self._client = None
        self._up.clear()
        left = [reading, *self._tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        with contextlib.suppress(aiomqtt.MqttError):
            await client.__aexit__(None, None, None)

    def _failed(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        code = getattr(error, "rc", None)
        self.refused = getattr(code, "value", code) in _REFUSED
        self._tried.set()
        if _was_taken(error):  # while `on_connect` ran
            self._warn(self._taken)
            return
        self._fault = self._explained(error)
        log.info("broker %s: %s", self.broker, self._fault)

    def _explained(self, error: BaseException | None) -> str:
        if self.refused:
            return (
                f"the broker rejected the user {self.broker.user!r} with this password; correct "
                "the user or the password"
                if self.broker.user
                else "the broker requires a user and a password; write USER@ in the broker's "
                "address, and set AGENTRT_BROKER_PASSWORD"
            )
        return f"the broker cannot be reached: {self._logged or error}"

    def _hint(self, line: str) -> None:
        """Keep the library's log line as the fault, because it says more than the library's errors,
        and arrives earlier.
        """
        if self._client is None:
            self._fault, self._logged = f"the broker cannot be reached: {line}", line

    def _new_client(self, context: Any) -> aiomqtt.Client:
        broker, session, self._logged = self.broker, None, ""
        if self._session_s:
            session = properties(PacketTypes.CONNECT, SessionExpiryInterval=self._session_s)
        client = aiomqtt.Client(
            broker.host,
            broker.port,
            identifier=self.identifier,
            username=broker.user,
            password=broker.password,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=not self._session_s,
            properties=session,
            will=self._last_will(),
            tls_context=context,
            keepalive=self._keepalive,
            socket_options=NO_DELAY,
            logger=self._library,
            max_queued_outgoing_messages=0,
        )
        client.pending_calls_threshold = 1 << 30
        deliver(client, self._received)
        self._newest = client
        return client

    def _last_will(self) -> aiomqtt.Will | None:
        if (will := self._will) is None:
            return None
        delay = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=self._session_s)
        return aiomqtt.Will(will.topic, will.payload, will.qos, will.retain, delay)

    async def _read(self, client: aiomqtt.Client) -> None:
        """Wait until the connection breaks, and raise `aiomqtt.MqttError` then. The messages
        themselves go to `_received`.
        """
        async for _ in client.messages:
            pass

    def _received(self, message: aiomqtt.Message) -> None:
        try:
            self._on_message(message)
        except ValueError as error:
            log.warning("dropped a message on %s: %s", message.topic, error)
        except Exception:
            log.exception("dropped a message on %s", message.topic)

    def _start(self, request: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task, which is cancelled if the connection ends before the task. The task's error
        is ignored unless a caller reads it.
        """
        with tracking.outside():
            task = asyncio.create_task(request)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def _publish(self, client: aiomqtt.Client, number: int, message: Outgoing) -> None:
        topic, qos, properties = message.topic, message.qos, message.as_properties()
        sent = partial(self._sent, number)
        try:
            self.check_size(message)
            publish_now(client, topic, message.payload, qos, message.retain, properties, sent)
        except aiomqtt.MqttError:
            return  # a kept message is sent on the next connection
        except ValueError as error:  # too large, or a peer named an invalid topic for the reply
            log.warning("cannot send a message on %s: %s", topic, error)
            self._sent(number)

    def _sent(self, number: int) -> None:
        self._kept.pop(number, None)
        if not self._kept:
            self._idle.set()
