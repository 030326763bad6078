"""Engines die and are restarted at random times: each call is delivered once, or was cancelled."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.engines import ReplicaSet
from agentrt.executors.base import Executor
from agentrt.executors.replicas import Backoff, ReplicaState
from agentrt.router import ROUTERS, make_router
from benchmarks.chaos.report import CallAudit
from tests.executors.replicas.cast import TEXT, Mortal, call_of

NEVER_OUT = Backoff(first_s=0.0, tries=10**6)


class Fate:
    """A factory of engines that die after a random number of chunks, until ``deaths`` engines have
    died.
    """

    def __init__(self, random: Random, deaths: int, audit: CallAudit) -> None:
        self._random = random
        self._left = deaths
        self._audit = audit

    def __call__(self, index: int) -> Executor:
        self._left -= 1
        dies_after = self._random.randrange(12) if self._left >= 0 else None
        return self._audit.engine(Mortal(dies_after))


async def _live(seed: int, count: int, router: str, deaths: int) -> None:
    random, audit = Random(seed), CallAudit()
    replicas = ReplicaSet(
        Fate(random, deaths, audit), count, make_router(router), backoff=NEVER_OUT
    )
    front = audit.front(replicas)

    async def ask(number: int) -> str | None:
        chunks = front.generate(call_of(number, f"p{number % 5}"), stream=bool(number % 2))
        leave_after = random.choice([1, 2, None, None, None])
        text = ""
        async for chunk in chunks:
            text += chunk.text
            if leave_after is not None and len(text) >= leave_after * 4 and chunk.reply is None:
                await chunks.aclose()
                await front.aborted(f"p{number % 5}/{number}")
                return None
        return text

    async def restart() -> None:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
            await replicas.restart(random.choice(replicas.replicas).name)

    await replicas.start(lambda message: None)
    try:
        async with asyncio.timeout(60):
            *texts, _ = await asyncio.gather(*map(ask, range(20)), restart())
            await replicas.settled()
            for program in range(5):
                await replicas.end_program(f"p{program}")
        assert {text for text in texts if text is not None} <= {TEXT}
        assert sorted(audit.delivered) == sorted(
            f"p{number % 5}/{number}" for number, text in enumerate(texts) if text is not None
        )
        assert set(audit.delivered.values()) <= {1}
        assert audit.faults == []
        for replica in replicas.replicas:
            assert replica.state is ReplicaState.READY
            assert (replica.calls, replica.view.in_flight, replica.programs) == (0, 0, set())
        assert not replicas._where
    finally:
        await replicas.close()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 4), st.sampled_from(sorted(ROUTERS)), st.integers(0, 9)
)
def test_every_call_is_delivered_once(seed: int, count: int, router: str, deaths: int) -> None:
    asyncio.run(_live(seed, count, router, deaths))
