"""An engine whose tokens are letters, with a front end of its own: for tests of token ids.

    engine = LettersEngine(lambda call: "what it says")

A message is rendered as ``<role: content>``, and the model's turn begins with ``<assistant: ``.
What it says ends with ``>``, so that a chat that grows extends its tokens. The log probability of a
token depends on every token before it, so that `logprob` says whether recorded ones are exact.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.chat_api import (
    Answer,
    Caller,
    Frontend,
    FrontProfile,
    Request,
    piece_of,
    spec_of,
    whole_of,
)
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.weights import Weights
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.request.sampling import Sampling
from agentrt.request.weights import PauseMode

END = ord(">")
Says = Callable[[str, Call], str]
"""What the model says after a prompt's text."""


def logprob(before: Sequence[int], token: int) -> float:
    """The log probability of a token after those before it, as 32 bits hold it."""
    value = -(zlib.crc32(bytes(array("I", [*before, token]))) % 1_000_000) / 77_777
    return array("f", [value])[0]


def ids_of(text: str) -> list[int]:
    return [*map(ord, text)]


def text_of(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


class LettersEngine(Executor):
    """Says what ``says`` says to a prompt, one letter in each step of the event loop.

    ``calls`` are the prompts so far, as text. Without ``logprobs`` it reports none. Its weights
    have a version, and change nothing.
    """

    def __init__(self, says: Says, *, logprobs: bool = True) -> None:
        self.calls: list[str] = []
        self._says, self._reports = says, logprobs
        self._open = False
        self._weights = Weights()

    @property
    def weights(self) -> Weights:
        return self._weights

    async def pause_generation(self, mode: PauseMode) -> None: ...

    async def check_weights(self, folder: str) -> str:
        return ""

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        self._weights = weights

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(("letters",), logprobs=self._reports)

    async def start(self, progress: Progress) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False

    def alive(self) -> bool:
        return self._open

    def own_frontend(self, names: Sequence[str]) -> Frontend:
        return LettersFrontend()

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if not self._open:
            raise EngineDiedError("the engine of letters is not running")
        prompt = list(call.spec.prompt_token_ids or ())
        self.calls.append(text_of(prompt))
        version = self._weights.version
        versions = ((0, version),) if version else ()
        ids = [*ids_of(self._says(text_of(prompt), call)), END][: call.spec.max_tokens]
        values = [logprob([*prompt, *ids[:n]], token) for n, token in enumerate(ids)]
        for token, value in zip(ids[:-1], values, strict=False):
            await asyncio.sleep(0)
            if stream:
                logprobs = (value,) if call.spec.with_logprobs else ()
                yield Chunk(chr(token), token_ids=(token,), logprobs=logprobs)
        ended = ids[-1] == END
        text = text_of(ids[:-1] if ended else ids)
        sampling = call.spec.sampling
        wanted = call.spec.with_logprobs or (sampling is not None and sampling.logprobs is not None)
        reply = Reply(
            text,
            "stop" if ended else "length",
            token_ids=tuple(ids),
            report=CallReport(prompt_tokens=len(prompt), output_tokens=len(ids), versions=versions),
            token_logprobs=tuple(((t, v),) for t, v in zip(ids, values, strict=True))
            if wanted
            else (),
        )
        last = "" if ended else text[-1:]
        own = (values[-1],) if call.spec.with_logprobs else ()
        if stream:
            yield Chunk(last, reply, token_ids=(ids[-1],), logprobs=own)
        else:
            yield Chunk(text, reply, token_ids=tuple(ids), logprobs=tuple(values))


class LettersFrontend(Frontend):
    """Renders chats as letters."""

    async def chat(self, request: Request, caller: Caller) -> Answer:
        spec = await self._spec(request)
        if (request.get("n") or 1) == 1:
            return whole_of(await _reply(caller, spec))
        with caller.siblings(request["n"]) as siblings:
            replies = await asyncio.gather(*(_reply(each, spec) for each in siblings))
        choices = [
            {**whole_of(reply)["choices"][0], "index": index} for index, reply in enumerate(replies)
        ]
        return {**whole_of(replies[0]), "choices": choices}

    async def chat_stream(self, request: Request, caller: Caller) -> AsyncGenerator[Answer, None]:
        made = caller.chunks(await self._spec(request), stream=True)
        async with contextlib.aclosing(made) as chunks:
            async for chunk in chunks:
                yield piece_of(chunk)

    async def _spec(self, request: Request) -> CallSpec:
        ids = tuple(await self.render(request))
        spec = replace(spec_of(request), request=None, prompt_token_ids=ids)
        return replace(spec, sampling=Sampling())

    async def render(self, request: Request) -> list[int]:
        messages: list[dict[str, Any]] = list(request["messages"])
        turns = [f"<{each['role']}: {each['content']}>" for each in messages]
        return ids_of("".join(turns) + "<assistant: ")

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        return ids_of(text)

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str:
        return text_of(ids)

    def addressed(self, spec: CallSpec) -> CallSpec:
        return spec

    def profile(self, model: str | None = None) -> FrontProfile:
        return FrontProfile("letters")


async def _reply(caller: Caller, spec: CallSpec) -> Reply:
    async with contextlib.aclosing(caller.chunks(spec, stream=False)) as chunks:
        async for chunk in chunks:
            if chunk.reply is not None:
                return chunk.reply
    raise AssertionError("the last piece has the reply")
