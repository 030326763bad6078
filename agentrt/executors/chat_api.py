"""The interface for chat requests: a `Frontend` converts them to calls, and outputs to answers.

A front end with a tokenizer renders chats before their calls are scheduled, and vLLM's front end
also reads tool calls from outputs. `RequestFrontend` passes chats on as they are. A front end makes
calls through a `Caller`, which stands for a program. Programs in this process pass their caller as
an argument. vLLM's HTTP application has no argument for a caller, and reads the context variable
`CALLER`.

With vLLM, text becomes tokens when `VLLMFrontend` renders a chat: vLLM's chat template gives the
prompt's text, and vLLM's tokenizer its token ids. Tokens become text in vLLM's own detokenizer,
before the engine yields a `Chunk`. The detokenizer runs in the process that has vLLM's client: this
process, or with Ray the process of an `EngineActor` on the engine's node. The front end, always in
this process, then finds reasoning and tool calls in that text. HTTP requests take the same two
steps inside vLLM's HTTP application.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from agentrt.errors import AgentrtError, ConfigError
from agentrt.executors.base import Chunk, Executor
from agentrt.executors.info import ExecutorInfo, display_name
from agentrt.request import NO_LIMIT, Call, CallSpec, Identity, Reply

T = TypeVar("T")
_NO_TOKENS = (
    "this executor takes chats as text and has no tokenizer; to use contexts or to count tokens, "
    "run an engine in this process (--model)"
)
_HALF = (
    "the text has half of a surrogate pair, which models do not read; remove it, for example with "
    "text.encode('utf-8', 'replace').decode()"
)
Request = Mapping[str, Any]
"""A chat request in the form of OpenAI's chat completions, with vLLM's further fields."""
Answer = dict[str, Any]
"""A ``chat.completion``, or in a stream a ``chat.completion.chunk``, in OpenAI's form."""


class Caller(Protocol):
    """The program for which a front end makes calls, at some point of the program's run."""

    def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Make a call, and yield its output as `Executor.generate` does."""

    def siblings(self, count: int) -> contextlib.AbstractContextManager[Sequence[Caller]]:
        """Return a context manager that gives callers for ``count`` parallel calls. The calls must
        end before its ``with`` block ends.
        """

    def closed(self, read: int) -> None:
        """Note that the reader has closed the stream of this caller's call, after it had read
        ``read`` tokens of the output. The call is then cancelled.
        """
        return

    def failed(self, error: BaseException) -> AgentrtError | None:
        """Return the error to raise instead of ``error``; None to raise ``error`` itself."""
        return error if isinstance(error, AgentrtError) else None

    def limited(self, max_tokens: int) -> None:
        """Note that the answer may have at most ``max_tokens`` tokens, fewer than requested."""
        return

    def left_out(self, part: str) -> None:
        """Note that a ``part`` of the request cannot be used, and was left out."""
        return


FIELDS = "agentrt.fields"
"""The key of an ASGI scope for the request's body, parsed as a JSON object."""
GONE = "agentrt.gone"
"""The key of an ASGI scope for a future that is done when the client has disconnected. If the scope
does not have it, only ``receive`` says so: behind another server, and behind a middleware of the
user that has a ``receive`` of its own.
"""
CALLER: ContextVar[Caller | None] = ContextVar("agentrt_caller", default=None)
"""The caller for which vLLM's own code makes calls through its engine client now."""
WORKS_FOR: ContextVar[str] = ContextVar("agentrt_works_for", default="")
"""The tenant whose request a front end handles now. Tenants take turns in the threads that render
and tokenize prompts.

This is a context variable, because vLLM's renderer cannot pass the tenant on as an argument.
"""


class NoProgram(Caller):
    """A caller without a program: each of its calls on ``executor`` is a program of its own, which
    belongs to the tenant of `WORKS_FOR`.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Make a call, and end its program."""
        name = f"lone-{uuid4().hex}"
        identity = Identity(f"{name}/0", name, "lone")
        if tenant := WORKS_FOR.get():
            identity = replace(identity, tenant=tenant)
        call = Call(identity, spec)
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
        """Return this caller ``count`` times."""
        yield [self] * count


def caller() -> Caller:
    """Return the caller for which vLLM's own code makes a call now.

    Raises `AgentrtError` if no caller is set.
    """
    current = CALLER.get()
    if current is None:
        raise AgentrtError(
            "vLLM's application made a call, but no caller is set for it; handle the request in a "
            "block `with calling(caller):`"
        )
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
    """Set the caller for the calls that vLLM's own code makes in the ``with`` block."""
    return _Calling(caller)


