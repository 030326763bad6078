"""A connection to a broker that is made again whenever it breaks, and owns all its tasks."""

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
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from agentrt import tracking
from agentrt.errors import ToolUnavailableError
from agentrt.integrations._compat.aiomqtt import deliver, end_session, properties, publish_now
from agentrt.integrations.mqtt.broker import Broker, Outgoing

log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_GOODBYE_S = 2.0
_QUICK_S, _SUSPICIOUS = 5.0, 3
"""A connection that breaks so soon, and the number of breaks from which on people hear of it."""
_FIRST_TAKEN_S, _LONGEST_TAKEN_S = 1.0, 60.0
"""Pauses where another client has the same id: each that comes closes the other's connection."""
_STEADY_S = 2 * _LONGEST_TAKEN_S
"""After a connection that lasted so long the pauses are short again."""
_TAKEN_OVER = 142
_REFUSED = (134, 135)
"""Reason codes: a bad user name or password, not authorized."""
NO_DELAY = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
"""Without it each round trip costs 40 ms."""


def _was_taken(error: BaseException | None) -> bool:
    """Whether a broker closed a connection since another client has the same id."""
    while error is not None:
        code = getattr(error, "rc", None)
        if getattr(code, "value", code) == _TAKEN_OVER:
            return True
        error = error.__cause__
    return False


