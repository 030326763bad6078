"""Both sides of ``agentrt bench techniques``: a context of ours, and text sent over HTTP."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import httpx

from agentrt.contexts import TokenContext
from agentrt.lab.bench.servers import Server

_SUM = re.compile(r"^vllm:iteration_tokens_total_(sum|count)\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class OurThread:
    """A context of the runtime."""

    context: TokenContext

    def fork(self) -> OurThread:
        return OurThread(self.context.fork())

    async def fill(self, text: str) -> None:
        await self.context.fill(text)

    async def write(self, tokens: int, *, temperature: float = 0.0, seed: int | None = None) -> str:
        made = self.context.generate(tokens, temperature=temperature, seed=seed, ignore_eos=True)
        return (await made).text

    async def worth(self, text: str) -> float:
        return (await self.context.score(text)).total

    def drop(self) -> None:
        self.context.drop()


@dataclass(slots=True)
class HttpThread:
    """Text, which goes to an OpenAI server as a whole with each call."""

    client: httpx.AsyncClient
    text: str

    def fork(self) -> HttpThread:
        return HttpThread(self.client, self.text)

    async def fill(self, text: str) -> None:
        self.text += text

    async def write(self, tokens: int, *, temperature: float = 0.0, seed: int | None = None) -> str:
        choice = await self._ask(self.text, tokens, temperature=temperature, seed=seed)
        self.text += choice["text"]
        return str(choice["text"])

    async def worth(self, text: str) -> float:
        choice = await self._ask(self.text + text, 1, echo=True, logprobs=0)
        found, whole = choice["logprobs"], len(self.text) + len(text)
        places = zip(found["text_offset"], found["token_logprobs"], strict=True)
        return float(sum(value for at, value in places if len(self.text) <= at < whole))

    def drop(self) -> None:
        """A server keeps nothing by name."""

    async def _ask(self, prompt: str, tokens: int, **more: Any) -> Any:
        body = {"model": Server.NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0}
        answer = await self.client.post("/completions", json=body | {"ignore_eos": True} | more)
        answer.raise_for_status()
        return answer.json()["choices"][0]


async def counted(client: httpx.AsyncClient) -> tuple[float, float]:
    """Steps of a vLLM server's engine so far, and tokens that it has computed in them."""
    page = (await client.get(str(client.base_url.copy_with(path="/metrics")))).text
    found = dict(_SUM.findall(page))
    return float(found.get("count", 0)), float(found.get("sum", 0))