async def stepped(caller: Caller, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the items of a stream. ``caller`` is the caller of the calls that vLLM's code makes
    while the stream computes an item.
    """
    async with contextlib.aclosing(items):
        while True:
            with calling(caller):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item


def refusal(error: Exception) -> str:
    """Return why a text cannot be passed to a model, given the ``error`` of a tokenizer, of a chat
    template or of an encoder.
    """
    # The tokenizers of Hugging Face only say that such a text is not a text.
    is_half = isinstance(error, TypeError) and str(error).startswith("TextEncodeInput")
    return _HALF if is_half or isinstance(error, UnicodeEncodeError) else str(error)


@dataclass(frozen=True, slots=True)
class FrontProfile:
    """The abilities of a model: the kinds of inputs and outputs that it supports.

    ``max_model_len`` is the maximum number of tokens of prompt and output together; None if not
    known. ``media_in_tools`` says that the results of tools may have the same media as messages of
    a user.
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
    """Answers chat requests by making calls through the ``caller`` of each request.

    Its methods raise `CallRejectedError` for a request that is not supported, `PromptTooLongError`
    for a chat that exceeds the model's context, `NotServedError` for a model that is not served,
    and the errors of `Executor.generate`. The methods from `count_tokens` to `addressed` raise
    `ConfigError` if the front end has no tokenizer.
    """

    @abstractmethod
    async def chat(self, request: Request, caller: Caller) -> Answer:
        """Answer a request, and return the whole answer."""

    @abstractmethod
    def chat_stream(self, request: Request, caller: Caller) -> AsyncGenerator[Answer, None]:
        """Answer a request, and yield the answer in pieces. Closing the iterator aborts the calls
        that it makes.
        """

    @abstractmethod
    def profile(self, model: str | None = None) -> FrontProfile:
        """Return the abilities of a served model; None means the first model."""

    async def count_tokens(self, request: Request) -> int:
        """Return the number of tokens of a chat's prompt, rendered with the chat template."""
        return len(await self.render(request))

    async def render(self, request: Request) -> list[int]:
        """Return the token ids of a chat's prompt, rendered with the chat template."""
        raise ConfigError(_NO_TOKENS)

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        """Return the token ids of a text. No special tokens are added. Raises `CallRejectedError`
        for a text that the tokenizer refuses.
        """
        raise ConfigError(_NO_TOKENS)

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str:
        """Return the text of token ids, with special tokens."""
        raise ConfigError(_NO_TOKENS)

    def addressed(self, spec: CallSpec) -> CallSpec:
        """Return ``spec``, a call whose prompt is token ids, with its model or adapter in the form
        that executors need.
        """
        raise ConfigError(_NO_TOKENS)

    async def close(self) -> None:  # noqa: B027  # most front ends have nothing to close
        """Release the front end's resources. Idempotent."""


class RequestFrontend(Frontend):
    """The front end of executors that take chat requests, such as a remote endpoint.

    If the executor returns only text, without ``Chunk.output``, the answer is built here.
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
        # In OpenAI's API, the results of tools are only text.
        return FrontProfile(name, images=self._info.images, media_in_tools=False)


async def _pieces(chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Answer, None]:
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            yield piece_of(chunk) if chunk.output is None else chunk.output


def whole_of(reply: Reply) -> Answer:
    """Return a reply as a ``chat.completion``."""
    choice = {"index": 0, "message": reply.message, "finish_reason": reply.finish_reason}
    return {"object": "chat.completion", "choices": [choice], "usage": _usage(reply)}


def piece_of(chunk: Chunk) -> Answer:
    """Return a piece of an executor's output as a ``chat.completion.chunk``."""
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
    """Convert a chat request to a `CallSpec`, without rendering the chat.

    The fields that schedulers and routers read are copied from the request.
    """
    return CallSpec(
        max_tokens=request.get("max_completion_tokens") or request.get("max_tokens") or NO_LIMIT,
        temperature=_number(request.get("temperature"), 1.0),
        seed=request.get("seed"),
        ignore_eos=bool(request.get("ignore_eos")),
        cache_salt=request.get("cache_salt"),
        model=request.get("model"),
        request=request,
    )


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default
