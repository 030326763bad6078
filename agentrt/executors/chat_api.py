"""The front end: turns requests in OpenAI's form into calls, and their outputs into answers.

Rendering a chat and reading tool calls out of an output is done once, here, before calls are
scheduled. A `Caller` is the program that makes the calls. Programs in this process pass it; only
vLLM's own application, which answers requests over HTTP, has no place for it, and reads `CALLER`.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from agentrt.errors import AgentrtError, ConfigError
from agentrt.executors.base import Chunk, Executor
from agentrt.executors.info import ExecutorInfo, display_name
from agentrt.request import NO_LIMIT, Call, CallSpec, Identity, Reply

T = TypeVar("T")
_NO_TOKENS = (
    "this executor takes chats as text, and does not tell how it tokenizes: contexts and counts "
    "of tokens need an engine of this runtime's own (--model)"
)
Request = Mapping[str, Any]
"""A chat request, as OpenAI's chat completions and vLLM have it."""
Answer = dict[str, Any]
"""A ``chat.completion``, or in a stream a ``chat.completion.chunk``, in OpenAI's form."""


class Caller(Protocol):
    """Whose calls a front end makes: a place in some program."""

    def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Make a call, and give its output as `Executor.generate` does."""

    def siblings(self, count: int) -> contextlib.AbstractContextManager[Sequence[Caller]]:
        """Callers for ``count`` calls beside each other; after the block they have all ended."""

    def failed(self, error: BaseException) -> AgentrtError | None:
        """The error that stands for that of a call; None if it says enough, or is no failure."""
        return error if isinstance(error, AgentrtError) else None

    def limited(self, max_tokens: int) -> None:
        """Hear that the answer may have only so many tokens, fewer than its request asks for."""
        return


FIELDS = "agentrt.fields"
"""The key of an ASGI scope that has the JSON of its body, parsed: an object."""
CALLER: ContextVar[Caller | None] = ContextVar("agentrt_caller", default=None)
"""Whose calls vLLM's own code makes by its engine client now."""
WORKS_FOR: ContextVar[str] = ContextVar("agentrt_works_for", default="")
"""The tenant for whom a front end works: those with much work take turns. It is read inside of
vLLM's renderer, which passes on no argument of ours.
"""


