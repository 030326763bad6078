"""Both sides of ``benchmarks techniques``: contexts of ours, and prompts sent over HTTP."""

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
    """Text before a model: a context of the runtime, with its program's."""

    ctx: Context
    context: TokenContext

    def fork(self) -> OurThread:
        return OurThread(self.ctx, self.context.fork())

    async def kept(self) -> OurThread:
        """As `fork`, by a name under which it is kept beyond the program."""
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
        """So many answers that are sampled, each with the thread that it ends."""
        branches = [self.fork() for _ in range(count)]
        writes = (one.write(tokens, temperature=1.0) for one in branches)
        return list(zip(await asyncio.gather(*writes), branches, strict=True))

    async def pieces(self, tokens: int, grammar: str) -> AsyncGenerator[str, None]:
        """What is written by a grammar, piece by piece; and it is appended."""
        async for piece in self.context.generate(tokens, constrain=ebnf(grammar)):
            yield piece

    async def worth(self, text: str) -> float:
        """The log probability of a text that would follow."""
        return (await self.context.score(text)).total

    async def likeliest(self, count: int) -> list[tuple[int, float]]:
        """The next tokens that are likeliest, with their log probabilities."""
        return list(await self.context.next_tokens(count))

    async def corrected(self, draft: Sequence[int]) -> list[int]:
        """The likeliest token at each place of a draft, and after it."""
        scores = await self.context.score(draft, top=1)
        return [score.top[0][0] for score in scores] + [scores.after[0][0]]

    async def tool(self, function: Callable[[str], Awaitable[str]], what: str) -> str:
        return str(await self.ctx.tool(function, what))

    def drop(self) -> None:
        self.context.drop()


@dataclass(slots=True)
class HttpClient:
    """A client of an OpenAI server, ``round_trip_s`` away."""

    client: httpx.AsyncClient
    round_trip_s: float = 0.0

    async def ask(self, prompt: str | Sequence[int], tokens: int, **more: Any) -> Any:
        """A completion's choices."""
        await asyncio.sleep(self.round_trip_s)
        answer = await self.client.post("/completions", json=_body(prompt, tokens, more))
        return _checked(answer).json()["choices"]

    async def pieces(
        self, prompt: str | Sequence[int], tokens: int, **more: Any
    ) -> AsyncIterator[str]:
        """A completion's text as it comes."""
        await asyncio.sleep(self.round_trip_s)
        body = _body(prompt, tokens, {**more, "stream": True})
        async with self.client.stream("POST", "/completions", json=body) as answer:
            async for line in _checked(answer).aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])["choices"][0]["text"]

    async def tokens_of(self, text: str) -> list[int]:
        """A text's token ids, as the server's tokenizer has them."""
        await asyncio.sleep(self.round_trip_s)
        url = str(self.client.base_url.copy_with(path="/tokenize"))
        answer = await self.client.post(url, json={"model": Server.NAME, "prompt": text})
        return list(_checked(answer).json()["tokens"])

    async def counted(self) -> tuple[float, float]:
        """Steps of the server's engine so far, and tokens that it has computed in them."""
        page = (await self.client.get(str(self.client.base_url.copy_with(path="/metrics")))).text
        found = dict(_SUM.findall(page))
        return float(found.get("count", 0)), float(found.get("sum", 0))


@dataclass(slots=True)
class HttpThread:
    """A prompt, which goes to an OpenAI server as a whole with each call: text, or token ids
    once a technique has asked for those.
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
        # Without the seed: with one, a prompt that is read in two steps ends vLLM's core on a
        # CPU ("CPU Generator does not use offset"), and its server answers 500 from then on.
        [choice] = await self.client.ask(self.prompt, tokens, temperature=temperature)
        await self.fill(choice["text"])
        return str(choice["text"])

    async def answers(self, count: int, tokens: int) -> list[tuple[str, HttpThread]]:
        choices = await self.client.ask(self.prompt, tokens, temperature=1.0, n=count)
        assert isinstance(self.prompt, str)
        texts = [choice["text"] for choice in choices]
        return [(text, HttpThread(self.client, self.prompt + text)) for text in texts]

    async def pieces(self, tokens: int, grammar: str) -> AsyncGenerator[str, None]:
        more = {"structured_outputs": {"grammar": grammar}, "ignore_eos": False}
        wrote = ""
        async for piece in self.client.pieces(self.prompt, tokens, **more):
            wrote += piece
            yield piece
        await self.fill(wrote)

    async def worth(self, text: str) -> float:
        assert isinstance(self.prompt, str)
        [choice] = await self.client.ask(self.prompt + text, 1, echo=True, logprobs=0)
        found, first = choice["logprobs"], len(self.prompt)
        places = zip(found["text_offset"], found["token_logprobs"], strict=True)
        return float(sum(value for at, value in places if first <= at < first + len(text)))

    async def likeliest(self, count: int) -> list[tuple[int, float]]:
        more = {"logprobs": count, "return_tokens_as_token_ids": True}
        [choice] = await self.client.ask(await self.ids(), 1, **more)
        [place] = choice["logprobs"]["top_logprobs"]
        found = [(int(name.removeprefix(_ID)), value) for name, value in place.items()]
        return sorted(found, key=lambda each: -each[1])[:count]

    async def corrected(self, draft: Sequence[int]) -> list[int]:
        more = {"prompt_logprobs": 1, "return_token_ids": True}
        [choice] = await self.client.ask([*await self.ids(), *draft], 1, **more)
        places = choice["prompt_logprobs"][-len(draft) :]
        best = [next(token for token, at in place.items() if at["rank"] == 1) for place in places]
        return [*map(int, best), choice["token_ids"][0]]

    async def tool(self, function: Callable[[str], Awaitable[str]], what: str) -> str:
        return await function(what)

    def drop(self) -> None:
        """A server keeps nothing by name."""


Thread = OurThread | HttpThread
"""What a technique runs on; both sides have the same methods."""


def _body(prompt: str | Sequence[int], tokens: int, more: dict[str, Any]) -> dict[str, Any]:
    body = {"model": Server.NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0}
    return body | {"ignore_eos": True} | more


def _checked(answer: httpx.Response) -> httpx.Response:
    answer.raise_for_status()
    return answer
