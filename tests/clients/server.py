"""A server on an engine that follows `say`, and the programs that it has seen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from agentrt.executors.base import Chunk
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.graph import NodeKind
from agentrt.request import Call
from agentrt.runtime.run import Run
from tests.clients.model import LONG, say
from tests.doubles.scripted_engine import ScriptedEngine
from tests.serving.local import LocalServer, open_server

FLAGS = (
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    # Agents' prompts are longer than what this small model was made for.
    '--hf-overrides={"max_position_embeddings": 262144}',
    "--max-model-len=262144",
)
Shape = list[tuple[str, tuple[int, ...]]]
"""A program's DAG: "call" or the tool's name for each node, and its parents' places in the list."""
CALL: Shape = [("call", ())]


def loop_of(*tools: str) -> Shape:
    """A call that calls tools, and one with their results."""
    gaps = tuple(range(1, len(tools) + 1))
    return [("call", ()), *((tool, (0,)) for tool in tools), ("call", gaps)]


class PatientEngine(ScriptedEngine):
    """It waits for ever after the first words of a `LONG` answer. ``held`` are the calls
    that wait, and ``left`` those that were broken off while they did.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.held: set[str] = set()
        self.left: list[str] = []

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        made = ScriptedEngine.generate(self, call, stream=stream)
        async with contextlib.aclosing(made) as chunks:
            async for chunk in chunks:
                is_long = chunk.text.startswith(LONG[:4])
                if is_long and not stream:
                    await self._wait(call.call_id)
                yield chunk
                if is_long:
                    await self._wait(call.call_id)

    async def _wait(self, call_id: str) -> None:
        self.held.add(call_id)
        try:
            await asyncio.Event().wait()
        finally:
            self.held.discard(call_id)
            self.left.append(call_id)


@dataclass(slots=True)
class Watched:
    """The programs that came since it began."""

    local: LocalServer
    before: set[str] = field(default_factory=set)

    @property
    def programs(self) -> list[Run]:
        runs = self.local.runtime.runs
        return [run for program_id, run in runs.items() if program_id not in self.before]

    async def shapes(self) -> list[Shape]:
        """The DAGs of these programs, when all their calls have ended."""
        await self.local.until(lambda: not any(map(_is_calling, self.programs)))
        return [shape_of(run) for run in self.programs]


def _is_calling(run: Run) -> bool:
    nodes = run.dag.nodes()
    return any(node.kind is NodeKind.CALL and node.ended_at is None for node in nodes)


def shape_of(run: Run) -> Shape:
    nodes = run.dag.nodes()
    places = {node.id: place for place, node in enumerate(nodes)}
    return [
        (
            "call" if node.kind is NodeKind.CALL else node.name,
            tuple(places[parent] for parent in node.parents),
        )
        for node in nodes
    ]


@asynccontextmanager
async def open_scripted() -> AsyncIterator[LocalServer]:
    """A server on a `PatientEngine` that says what `say` does, until the block ends."""
    tokenizer = Tokenizer.from_file(f"{embedded_model(lambda told: None)}/tokenizer.json")

    def script(call: Call) -> str:
        assert call.spec.rendered is not None
        held_to = call.spec.rendered.params.structured_outputs
        must_call = held_to is not None and held_to.structural_tag is not None
        return say(tokenizer.decode(list(call.spec.prompt_token_ids or ())), must_call=must_call)

    async with open_server(script, kind=PatientEngine, flags=FLAGS) as local:
        yield local


def watch(local: LocalServer) -> Watched:
    """Look at the programs that come from now on."""
    return Watched(local, set(local.runtime.runs))