class _LogForwarder(logging.Handler):
    """Calls ``on_line`` with each line that is logged."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        super().__init__()
        self._on_line = on_line

    def emit(self, record: logging.LogRecord) -> None:
        self._on_line(record.getMessage())


class Connection:
    """Keeps one client of the broker connected.

    ``on_connect`` is awaited on each new connection, before anything else is sent on it, and
    ``on_up`` is called when it has ended. ``on_message`` is called with each message, and must
    be quick. With ``session_s`` the broker keeps what comes in for so long while the connection is
    broken, and nothing once it is closed. ``will`` is what the broker publishes when this client is
    gone without a word, and did not come back within ``session_s``. ``sleep`` waits before a
    connection that broke is made again (seconds).
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
        self._fault, self._said = "it has not answered yet", ""
        self._breaks, self._has_warned = 0, False
        self._taken = (
            f"another client connected with the id {identifier!r} and has taken the connection "
            "over; give that client an id of its own"
        )
        self._library = logging.Logger("aiomqtt", logging.ERROR)  # noqa: LOG001 - each has its own
        self._library.addHandler(_LogForwarder(self._hint))

    def open(self) -> None:
        """Begin to connect."""
        with tracking.outside():
            self._owner = asyncio.create_task(self._run(), name=f"mqtt/{self.identifier}")

    async def finish(self) -> None:
        """Close, once the broker has all that is kept or asked, if that does not take long."""
        if self.is_up:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await self.sent()
                    if self._tasks:
                        await asyncio.wait(self._tasks)
        await self.close()

    async def close(self) -> None:
        """Disconnect, and leave no task behind. Idempotent."""
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
        """Wait for a connection, at most so many seconds. Raises `ToolUnavailableError`."""
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
        """Publish a message, soon. With ``keep`` it is sent on every new connection again, until
        the broker has it; else only if there is a connection.
        """
        number = next(self._numbers)
        if keep:
            self._kept[number] = message
        if self._client is not None:
            self._publish(self._client, number, message)

    async def ask(
        self, within: float, what: Callable[[aiomqtt.Client], Coroutine[Any, Any, None]]
    ) -> None:
        """Ask the broker for something. Raises `ToolUnavailableError`.

        Who asks may be cancelled: what was asked for still comes, unless the connection breaks.
        """
        await self.ready(within)
        assert self._client is not None
        asking = self._start(what(self._client))
        await asyncio.wait([asking])
        if asking.cancelled():
            raise ToolUnavailableError(f"broker {self.broker}: the connection broke")
        if (error := asking.exception()) is not None:
            if isinstance(error, aiomqtt.MqttError):
                raise ToolUnavailableError(f"broker {self.broker}: {error}") from error
            raise error

    def tell(self, what: Callable[[aiomqtt.Client], Coroutine[Any, Any, None]]) -> None:
        """Ask the broker for something, if there is a connection, and do not wait for it."""
        if self._client is not None:
            self._start(what(self._client))

    async def sent(self) -> None:
        """Wait until the broker has all that is kept."""
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
        """The connection broke after ``lasted`` seconds. Returns the pause before the next one
        (seconds): none, as a rule, but each break soon after another makes it longer.
        """
        if lasted > _STEADY_S:
            self._breaks, self._has_warned = 0, False
        self._breaks += 1
        if _was_taken(None if reading.cancelled() else reading.exception()):
            self._warn(self._taken)
            return min(_FIRST_TAKEN_S * 2.0 ** (self._breaks - 1), _LONGEST_TAKEN_S)
        if self._breaks >= _SUSPICIOUS and lasted < _QUICK_S:  # older brokers do not say why
            self._warn(
                f"it closes the connection again and again; another client may have the id "
                f"{self.identifier!r}, too: give that client an id of its own"
            )
        else:
            self._fault = "the connection broke"
            log.info("broker %s: %s", self.broker, self._fault)
        if self._breaks == 1:
            return 0.0
        return min(_FIRST_PAUSE_S * 2.0 ** (self._breaks - 2), _LONGEST_PAUSE_S)

    def _warn(self, fault: str) -> None:
        """Say the fault to people, once until connections last again."""
        self._fault = fault
        if not self._has_warned:
            log.warning("broker %s: %s; it is tried again after longer pauses", self.broker, fault)
        self._has_warned = True

    async def _connected(self, client: aiomqtt.Client) -> asyncio.Task[None]:
        """Connect, subscribe and so on. Returns what reads messages."""
        entering = asyncio.ensure_future(client.__aenter__())
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The library connects in a thread, and would leave a connection behind.
            await asyncio.wait([entering])
            if not entering.exception():
                await client.__aexit__(None, None, None)
            raise
        reading = asyncio.create_task(self._read(client), name=f"mqtt/{self.identifier}/read")
        starting = asyncio.ensure_future(self._on_connect(client))
        try:
            await asyncio.wait([starting, reading], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                await reading  # raises: the connection broke
            starting.result()
        except BaseException:
            starting.cancel()
            await self._leave(client, reading)
            raise
        return reading

    async def _serve(self, client: aiomqtt.Client, reading: asyncio.Task[None]) -> None:
        """Publish what there is, until the connection breaks."""
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
        if _was_taken(error):  # before all was subscribed
            self._warn(self._taken)
            return
        self._fault = self._explained(error)
        log.info("broker %s: %s", self.broker, self._fault)

    def _explained(self, error: BaseException | None) -> str:
        if self.refused:
            return (
                f"it refused the user {self.broker.user!r} with this password"
                if self.broker.user
                else "it takes nobody without a user and a password"
            )
        return f"it cannot be reached: {self._said or error}"

    def _hint(self, said: str) -> None:
        """What the library logs is more than its errors say, and comes sooner."""
        if self._client is None:
            self._fault, self._said = f"it cannot be reached: {said}", said

    def _new_client(self, context: Any) -> aiomqtt.Client:
        broker, session, self._said = self.broker, None, ""
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
        """Raises `aiomqtt.MqttError` when the connection breaks; messages go to `_received`."""
        async for _ in client.messages:
            pass

    def _received(self, message: aiomqtt.Message) -> None:
        try:
            self._on_message(message)
        except ValueError as error:
            log.warning("a message on %s was dropped: %s", message.topic, error)
        except Exception:
            log.exception("a message on %s was dropped", message.topic)

    def _start(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with the connection. Whether it failed, only who waits for it asks."""
        with tracking.outside():
            task = asyncio.create_task(what)
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
            publish_now(client, topic, message.payload, qos, message.retain, properties, sent)
        except aiomqtt.MqttError:
            return  # what is kept goes over the next connection
        except ValueError as error:  # somebody else wants a reply where none can go
            log.warning("a message on %s cannot be sent: %s", topic, error)
            self._sent(number)

    def _sent(self, number: int) -> None:
        self._kept.pop(number, None)
        if not self._kept:
            self._idle.set()
