"""The clients of an attack, in a process of their own, so that they do not delay the client of the
short calls.

``python -m benchmarks.attack.attacker SPEC`` prints that it is ready, begins when it reads a line,
and at its end prints how often each status was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass

import httpx

from benchmarks.attack.attacks import ATTACKS
from benchmarks.servers import piped

_WAIT_S = 120.0
_REST_S = 0.01
_GONE = (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError)
_SUNK = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}"


@dataclass(frozen=True, slots=True)
class Spec:
    """An attack on the server at ``url`` for ``seconds`` seconds.

    Without ``url``, the requests go to a listener that reads them and discards them (`_sink`). Each
    client makes a request every ``every_s`` seconds. If an answer takes longer, the client makes
    its next request as soon as it has the answer.
    """

    attack: str
    seconds: float
    url: str | None = None
    key: str = "none"
    every_s: float = 0.0


async def attacked(spec: Spec, begun: asyncio.Event) -> Counter[int]:
    """Attack from a process of its own, and return how often each status was answered. ``begun`` is
    set when the attack begins.
    """
    command = sys.executable, "-m", __name__, json.dumps(asdict(spec))
    async with piped(*command) as (process, _, out):
        await out.readline()
        begun.set()
        counts, _ = await process.communicate(b"\n")
        return Counter({int(code): count for code, count in json.loads(counts).items()})


async def _attack(spec: Spec) -> Counter[int]:
    answers = Counter[int]()
    async with contextlib.AsyncExitStack() as stack:
        url = spec.url
        if url is None:
            url = await stack.enter_async_context(_sink())
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=url,
                timeout=_WAIT_S,
                headers={"authorization": f"Bearer {spec.key}", "content-type": "application/json"},
                limits=httpx.Limits(max_connections=None),
            )
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(spec.seconds), asyncio.TaskGroup() as group:
                for number in range(ATTACKS[spec.attack].clients):
                    group.create_task(_again_and_again(spec, number, client, answers))
    return answers


async def _again_and_again(
    spec: Spec, number: int, client: httpx.AsyncClient, answers: Counter[int]
) -> None:
    method, path, body = ATTACKS[spec.attack].request(number)
    now = asyncio.get_running_loop().time
    while True:
        began = now()
        try:
            answers[(await client.request(method, path, content=body)).status_code] += 1
        except httpx.HTTPError:
            answers[0] += 1
            await asyncio.sleep(_REST_S)
        await asyncio.sleep(began + spec.every_s - now())


@contextlib.asynccontextmanager
async def _sink() -> AsyncIterator[str]:
    """Start a listener that reads requests, discards them, and answers 413. Yield its URL."""

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(*_GONE):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(_SUNK)
        writer.close()

    server = await asyncio.start_server(read, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def main() -> None:
    """Run the attack that the command line describes."""
    spec = Spec(**json.loads(sys.argv[1]))
    # Most bodies are cached, so that this process does not make them while it attacks.
    for number in range(ATTACKS[spec.attack].clients):
        ATTACKS[spec.attack].request(number)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(json.dumps(asyncio.run(_attack(spec))))


if __name__ == "__main__":
    main()