class NoProgram(Caller):
    """Makes calls on ``executor`` that belong to no program: each is one of its own."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Make a call, and forget its program."""
        name = f"lone-{uuid4().hex}"
        call = Call(Identity(f"{name}/0", name, "lone"), spec)
        try:
            async with contextlib.aclosing(self._executor.generate(call, stream=stream)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            await self._executor.aborted(call.call_id)
            raise
        finally:
            await self._executor.end_program(name)

    @contextlib.contextmanager
    def siblings(self, count: int) -> Iterator[Sequence[Caller]]:
        """The same, so often."""
        yield [self] * count


def caller() -> Caller:
    """Return whose call vLLM's own code makes now."""
    current = CALLER.get()
    if current is None:
        raise AgentrtError("a front end was asked for a call outside any program")
    return current


class _Calling(contextlib.AbstractContextManager[None]):
    __slots__ = ("_caller", "_token")

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def __enter__(self) -> None:
        self._token = CALLER.set(self._caller)

    def __exit__(self, *error: object) -> None:
        CALLER.reset(self._token)


def calling(caller: Caller) -> contextlib.AbstractContextManager[None]:
    """Have the calls that vLLM's own code makes in the body be those of ``caller``."""
    return _Calling(caller)


async def stepped(caller: Caller, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the items of a stream, whose calls are those of ``caller`` in each of its steps."""
    async with contextlib.aclosing(items):
        while True:
            with calling(caller):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item


@dataclass(frozen=True, slots=True)
class FrontProfile:
    """What a model can take and give. ``max_model_len`` counts prompt and output (tokens);
    None where it is not known. With ``media_in_tools`` a tool's message may have what a user's may.
    """

    model: str
    max_model_len: int | None = None
    images: bool = False
    audio: bool = False
    video: bool = False
    media_in_tools: bool = True
    tools: bool = True
    reasoning: bool = False


class Frontend(ABC):
    """Answers chat requests by calls of their ``caller``.

    Raises `CallRejectedError` for a request that cannot be answered, `PromptTooLongError` for
    one beyond the model's context, `NotServedError` for a model that is not served, and what
    `Executor.generate` raises.
    """

    @abstractmethod
    async def chat(self, request: Request, caller: Caller) -> Answer:
        """Return the whole answer."""

    @abstractmethod
    def chat_stream(self, request: Request, caller: Caller) -> AsyncGenerator[Answer, None]:
        """Yield the answer in pieces. Closing the iterator aborts its calls."""

    @abstractmethod
    def profile(self, model: str | None = None) -> FrontProfile:
        """What a model can do; None is the first that is served."""

    async def count_tokens(self, request: Request) -> int:
        """How many tokens the prompt of a chat has, its template included."""
        return len(await self.render(request))

    async def render(self, request: Request) -> list[int]:
        """The token ids of a chat's prompt, its template included."""
        raise ConfigError(_NO_TOKENS)

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        """The token ids of a text, without special tokens of a chat."""
        raise ConfigError(_NO_TOKENS)

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str:
        """The text of token ids, special tokens included."""
        raise ConfigError(_NO_TOKENS)

    def addressed(self, spec: CallSpec) -> CallSpec:
        """A call of token ids, with the model or adapter that it names as executors know it."""
        raise ConfigError(_NO_TOKENS)

    async def close(self) -> None:  # noqa: B027  # most hold nothing
        """Let go of what it holds. Idempotent."""


class RequestFrontend(Frontend):
    """For executors that take requests as they are, such as a remote endpoint.

    One that gives text alone, without ``Chunk.output``, is put into OpenAI's form here.
    """

    def __init__(self, info: ExecutorInfo) -> None:
        self._info = info

    async def chat(self, request: Request, caller: Caller) -> Answer:
        answer: Answer = {}
        async with contextlib.aclosing(caller.chunks(spec_of(request), stream=False)) as chunks:
            async for chunk in chunks:
                answer = chunk.output or (answer if chunk.reply is None else whole_of(chunk.reply))
        return answer

    def chat_stream(self, request: Request, caller: Caller) -> AsyncGenerator[Answer, None]:
        return _pieces(caller.chunks(spec_of(request), stream=True))

    def profile(self, model: str | None = None) -> FrontProfile:
        self._info.check_served(model)
        name = display_name(model or self._info.model)
        # OpenAI's API takes nothing but text from tools.
        return FrontProfile(name, images=self._info.images, media_in_tools=False)


async def _pieces(chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Answer, None]:
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            yield piece_of(chunk) if chunk.output is None else chunk.output


def whole_of(reply: Reply) -> Answer:
    """A reply as an answer."""
    choice = {"index": 0, "message": reply.message, "finish_reason": reply.finish_reason}
    return {"object": "chat.completion", "choices": [choice], "usage": _usage(reply)}


def piece_of(chunk: Chunk) -> Answer:
    """A piece of text as one of an answer."""
    reason = None if chunk.reply is None else chunk.reply.finish_reason
    choice = {"index": 0, "delta": {"content": chunk.text}, "finish_reason": reason}
    piece = {"object": "chat.completion.chunk", "choices": [choice]}
    return piece if chunk.reply is None else {**piece, "usage": _usage(chunk.reply)}


def _usage(reply: Reply) -> dict[str, int]:
    prompt, output = reply.report.prompt_tokens, reply.report.output_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }


def spec_of(request: Request) -> CallSpec:
    """A request as a call that is not rendered, with what schedulers and routers look at."""
    return CallSpec(
        max_tokens=request.get("max_completion_tokens") or request.get("max_tokens") or NO_LIMIT,
        temperature=_number(request.get("temperature"), 1.0),
        seed=request.get("seed"),
        ignore_eos=bool(request.get("ignore_eos")),
        cache_salt=request.get("cache_salt"),
        model=request.get("model"),
        request=request,
    )


def _number(given: Any, default: float) -> float:
    return float(given) if isinstance(given, int | float) else default
