"""The output that a context generates: awaited as a whole, or read while it is generated.

An output that obeys an automaton has tokens that the automaton forces, and tokens that the model
chooses (`steered`).
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from agentrt.contexts.automaton import (
    END,
    Automaton,
    allowed_in,
    as_grammar,
    checked,
    follow,
    forced,
    over,
    token_choice,
)
from agentrt.contexts.emitter import Piece
from agentrt.contexts.results import Completion
from agentrt.errors import CallRejectedError, UsageError
from agentrt.request import CallReport, CallSpec, Reply, Usage
from agentrt.request.sampling import Constraint, Sampling, TokenLogprobs

Emit = Callable[[CallSpec], AsyncGenerator[Piece, None]]
"""A function that makes a call whose prompt is token ids."""
Read = Callable[[Sequence[int]], Awaitable[str]]
"""A function that converts token ids to text."""

_EACH_TRIED = 4
"""Number of tokens after each of which an automaton is converted to a grammar, if it has become
small enough. After that, the conversion is tried each time that the output is twice as long.
"""
_HALF = "\ufffd"
"""The replacement character, which a tokenizer returns for an incomplete character."""


@dataclass(frozen=True, slots=True)
class SteeredPiece:
    """A piece of the output; the last piece has the whole reply."""

    text: str
    token_ids: tuple[int, ...] = ()
    reply: Reply | None = None


async def steered(
    emit: Emit, read: Read, automaton: Automaton, spec: CallSpec
) -> AsyncGenerator[Piece, None]:
    """Generate the output after the prompt of ``spec``, with as few calls as possible.

    Where the automaton allows only one token, no call is needed. Raises `ConfigError` if the
    automaton allows a value that is neither a token id nor `END`, and `CallRejectedError` if the
    engine cannot follow the automaton.
    """
    output, state, next_try = _Output(spec, read), automaton.start, 0
    while output.finish_reason is None:
        tokens, state = forced(automaton, state, output.left)
        if tokens:
            yield await output.forced(tokens)
        if over(automaton, state) or not output.left:
            output.finish_reason = "stop" if over(automaton, state) else "length"
            break
        before = len(output.ids)
        grammar = None
        if before >= next_try:
            # What is left of an automaton may have few states. To find out that it has too many
            # blocks the event loop, so this is not tried again at each token.
            grammar = as_grammar(automaton, state)
            next_try = before + 1 if before < _EACH_TRIED else 2 * before
        step = output.rest(grammar) if grammar else output.one_token(allowed_in(automaton, state))
        async with aclosing(emit(step)) as pieces:
            async for piece in pieces:
                taken, state = follow(automaton, state, piece.token_ids)
                if len(taken) < len(piece.token_ids):  # the token that ends the output
                    output.finish_reason = "stop"
                if piece.reply is not None:
                    output.account(piece.reply)
                if taken:
                    yield await output.grown(taken)
        if len(output.ids) == before:
            output.finish_reason = "stop"
    yield await output.whole()


async def constrained(output: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of a constrained output without the token that ends it.

    Raises `CallRejectedError` if the engine could not follow the constraint.
    """
    async with aclosing(output) as pieces:
        async for piece in pieces:
            reply, last = piece.reply, len(piece.token_ids) - 1
            if reply is not None and reply.finish_reason == "error":
                raise CallRejectedError(
                    "the engine could not follow the constraint, which does not compile, is too "
                    "slow, or allows no token; make the constraint simpler"
                )
            if reply is not None and reply.finish_reason == "stop" and last >= 0:
                reply = replace(
                    reply,
                    token_ids=reply.token_ids[:-1],
                    token_logprobs=reply.token_logprobs[: len(reply.token_ids) - 1],
                )
                piece = SteeredPiece(piece.text, piece.token_ids[:last], reply)  # noqa: PLW2901
            yield piece


