"""Programs on a real engine whose journal is what a kill -9 left: the tokens are the same."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from agentrt import Runtime
from agentrt.executors.base import Chunk
from agentrt.executors.chat_api import Frontend
from agentrt.journal.schema import Change
from agentrt.request import Call
from tests.contexts.real import engine_of, fresh
from tests.engine.lent import Lent
from tests.journal.counting import Counts, asked_in, known_in
from tests.journal.killing import QuickStore, World, ended, everything

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
KILLS, MOST = 5, 12


class CountedEngine(Lent):
    """The session's engine with its front end, and what it is asked in one life of a program."""

    def __init__(self, runtime: Runtime, front: Frontend, world: World) -> None:
        super().__init__(engine_of(runtime))
        self._front, self._world = front, world

    def own_frontend(self, names: Sequence[str]) -> Frontend:
        return self._front

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        text = await self._front.detokenize(call.spec.prompt_token_ids or ())
        self._world.calls[asked_in(text, call)] += 1
        async with contextlib.aclosing(super().generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                yield chunk


class CopiedStore(QuickStore):
    """After some of its writes its files are copied as they are: nobody has closed them."""

    def __init__(self, path: Path, writes: Collection[int]) -> None:
        self._file, self._writes, self._count = path, writes, 0
        super().__init__(path)

    def write(self, changes: list[Change]) -> None:  # type: ignore[override]  # MortalStore's
        super().write(changes)
        self._count += 1
        if self._count in self._writes:
            for end in ("", "-wal"):
                shutil.copy(f"{self._file}{end}", f"{self._file}.{self._count}{end}")


async def test_killed_on_a_real_engine(
    tmp_path: Path, token_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An undisturbed run, whose journal is copied after five of its writes. From each copy the
    program resumes, on an engine that has forgotten it: with the same tokens of greedy and sampled
    calls, and nothing that was recorded is done again.
    """
    front = await token_runtime.frontend()
    monkeypatch.setattr(front, "close", AsyncMock())  # by the runtimes of these lives

    def engine(world: World) -> CountedEngine:
        return CountedEngine(token_runtime, front, world)

    writes = sorted(random.Random(33).sample(range(2, 16), KILLS))
    whole = await ended(
        tmp_path / "j",
        undisturbed := World(),
        made=everything(undisturbed, MOST),
        engine=engine(undisturbed),
        opened=lambda path: CopiedStore(path, writes),
    )
    assert whole.error is None
    assert set(undisturbed.calls.values()) == set(undisturbed.tools.values()) == {1}
    counts = Counts(whole, undisturbed, engine, MOST)
    for write in writes:
        await fresh(token_runtime)
        await counts.lives(tmp_path / f"j.{write}", [])
        counts.kills += 1
    assert all(known_in(tmp_path / f"j.{writes[-1]}"))  # there is what could be done again
    assert (counts.kills, counts.faults) == (KILLS, {})
