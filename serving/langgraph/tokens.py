"""The tokens of a native program's calls, told as LangGraph tells those of a chat model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, cast
from uuid import UUID, uuid4

from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig

from agentrt.integrations.langchain.replies import ChunkMaker
from agentrt.serving.langgraph._compat import message_streams


class TokenStream:
    """Tells the streams of messages of one node's ``config`` what its calls put out."""

    def __init__(self, config: RunnableConfig) -> None:
        self._streams = message_streams(config)
        self._metadata = config.get("metadata") or {}

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._streams)

    async def of(
        self, pieces: AsyncIterator[Mapping[str, Any]]
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """The pieces of a call's answer as they come, each told when it does."""
        call, maker = uuid4(), ChunkMaker()
        for stream in self._streams:
            stream.on_chat_model_start({}, [], run_id=call, metadata=dict(self._metadata))
        try:
            async with aclosing(cast("AsyncGenerator[Mapping[str, Any], None]", pieces)) as answer:
                async for piece in answer:
                    self._tell(call, maker.chunks(dict(piece)))
                    yield piece
        finally:
            for stream in self._streams:
                stream.on_llm_end(LLMResult(generations=[]), run_id=call)

    def _tell(self, call: UUID, chunks: Iterable[ChatGenerationChunk]) -> None:
        for chunk in chunks if self.heard else ():
            chunk.message.id = f"run--{call}"
            for stream in self._streams:
                stream.on_llm_new_token("", chunk=chunk, run_id=call)
