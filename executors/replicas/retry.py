"""A call that runs again: what its reader has been given already is not given twice."""

from __future__ import annotations

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk


class Again:
    """Takes from a call's output what was given before, by an engine that died meanwhile."""

    def __init__(self, given: str, call_id: str) -> None:
        self.differs = False
        self._left = given
        self._call_id = call_id

    def rest(self, text: str, *, last: bool) -> str:
        """What of ``text`` is new. Raises `EngineDiedError` if it is not what came before."""
        known, new = text[: len(self._left)], text[len(self._left) :]
        if not self._left.startswith(known) or (last and len(known) < len(self._left)):
            self.differs = True
            raise EngineDiedError(
                f"the engine died in the middle of call {self._call_id}, and another gave a "
                "different text for what had been streamed already"
            )
        self._left = self._left[len(known) :]
        return new

    def news(self, chunk: Chunk, text: str) -> Chunk:
        """The chunk with ``text`` alone. Log probabilities of text given before were given, too."""
        return chunk if text == chunk.text else Chunk(text, chunk.reply)
