"""The threads of both sides of ``benchmarks techniques``: contexts of agentrt, and prompts sent
over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from agentrt import Context
from agentrt.contexts import TokenContext, ebnf
from benchmarks.servers import Server

_SUM = re.compile(r"^vllm:iteration_tokens_total_(sum|count)\{[^}]*\} (\S+)$", re.MULTILINE)
_ID = "token_id:"
GREEN = "GreenList"
DELTA = 4.0


@dataclass(slots=True)
class OurThread:
    """A thread that is a ``context`` of agentrt. ``ctx`` belongs to the program that uses the
    context.
    """

    ctx: Context
    context: TokenContext

    def fork(self) -> OurThread:
        return OurThread(self.ctx, self.context.fork())

    async def kept(self) -> OurThread:
        """Save the thread's context under a name, so that the saved context outlives the program.
        Return a thread that continues the saved context.
        """
        name = str(hash(self.context.token_ids))
        await self.context.save(name)
        return OurThread(self.ctx, await self.ctx.open(name))

    async def fill(self, text: str) -> None:
        await self.context.fill(text)

    async def push(self, ids: Sequence[int]) -> None:
        """Append tokens."""
        await self.context.fill(ids)

    async def ids(self) -> Sequence[int]:
        return self.context.token_ids

    async def write(
        self,
        tokens: int,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        logits: dict[str, Any] | None = None,
    ) -> str:
        made = self.context.generate(
            tokens, temperature=temperature, seed=seed, ignore_eos=True, logits=logits
        )
        return (await made).text

    async def answers(self, count: int, tokens: int) -> list[tuple[str, OurThread]]:
        """Sample ``count`` answers. Return each answer with a fork of the thread that ends with
        this answer.
        """
        branches = [self.fork() for _ in range(count)]
        writes = (branch.write(tokens, temperature=1.0) for branch in branches)
        return list(zip(await asyncio.gather(*writes), branches, strict=True))

    async def pieces(self, tokens: int, grammar: str) -> AsyncGenerator[str, None]:
        """Write a text that a grammar constrains, yield its pieces, and append it."""
        async for piece in self.context.generate(tokens, constrain=ebnf(grammar)):
            yield piece

    async def worth(self, text: str) -> float:
        """Return the log probability of a text as the continuation of the thread."""
        return (await self.context.score(text)).total

    async def likeliest(self, count: int) -> list[tuple[int, float]]:
        """Return the likeliest next tokens with their log probabilities."""
        return list(await self.context.next_tokens(count))

    async def corrected(self, draft: Sequence[int]) -> list[int]:
        """Return the likeliest token at each position of a draft, and after the draft."""
        scores = await self.context.score(draft, top=1)
        return [score.top[0][0] for score in scores] + [scores.after[0][0]]

    async def tool(self, function: Callable[[str], Awaitable[str]], item: str) -> str:
        return str(await self.ctx.tool(function, item))

    def drop(self) -> None:
        self.context.drop()


@dataclass(slots=True)
class HttpClient:
    """A client of an OpenAI server at a distance of ``round_trip_s`` seconds."""

    client: httpx.AsyncClient
    round_trip_s: float = 0.0

    async def ask(self, prompt: str | Sequence[int], tokens: int, **fields: Any) -> Any:
        """Request a completion, and return its choices. ``fields`` are further fields of the
        request.
        """
        await asyncio.sleep(self.round_trip_s)
        answer = await self.client.post("/completions", json=_body(prompt, tokens, fields))
        return _checked(answer).json()["choices"]

    async def pieces(
        self, prompt: str | Sequence[int], tokens: int, **fields: Any
    ) -> AsyncIterator[str]:
        """Yield the text of a completion as it arrives."""
        await asyncio.sleep(self.round_trip_s)
        body = _body(prompt, tokens, {**fields, "stream": True})
        async with self.client.stream("POST", "/completions", json=body) as answer:
            async for line in _checked(answer).aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])["choices"][0]["text"]

    async def tokens_of(self, text: str) -> list[int]:
        """Return a text's token ids, by the server's tokenizer."""
        await asyncio.sleep(self.round_trip_s)
        url = str(self.client.base_url.copy_with(path="/tokenize"))
        answer = await self.client.post(url, json={"model": Server.NAME, "prompt": text})
        return list(_checked(answer).json()["tokens"])

    async def counted(self) -> tuple[float, float]:
        """Return the number of steps of the server's engine so far, and the number of tokens
        computed in these steps.
        """
        page = (await self.client.get(str(self.client.base_url.copy_with(path="/metrics")))).text
        counts = dict(_SUM.findall(page))
        return float(counts.get("count", 0)), float(counts.get("sum", 0))


@dataclass(slots=True)
class HttpThread:
    """A thread that is a prompt. Each call sends the whole prompt to an OpenAI server: as text, or
    as token ids after a technique has asked for token ids.
    """

    client: HttpClient
    prompt: str | list[int]

    def fork(self) -> HttpThread:
        return HttpThread(self.client, self.prompt[:])

    async def kept(self) -> HttpThread:
        return self.fork()

    async def fill(self, text: str) -> None:
        assert isinstance(self.prompt, str)
        self.prompt += text

    async def push(self, ids: Sequence[int]) -> None:
        self.prompt = [*await self.ids(), *ids]

    async def ids(self) -> Sequence[int]:
        if isinstance(self.prompt, str):
            self.prompt = await self.client.tokens_of(self.prompt)
        return self.prompt

    async def write(self, tokens: int, *, temperature: float = 0.0, seed: int | None = None) -> str:
        # The seed is left out: with a seed, a prompt that is computed in two steps kills vLLM's
        # engine core on a CPU ("CPU Generator does not use offset"). From then on, vLLM's server
        # answers 500.
        [choice] = await self.client.ask(self.prompt, tokens, temperature=temperature)
        await self.fill(choice["text"])
        return str(choice["text"])

    async def answers(self, count: int, tokens: int) -> list[tuple[str, HttpThread]]:
        choices = await self.client.ask(self.prompt, tokens, temperature=1.0, n=count)
        assert isinstance(self.prompt, str)
        texts = [choice["text"] for choice in choices]
        return [(text, HttpThread(self.client, self.prompt + text)) for text in texts]

    async def pieces(self, tokens: int, grammar: str) -> AsyncGenerator[str, None]:
        fields = {"structured_outputs": {"grammar": grammar}, "ignore_eos": False}
        wrote = ""
        async for piece in self.client.pieces(self.prompt, tokens, **fields):
            wrote += piece
            yield piece
        await self.fill(wrote)

    async def worth(self, text: str) -> float:
        assert isinstance(self.prompt, str)
        [choice] = await self.client.ask(self.prompt + text, 1, echo=True, logprobs=0)
        logprobs, first = choice["logprobs"], len(self.prompt)
        places = zip(logprobs["text_offset"], logprobs["token_logprobs"], strict=True)
        return float(sum(value for at, value in places if first <= at < first + len(text)))

    async def likeliest(self, count: int) -> list[tuple[int, float]]:
        fields = {"logprobs": count, "return_tokens_as_token_ids": True}
        [choice] = await self.client.ask(await self.ids(), 1, **fields)
        [place] = choice["logprobs"]["top_logprobs"]
        likely = [(int(name.removeprefix(_ID)), value) for name, value in place.items()]
        return sorted(likely, key=lambda each: -each[1])[:count]

    async def corrected(self, draft: Sequence[int]) -> list[int]:
        fields = {"prompt_logprobs": 1, "return_token_ids": True}
        [choice] = await self.client.ask([*await self.ids(), *draft], 1, **fields)
        places = choice["prompt_logprobs"][-len(draft) :]
        best = [next(token for token, at in place.items() if at["rank"] == 1) for place in places]
        return [*map(int, best), choice["token_ids"][0]]

    async def tool(self, function: Callable[[str], Awaitable[str]], item: str) -> str:
        return await function(item)

    def drop(self) -> None:
        """Do nothing, because an OpenAI server has no context that a client could drop."""


Thread = OurThread | HttpThread
"""The thread that a technique runs on; both sides have the same methods."""


def _body(prompt: str | Sequence[int], tokens: int, fields: dict[str, Any]) -> dict[str, Any]:
    body = {"model": Server.NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0}
    return body | {"ignore_eos": True} | fields


def _checked(answer: httpx.Response) -> httpx.Response:
    answer.raise_for_status()
    return answer