@dataclass(slots=True)
class _Output:
    """The output that was generated so far for ``spec``."""

    spec: CallSpec
    read: Read
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text: str = ""
    replies: list[Reply] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """The number of tokens before each call."""
    finish_reason: Literal["stop", "length"] | None = None
    _shown: tuple[int, int] = (0, 0)

    @property
    def left(self) -> int:
        """The number of tokens that may still be generated."""
        return self.spec.max_tokens - len(self.ids)

    # -- calls -------------------------------------------------------------------------

    def rest(self, grammar: Constraint) -> CallSpec:
        """Return a call that generates the rest of the output."""
        return self._next(self.left, constraint=grammar)

    def one_token(self, allowed: Iterable[int]) -> CallSpec:
        """Return a call that generates one of the ``allowed`` tokens."""
        tokens = {checked(token) for token in allowed}
        if END in tokens:
            return self._next(1, constraint=token_choice(tokens))
        return self._next(1, allowed_token_ids=tuple(sorted(tokens)))

    def _next(self, most: int, **changes: Any) -> CallSpec:
        spec = self.spec
        self.starts.append(len(self.ids))
        # With the same seed in each call, each token would be drawn with the same random number.
        seed = None if spec.seed is None else spec.seed + len(self.ids)
        return replace(
            spec,
            prompt_token_ids=(*(spec.prompt_token_ids or ()), *self.ids),
            max_tokens=most,
            seed=seed,
            sampling=replace(spec.sampling or Sampling(), **changes),
        )

    def account(self, reply: Reply) -> None:
        """Add the reply of a call. Raises `CallRejectedError` if the engine refused the call."""
        if reply.finish_reason == "error":
            raise CallRejectedError(
                "the engine could not follow an automaton: it allowed a token that is not in the "
                "model's vocabulary, or a token that ends an output; allow only tokens of the "
                "vocabulary, and END where the output may end"
            )
        self.replies.append(reply)
        self.logprobs += reply.token_logprobs

    # -- pieces ------------------------------------------------------------------------

    async def forced(self, tokens: Sequence[int]) -> SteeredPiece:
        """Add tokens that the automaton forced, and return them as a piece of the output."""
        self.logprobs += [((token, 0.0),) for token in tokens]
        return await self.grown(tokens)

    async def grown(self, tokens: Sequence[int]) -> SteeredPiece:
        """Add tokens, and return them as a piece of the output."""
        self.ids += tokens
        return SteeredPiece(await self._new_text(), tuple(tokens))

    async def _new_text(self, *, last: bool = False) -> str:
        """Return the text since the last piece.

        If this text ends with an incomplete character, return "" and keep the text for the next
        piece, unless this is the ``last`` piece.
        """
        # Decode the new tokens together with a few earlier tokens, because the text of a token may
        # depend on the tokens before it.
        start, end = self._shown
        before = await self.read(self.ids[start:end])
        text = await self.read(self.ids[start:])
        if text.endswith(_HALF) and not last:
            return ""
        self._shown = end, len(self.ids)
        new = text[len(before) :]
        self.text += new
        return new

    async def whole(self) -> SteeredPiece:
        """Return the last piece, with the replies of all calls as one reply, which has the node
        and the run of the last call.
        """
        text = await self._new_text(last=True)
        has_logprobs = (self.spec.sampling or Sampling()).logprobs is not None
        reply = replace(
            self.replies[-1] if self.replies else Reply(""),
            text=self.text,
            finish_reason=self.finish_reason or "stop",
            token_ids=tuple(self.ids),
            token_logprobs=tuple(self.logprobs[: len(self.ids)]) if has_logprobs else (),
            report=_together([reply.report for reply in self.replies], self.starts),
            tokens=tuple(tokens for reply in self.replies for tokens in reply.tokens),
        )
        return SteeredPiece(text, reply=reply)


def _together(reports: Sequence[CallReport], starts: Sequence[int]) -> CallReport:
    """Return one report for successive calls. It has the sums of their token counts, preemptions,
    seconds and steps, the versions of the weights for the tokens of all calls, the first call's
    ``arrived_step``, and all other values of the last call. ``starts`` has the number of tokens
    before each call.
    """
    if not reports:
        return CallReport()
    usage = sum(reports, Usage())
    versions: list[tuple[int, int]] = []
    for start, report in zip(starts, reports, strict=False):
        for index, version in report.versions or ((0, 0),):
            if not versions:
                versions.append((0, version))  # tokens that were forced before count to the first
            elif version != versions[-1][1]:
                versions.append((start + index, version))
    return replace(
        reports[-1],
        **{each.name: getattr(usage, each.name) for each in fields(Usage)},
        service_s=sum(report.service_s for report in reports),
        waiting_s=sum(report.waiting_s for report in reports),
        steps=sum(report.steps for report in reports),
        arrived_step=reports[0].arrived_step,
        versions=() if versions == [(0, 0)] else versions,
    )


Run = Callable[[bool], AsyncGenerator[Piece, None]]
"""A function that starts the call and returns the pieces of its output. It is called once, and its
argument is True if the pieces are to be streamed.
"""


class Generation(AsyncIterator[str]):
    """The output of a call. Await this object to get the `Completion`, or iterate over it to get
    the text in pieces.

    The call begins when this object is awaited or iterated over. Closing it, or cancelling the task
    that reads it, aborts the call. Then the context has only the tokens of the pieces that were
    read. An ``async with`` block closes it at its end; do this if a loop over the text may end
    early, because the context cannot be changed before the generation is closed.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pieces: AsyncGenerator[Piece, None] | None = None
        self._completion: Completion | None = None

    @property
    def completion(self) -> Completion:
        """The whole output. Raises `UsageError` before the output has ended."""
        if self._completion is None:
            raise UsageError("the generation has not ended; await it, or read it to its end first")
        return self._completion

    def __await__(self) -> Generator[Any, None, Completion]:
        return self._whole().__await__()

    async def __anext__(self) -> str:
        if self._pieces is None:
            self._pieces = self._run(True)
        async for piece in self._pieces:
            self._read(piece)
            if piece.text:
                return piece.text
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Abort the call."""
        if self._pieces is not None:
            await self._pieces.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def _whole(self) -> Completion:
        if self._pieces is None:
            self._pieces = self._run(False)
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                self._read(piece)
        return self.completion

    def _read(self, piece: Piece) -> None:
        if (reply := piece.reply) is not None:
            self._completion = Completion(
                reply.text,
                reply.token_ids,
                reply.finish_reason,
                reply.token_logprobs,
                reply.report,
                reply.node,
            )
