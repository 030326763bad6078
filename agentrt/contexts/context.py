"""A context: the tokens that a program has put before a model, as a value that it owns."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

from agentrt.contexts.attention import Attention
from agentrt.contexts.automaton import Automaton
from agentrt.contexts.chat import Chat, Content, is_messages
from agentrt.contexts.constraints import check_constrained
from agentrt.contexts.emitter import Piece, TokenEmitter
from agentrt.contexts.generation import Generation
from agentrt.contexts.results import Scores, TokenScore, likeliest
from agentrt.contexts.saved import SavedContext
from agentrt.contexts.steered import constrained, steered
from agentrt.errors import ConfigError, UsageError
from agentrt.request import CallSpec, Reply
from agentrt.request.sampling import Constraint, Sampling, TokenLogprobs
from agentrt.request.text import ReadsAsText

MOST_ALLOWED = 128
"""Tokens whose log probabilities vLLM gives where they are named."""


class TokenContext:
    """Tokens before a model: filled, forked, generated from, scored. `Context.context` makes it.

    What it holds are token ids, and nothing of the engine's: what is computed for them lies in the
    engine's prefix cache, and is computed again where it was evicted. Forks share it. What the
    model writes is appended as the very ids that it sampled. Each call of the engine is a node of
    the program's DAG, ranked by the policy. While it generates it cannot be changed: fork it.
    """

    def __init__(
        self, emitter: TokenEmitter, model: str | None = None, ids: Iterable[int] = ()
    ) -> None:
        self.model = model
        self._emitter = emitter
        self._ids = tuple(ids)
        self._chat = Chat()
        self._lineage = Lineage()
        self._busy = False
        self._dropped = False

    # -- what it holds -----------------------------------------------------------------

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All its tokens."""
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    async def text(self) -> str:
        """Its tokens as text, special tokens included."""
        return await self._read(self._ids)

    def fork(self) -> TokenContext:
        """Another context with the same tokens, which goes its own way. It costs nothing."""
        self._check_alive()
        other = TokenContext(self._emitter, self.model, self._ids)
        other._chat = self._chat
        other._lineage = self._lineage.fork(len(self))
        return other

    async def fill(self, content: Content) -> None:
        """Append text, token ids, or messages of a chat. It computes nothing by itself.

        Messages close the model's turn if it has just written, and open the next one. Raises
        `ConfigError` for messages with a chat template that cannot go on from the middle.
        """
        self._check_free()
        if is_messages(content):
            frontend = await self._emitter.frontend()
            chat = await self._chat.extended(frontend, self.model, self._ids, content)
            self._ids, self._chat = chat
        else:
            self._ids += await self._as_ids(content)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self._check_free()
        if not 0 <= length <= len(self._ids):
            raise ConfigError(f"truncate({length}) of a context of {len(self._ids)} tokens")
        self._ids = self._ids[:length]
        self._lineage.truncated(length)

    async def save(self, name: str) -> None:
        """Keep its tokens under ``name`` beyond the program, for programs of the same tenant;
        `Context.open` gives them back. Raises `ConfigError` where the tenant has no room left.
        """
        self._check_alive()
        self._emitter.save(name, SavedContext(array("I", self._ids), self.model))
        self.keep()

    def keep(self) -> None:
        """Others have the tokens that it has now: it does not give them up."""
        self._lineage.kept(len(self))

    def drop(self) -> None:
        """Give up the context: what is cached for it alone goes first. Idempotent."""
        if not self._dropped:
            self._dropped = True
            for call, shared in self._lineage.drop():
                self._emitter.dropped(call, shared)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.drop()

    # -- what the engine does ----------------------------------------------------------

    def generate(
        self,
        max_tokens: int = 256,
        *,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int | None = None,
        constrain: Constraint | Automaton | None = None,
        logits: Mapping[str, Any] | None = None,
        logprobs: int | None = None,
        allowed: Sequence[int] | None = None,
        ignore_eos: bool = False,
        attention: Attention | None = None,
    ) -> Generation:
        """Have the model go on: await it for a `Completion`, or iterate over its text.

        It ends at ``max_tokens``, at one of the strings ``stop`` or tokens ``stop_token_ids``, or
        where the model ends it, unless ``ignore_eos``. All its tokens are appended, the last one
        too. ``logprobs`` asks for the log probability of each, and of so many likeliest.
        ``allowed`` are the only tokens that may be sampled. The text obeys ``constrain``: what
        `json_schema`, `regex`, `choices` and `ebnf` make, or an `Automaton`; the
        token that ends it is left out. ``logits`` are the arguments of the engine's logits
        processors, by name. ``attention`` says which tokens each one sees, where the executor
        lets a program choose. Raises `ConfigError` for what cannot be, `PromptTooLongError` where
        the model's context is full, and `CallRejectedError` for what the engine does not take.
        """
        if constrain is not None:
            check_constrained(constrain, stop=bool(stop or stop_token_ids), ignore_eos=ignore_eos)
        sampling = Sampling(
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(stop_token_ids),
            logprobs=logprobs,
            constraint=constrain if isinstance(constrain, Constraint) else None,
            allowed_token_ids=None if allowed is None else tuple(allowed),
            logits=logits or {},
            attention=attention,
        )

        def run(stream: bool) -> AsyncGenerator[Piece, None]:
            spec = self._spec(
                self._ids, sampling, max_tokens, temperature, seed, ignore_eos=ignore_eos
            )
            return self._generated(spec, constrain, stream=stream)

        return Generation(run)

    async def score(
        self, content: str | Sequence[int], *, top: int = 0, attention: Attention | None = None
    ) -> Scores:
        """The log probability of each token of ``content`` after this context, in one forward
        pass over it; ``top`` asks for so many likeliest tokens at each place. Appends nothing.
        """
        ids = await self._as_ids(content)
        first = len(self._ids)
        if not (first and ids):
            raise ConfigError("score() needs a context that is not empty, and a text that is not")
        sampling = Sampling(
            score_from=first,
            score_top=top,
            logprobs=top or None,
            attention=attention,
            as_text=False,
        )
        reply = await self._reply(self._spec((*self._ids, *ids), sampling), "score")
        places = reply.prompt_logprobs
        scores = [TokenScore(*place[0], likeliest(place, top)) for place in places]
        after = reply.token_logprobs[0] if reply.token_logprobs else ()
        return Scores(tuple(scores), likeliest(after, top), reply.report)

    async def next_tokens(
        self,
        k: int = 20,
        *,
        allowed: Sequence[int] | None = None,
        attention: Attention | None = None,
    ) -> TokenLogprobs:
        """The ``k`` likeliest next tokens with their log probabilities, the likeliest first;
        with ``allowed``, of those alone, which may be up to 128. Appends nothing.
        """
        if k < 1:
            raise ConfigError(f"next_tokens(k={k}): k must be at least 1")
        if allowed is not None and not 0 < len(allowed) <= MOST_ALLOWED:
            raise ConfigError(
                f"next_tokens(allowed=…) takes 1 to {MOST_ALLOWED} tokens, not {len(allowed)}"
            )
        only = None if allowed is None else tuple(allowed)
        sampling = Sampling(logprobs=k, allowed_token_ids=only, attention=attention, as_text=False)
        spec = self._spec(self._ids, sampling)
        reply = await self._reply(spec, "next_tokens")
        self._saw(reply)
        return likeliest(reply.token_logprobs[0], k)

    # -- inside ------------------------------------------------------------------------

    def _spec(
        self,
        ids: tuple[int, ...],
        sampling: Sampling,
        max_tokens: int = 1,
        temperature: float = 0.0,
        seed: int | None = None,
        *,
        ignore_eos: bool = True,
    ) -> CallSpec:
        self._check_alive()
        if not ids:
            raise ConfigError("the context is empty: fill it first")
        return CallSpec(
            prompt_token_ids=ids,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            ignore_eos=ignore_eos,
            model=self.model,
            sampling=sampling,
        )

    async def _generated(
        self, spec: CallSpec, constrain: Constraint | Automaton | None, *, stream: bool
    ) -> AsyncGenerator[Piece, None]:
        self._check_free()
        self._busy = True
        call = partial(self._emitter.token_call, name="generate", stream=stream)
        if constrain is None:
            made = call(spec)
        elif isinstance(constrain, Constraint):
            made = constrained(call(spec))
        else:
            made = steered(call, self._read, constrain, spec)
        try:
            async for piece in made:
                self._ids += piece.token_ids
                self._saw(piece.reply)
                yield piece
        finally:
            self._busy = False
            await made.aclose()

    async def _reply(self, spec: CallSpec, name: str) -> Reply:
        reply = None
        async with aclosing(self._emitter.token_call(spec, name, stream=False)) as made:
            async for piece in made:
                reply = piece.reply
        assert reply is not None
        return reply

    def _saw(self, reply: Reply | None) -> None:
        if reply is not None and reply.node >= 0:
            self._lineage.called(reply.program_id, reply.node)

    async def _read(self, ids: Sequence[int]) -> str:
        frontend = await self._emitter.frontend()
        return await frontend.detokenize(ids, self.model)

    async def _as_ids(self, content: Content) -> tuple[int, ...]:
        if isinstance(content, str | ReadsAsText):
            frontend = await self._emitter.frontend()
            return tuple(await frontend.tokenize(str(content), self.model))
        if not all(isinstance(each, int) for each in content):
            raise ConfigError("a context takes text, chat messages, or token ids")
        return tuple(cast(Sequence[int], content))

    def _check_alive(self) -> None:
        if self._dropped:
            raise UsageError("the context was dropped: fork it before, or keep it")

    def _check_free(self) -> None:
        self._check_alive()
        if self._busy:
            raise UsageError("the context is generating: read that to its end, or use a fork")


