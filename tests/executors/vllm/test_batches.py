"""Requests sent to an engine core at once are read at once, but running calls do not wait for
them.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from agentrt.executors.vllm._compat.batches import Batches, read_together

pytestmark = pytest.mark.engine
CORE = b"\x00\x00"


class Client:
    """A client that records what vLLM's client would send."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.dead = False
        self.encoder = SimpleNamespace(encode=lambda value: [value])

    def ensure_alive(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if self.dead:
            raise EngineDeadError

    def send(self, message: Any, engine: bytes) -> Any:
        self.ensure_alive()
        self.sent.append((*message, engine))


def wakeup() -> Any:
    from vllm.v1.engine import EngineCoreRequestType

    return EngineCoreRequestType.WAKEUP


async def test_what_comes_up_in_one_pass_is_sent_in_its_order_after_its_number() -> None:
    client = Client()
    batches = Batches(client, client.send)

    async def post(message: str) -> None:
        await batches.post((message,), CORE)

    await asyncio.gather(*(post(f"m{number}") for number in range(3)))
    await asyncio.sleep(0)
    assert client.sent == [
        (wakeup().value, 3, CORE),
        *((f"m{number}", CORE) for number in range(3)),
    ]
    await post("alone")
    await asyncio.sleep(0)
    assert client.sent[4:] == [("alone", CORE)]


async def test_an_engine_that_is_dead_or_dies_at_once() -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    client = Client()
    batches = Batches(client, client.send)
    await batches.post(("lost",), CORE)
    client.dead = True
    with pytest.raises(EngineDeadError):
        await batches.post(("refused",), CORE)
    await asyncio.sleep(0)
    assert client.sent == []


class Late(queue.SimpleQueue[Any]):
    """The queue of a core, whose next message comes only when the core waits for it."""

    def __init__(self, reading: Iterable[Callable[[], None]]) -> None:
        self._reading = iter(reading)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            next(self._reading, lambda: None)()
        return super().get(block=False)


@pytest.mark.parametrize("is_refused", [False, True], ids=["unreadable", "refused"])
@pytest.mark.parametrize(("busy", "read"), [(False, ["a", "b"]), (True, [])])
def test_an_idle_core_reads_a_batch_to_its_end(
    busy: bool, read: list[str], is_refused: bool
) -> None:
    """The batch is read to its end however late its messages come. The second message is dropped,
    because it cannot be read or its request is refused. The fourth is not in the batch.
    """
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine import EngineCoreRequestType
    from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState

    read_together()
    core: Any = EngineCoreProc.__new__(EngineCoreProc)
    added = list[str]()
    core.shutdown_state = EngineShutdownState.RUNNING
    core.has_work = lambda: True  # it has not forgotten yet what has ended
    core.scheduler = SimpleNamespace(has_unfinished_requests=lambda: busy)
    core.add_request = lambda request, wave: added.append(request)
    core._reject_add_while_paused = lambda request: False

    error = VLLMValidationError("refused") if is_refused else ValueError("unreadable")

    def fail(features: Any) -> None:
        raise error

    core.mm_receiver_cache = SimpleNamespace(get_and_update_features=fail)

    def message(name: str) -> Callable[[], None]:
        return lambda: core.input_queue.put((EngineCoreRequestType.ADD, (name, 0)))

    def dropped() -> None:
        with pytest.raises(type(error)):
            core.preprocess_add_request(SimpleNamespace(mm_features=["an image"]))

    core.input_queue = Late([message("a"), dropped, message("b"), message("c")])
    core._handle_client_request(wakeup(), 3)
    assert added == read
    core._handle_client_request(wakeup(), None)
    assert added == read


def test_a_core_goes_on_without_a_message_that_was_lost() -> None:
    from vllm.v1.engine.core import EngineCoreProc

    read_together()
    core: Any = EngineCoreProc.__new__(EngineCoreProc)
    core.scheduler = SimpleNamespace(has_unfinished_requests=lambda: False)
    core.input_queue = Late([])
    core._handle_client_request(wakeup(), 2)
