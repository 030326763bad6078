"""An OpenAI-compatible endpoint as an executor: `agentrt serve`, `vllm serve`, or any other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from agentrt.errors import (
    CallRejectedError,
    ConfigError,
    EngineDiedError,
    EngineError,
    EngineStartError,
)
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.openai_wire import Answer, request_of
from agentrt.request import Call

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_NO_KEY = "none"
"""The client insists on a key; a server without keys does not look at it."""


class OpenAIEndpoint(Executor):
    """An executor that sends each call to ``base_url`` (``http://host:port/v1``).

    ``model`` None is the first that the endpoint has; `start` sets it. Tools and schemas go
    out in the API's own fields. Who asks is told in headers (`agentrt.executors.identity`). A
    report knows tokens, and as service the time from the request to its end: no endpoint
    tells more, and programs are known to it by the headers alone.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        max_retries: int = 2,
    ) -> None:
        self.base_url = base_url
        self.model = model or ""
        self._api_key = api_key or _NO_KEY
        self._max_retries = max_retries
        self._client: AsyncOpenAI | None = None

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo((self.model,) if self.model else (), native_tools=True)

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        try:
            from openai import AsyncOpenAI
        except ImportError as error:
            raise ConfigError(
                f"an endpoint needs the package openai ({error}); install agentrt[remote]"
            ) from error
        progress(f"asking {self.base_url} for its models")
        self._client = AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._api_key,
            max_retries=self._max_retries,
            timeout=None,  # whoever makes a call says how long it may take
        )
        self.model = _choose(self.base_url, self.model, await self._models())
        progress("ready")

    async def _models(self) -> list[str]:
        import openai

        try:
            return [model.id async for model in self._running().models.list()]
        except openai.APIConnectionError as error:
            raise EngineStartError(
                f"nothing answers at {self.base_url} ({_cause(error)}); start the server, or "
                "change base_url"
            ) from error
        except openai.APIStatusError as error:
            raise EngineStartError(
                f"{self.base_url} does not list its models: {_reason(error)}"
            ) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        import openai

        request = request_of(call, self.model)
        answer = Answer(call.spec.schema is not None)
        began = time.monotonic()
        try:
            if stream:
                async with contextlib.aclosing(self._pieces(request, answer)) as pieces:
                    async for piece in pieces:
                        yield Chunk(piece)
            else:
                answer.read(await self._running().chat.completions.create(**request))
        except openai.APIConnectionError as error:
            raise EngineDiedError(
                f"{self.base_url} was lost during call {call.call_id}: {_cause(error)}"
            ) from error
        except openai.APIStatusError as error:
            raise _refused(call, error) from error
        reply = answer.reply(time.monotonic() - began)
        yield Chunk("" if stream else reply.text, reply)

    async def _pieces(self, request: dict[str, Any], answer: Answer) -> AsyncGenerator[str, None]:
        events = await self._running().chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        async with contextlib.aclosing(events):  # closing it ends the request
            async for event in events:
                if piece := answer.add(event):
                    yield piece

    def _running(self) -> AsyncOpenAI:
        if self._client is None:
            raise EngineDiedError(f"the connection to {self.base_url} is not open")
        return self._client


# -- errors --------------------------------------------------------------------------------


def _choose(base_url: str, model: str, served: list[str]) -> str:
    if model in served:
        return model
    names = ", ".join(served) or "no model at all"
    if model:
        raise ConfigError(f"{base_url} does not serve model {model!r}; it serves {names}")
    if not served:
        raise EngineStartError(f"{base_url} serves {names}")
    return served[0]


def _refused(call: Call, error: Any) -> EngineError:
    text = f"call {call.call_id}: {_reason(error)}"
    return CallRejectedError(text) if error.status_code < 500 else EngineError(text)


def _reason(error: Any) -> str:
    body = error.body if isinstance(error.body, Mapping) else {}
    return f"{body.get('message') or error.message} (status {error.status_code})"


def _cause(error: Exception) -> str:
    return str(error.__cause__ or error)