# -- what contexts have in common, and what goes with one when it is dropped -------------------


@dataclass(slots=True, eq=False)
class Stretch:
    """Tokens from where ``before`` ends up to ``end``, which ``users`` contexts and stretches hold.

    ``call`` is the id of a call that had them in its prompt or output, "" for none yet.
    """

    end: int
    before: Stretch | None
    users: int
    call: str


class Lineage:
    """A context's place among its forks.

    A context that was cut off inside of what it shares is not followed any further: what it
    shares stays until its program ends.
    """

    def __init__(self, shared: Stretch | None = None) -> None:
        self._shared = shared
        self._call = ""
        self._strayed = False

    def called(self, program_id: str, node: int) -> None:
        """All tokens of the context went through a call."""
        self._call = f"{program_id}/{node}"

    def truncated(self, length: int) -> None:
        """The context has only its first tokens left."""
        self._strayed |= length < self._start

    def fork(self, length: int) -> Lineage:
        """Of a fork at ``length`` tokens: what it has in common is nobody's own any more."""
        if self._shared is None or length > self._start:
            self._shared = Stretch(length, self._shared, 1, self._call)
            self._call = ""
        self._shared.users += 1
        other = Lineage(self._shared)
        other._strayed = self._strayed
        return other

    def kept(self, length: int) -> None:
        """The context is saved: its tokens are not given up."""
        self.fork(length)

    def drop(self) -> list[tuple[str, int]]:
        """What nobody has any more: calls, and how many of their first tokens others still have."""
        gone = [(self._call, self._start)]
        stretch = None if self._strayed else self._shared
        while stretch is not None:
            stretch.call = stretch.call or self._call
            stretch.users -= 1
            if stretch.users:
                break
            before = stretch.before
            gone.append((stretch.call, 0 if before is None else before.end))
            stretch = before
        return [(call, first) for call, first in gone if call]

    @property
    def _start(self) -> int:
        return 0 if self._shared is None else self._shared.end
