"""The interface through which contexts use the runtime: calls with token ids, and a tokenizer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from agentrt.contexts.saved import SavedContext
from agentrt.request import CallSpec, Reply


class Piece(Protocol):
    """A piece of a call's output; the last piece has the whole ``reply``."""

    @property
    def text(self) -> str: ...

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def reply(self) -> Reply | None: ...


class Tokens(Protocol):
    """A tokenizer, which converts chats and text to token ids, and token ids to text.

    The methods raise `ConfigError` if the executor does not take token ids.
    """

    async def render(self, request: Mapping[str, Any]) -> list[int]: ...

    async def tokenize(self, text: str, model: str | None = None) -> list[int]: ...

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str: ...


class TokenEmitter(Protocol):
    """The interface through which a context calls the engine. `token_call` makes a call, which is a
    node of the DAG with the name ``name``.

    `save`, `open` and `forget` are for saved contexts. `dropped` reports that a context was
    dropped: of the tokens of ``call``, other contexts still have the first ``shared`` tokens only.
    """

    def token_call(
        self, spec: CallSpec, name: str, *, stream: bool
    ) -> AsyncGenerator[Piece, None]: ...

    async def frontend(self) -> Tokens: ...

    def save(self, name: str, context: SavedContext) -> None: ...

    def open(self, name: str) -> SavedContext: ...

    def forget(self, name: str) -> None: ...

    def dropped(self, call: str, shared: int) -> None: ...
