"""A context: the tokens of a prompt, as a value that a program owns and extends."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, Self

from agentrt.contexts.attention import Attention
from agentrt.contexts.automaton import Automaton
from agentrt.contexts.chat import Chat, Content, is_messages
from agentrt.contexts.constraints import check_constrained
from agentrt.contexts.emitter import Piece, TokenEmitter
from agentrt.contexts.generation import Generation, constrained, steered
from agentrt.contexts.results import Scores, TokenScore, likeliest
from agentrt.contexts.saved import SavedContext
from agentrt.errors import ConfigError, UsageError
from agentrt.request import CallReport, CallSpec, Reply
from agentrt.request.sampling import Constraint, Sampling, TokenLogprobs
from agentrt.request.text import ReadsAsText

MOST_ALLOWED = 128
"""Maximum number of tokens for which a call can request the log probabilities from vLLM."""
_END_OF_IDS = 2**32
"""A saved context has four bytes for each token id."""
_Work = Literal["generating", "filling"]


class TokenContext:
    """A context: tokens that a program fills, forks, generates from and scores.

    `Context.context` creates a context. A context has only token ids. The KV blocks that were
    computed for these tokens are in the engine's prefix cache, where forks share them; blocks that
    were evicted are computed again. The tokens that the model samples are appended unchanged. Each
    call of the engine is a node of the program's DAG, and is ranked by the policy. While a context
    generates or is filled, it cannot be changed, but it can be forked.
    """

    def __init__(
        self, emitter: TokenEmitter, model: str | None = None, ids: Iterable[int] = ()
    ) -> None:
        self.model = model
        self._emitter = emitter
        self._ids = tuple(ids)
        self._chat = Chat()
        self._lineage = Lineage()
        self._busy: _Work | None = None
        self._dropped = False

    # -- tokens ------------------------------------------------------------------------

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of all tokens of the context."""
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    async def text(self) -> str:
        """Return the tokens as text, including special tokens."""
        return await self._read(self._ids)

    def fork(self) -> TokenContext:
        """Return an independent context with the same tokens. Nothing is computed or copied."""
        self._check_alive()
        other = TokenContext(self._emitter, self.model, self._ids)
        other._chat = self._chat
        other._lineage = self._lineage.fork(len(self))
        return other

    async def fill(self, content: Content) -> None:
        """Append text, token ids, or chat messages. The engine computes nothing yet.

        Messages close the model's last turn, if there is one, and open the model's next turn.
        Token ids and messages may come from any iterable, such as a generator or an array of numpy.
        Raises `ConfigError` for a list of other values, and for messages if the chat template
        cannot continue in the middle of a chat. Raises `UsageError` if the context was dropped, is
        generating, or is being filled.
        """
        with self._changing("filling"):
            read = _read_content(content)
            if is_messages(read):
                frontend = await self._emitter.frontend()
                chat = await self._chat.extended(frontend, self.model, self._ids, read)
                self._ids, self._chat = chat
            else:
                self._ids += await self._as_ids(read)

    def truncate(self, length: int) -> None:
        """Remove all tokens except the first ``length``. Raises `ConfigError` if ``length`` is
        negative or more than the context has, and `UsageError` if the context was dropped, is
        generating, or is being filled.
        """
        self._check_free()
        if not 0 <= _whole("the length", length) <= len(self._ids):
            raise ConfigError(
                f"truncate({length}): the context has {len(self._ids)} tokens; the length must be "
                f"from 0 to {len(self._ids)}"
            )
        self._ids = self._ids[:length]
        self._chat = self._chat.truncated(length)
        self._lineage.truncated(length)

    async def save(self, name: str) -> None:
        """Save the tokens under ``name``, for later programs of the same tenant.

        `Context.open` returns a context with the saved tokens. Raises `ConfigError` if the tenant's
        saved contexts would be too large, or if the name is empty or too long.
        """
        self._check_alive()
        self._emitter.save(name, SavedContext(array("I", self._ids), self.model, self._chat.opened))
        self.keep()

    def keep(self) -> None:
        """Let the cached blocks of the current tokens keep their place in the order of eviction
        when this context is dropped. Otherwise these blocks would be evicted before other blocks.
        """
        self._lineage.kept(len(self))

    def drop(self) -> None:
        """Give up the context, so that blocks that are cached only for it are evicted first.
        Idempotent. Afterwards, forking, changing, saving, generating or scoring raises
        `UsageError`.
        """
        if not self._dropped:
            self._dropped = True
            for call, shared in self._lineage.drop():
                self._emitter.dropped(call, shared)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.drop()

    # -- calls of the engine -----------------------------------------------------------

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
        """Let the model continue the context, and append what it generates.

        Await the result to get a `Completion`, or iterate over the result to get its text. All
        generated tokens are appended to the context. This includes the token that ends the output,
        except with ``constrain``.

        Args:
            max_tokens: Maximum number of tokens to generate.
            stop: Strings that end the output.
            stop_token_ids: Tokens that end the output.
            temperature: 0 chooses the likeliest token; higher values sample more freely.
            top_p: Samples from the likeliest tokens that have this probability together.
            top_k: Samples from this number of the likeliest tokens; 0 means no limit.
            min_p: Samples from tokens with at least this part of the likeliest token's probability.
            seed: The seed for sampling; by default the runtime draws one.
            constrain: A constraint of the text: a result of `json_schema`, `regex`, `choices` or
                `ebnf`, or an `Automaton`.
            logits: The arguments of the engine's logits processors, by their names.
            logprobs: The number of the likeliest tokens whose log probabilities are returned for
                each position, in addition to that of the generated token.
            allowed: The only token ids that may be sampled; not with an `Automaton`.
            ignore_eos: Continue to ``max_tokens`` even if the model ends its output.
            attention: Which earlier tokens each token sees, for executors that support it.

        Raises:
            ConfigError: An argument is not valid.
            UsageError: The context was dropped, is generating, or is being filled.
            PromptTooLongError: The tokens leave no room for an output in the model's context.
            CallRejectedError: The engine does not support an argument.
        """
        if constrain is not None:
            check_constrained(
                constrain,
                stop=bool(stop or stop_token_ids),
                ignore_eos=ignore_eos,
                allowed=allowed is not None,
            )
        if (most := _whole("max_tokens", max_tokens)) < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {most}")
        heat = _number("temperature", temperature)
        only_seed = None if seed is None else _whole("seed", seed)
        if not isinstance(ignore_eos, bool):
            raise ConfigError(f"ignore_eos must be True or False, got {ignore_eos!r}")
        if logits is not None and not isinstance(logits, Mapping):
            raise ConfigError(f"logits must be a mapping of processors to values, got {logits!r}")
        sampling = Sampling(
            top_p=_number("top_p", top_p),
            top_k=_whole("top_k", top_k),
            min_p=_number("min_p", min_p),
            stop=_texts("stop", stop),
            stop_token_ids=_token_ids("stop_token_ids", stop_token_ids),
            logprobs=None if logprobs is None else _whole("logprobs", logprobs),
            constraint=constrain if isinstance(constrain, Constraint) else None,
            allowed_token_ids=None if allowed is None else _token_ids("allowed", allowed),
            logits=logits or {},
            attention=attention,
        )

        def run(stream: bool) -> AsyncGenerator[Piece, None]:
            spec = self._spec(self._ids, sampling, most, heat, only_seed, ignore_eos=ignore_eos)
            return self._generated(spec, constrain, stream=stream)

        return Generation(run)

    async def score(
        self,
        content: str | ReadsAsText | Iterable[int],
        *,
        top: int = 0,
        attention: Attention | None = None,
    ) -> Scores:
        """Return the log probability of each token of ``content`` after this context.

        The engine makes one forward pass over ``content``. The context is not changed. ``top`` is
        the number of the likeliest tokens that are returned for each position. Raises `ConfigError`
        if the context or ``content`` is empty, if ``content`` has chat messages, or if ``top`` is
        negative.
        """
        if (top := _whole("top", top)) < 0:
            raise ConfigError(f"top must be at least 0, got {top}")
        read = _read_content(content)
        if is_messages(read):
            raise ConfigError(
                "score() takes text or token ids, and not chat messages; fill a fork with the "
                "messages, and score the text that follows them"
            )
        ids = await self._as_ids(read)
        first = len(self._ids)
        if not (first and ids):
            raise ConfigError(
                f"score() needs at least one token in the context and at least one token to score, "
                f"got {first} and {len(ids)}; fill the context first, and pass content that is not "
                "empty"
            )
        sampling = Sampling(
            score_from=first,
            score_top=top,
            logprobs=top or None,
            attention=attention,
            as_text=False,
        )
        reply = await self._reply(self._spec((*self._ids, *ids), sampling), "score")
        scores = [
            TokenScore(*position[0], likeliest(position, top)) for position in reply.prompt_logprobs
        ]
        after = reply.token_logprobs[0] if reply.token_logprobs else ()
        return Scores(tuple(scores), likeliest(after, top), reply.report)

    async def next_tokens(
        self,
        k: int = 20,
        *,
        allowed: Sequence[int] | None = None,
        attention: Attention | None = None,
    ) -> TokenLogprobs:
        """Return the ``k`` likeliest next tokens with their log probabilities, the likeliest first.

        With ``allowed``, only these tokens (at most 128) are considered. The context is not
        changed. Raises `ConfigError` if the context is empty, ``k`` is below 1, or ``allowed`` has
        no or too many tokens.
        """
        likely, _ = await next_with_report(self, k, allowed=allowed, attention=attention)
        return likely

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
        with self._changing("generating"):
            async with aclosing(self._pieces_of(spec, constrain, stream=stream)) as pieces:
                async for piece in pieces:
                    self._ids += piece.token_ids
                    self._saw(piece.reply)
                    yield piece

    def _pieces_of(
        self, spec: CallSpec, constrain: Constraint | Automaton | None, *, stream: bool
    ) -> AsyncGenerator[Piece, None]:
        call = partial(self._emitter.token_call, name="generate", stream=stream)
        if constrain is None:
            return call(spec)
        if isinstance(constrain, Constraint):
            return constrained(call(spec))
        return steered(call, self._read, constrain, spec)

    async def _reply(self, spec: CallSpec, name: str) -> Reply:
        reply = None
        async with aclosing(self._emitter.token_call(spec, name, stream=False)) as pieces:
            async for piece in pieces:
                reply = piece.reply
        assert reply is not None
        return reply

    def _saw(self, reply: Reply | None) -> None:
        if reply is not None and reply.node >= 0:
            self._lineage.called(reply.run_id, reply.node)

    async def _read(self, ids: Sequence[int]) -> str:
        frontend = await self._emitter.frontend()
        return await frontend.detokenize(ids, self.model)

    async def _as_ids(self, content: str | ReadsAsText | tuple[Any, ...]) -> tuple[int, ...]:
        """Return the token ids of a text, or of content from `_read_content` that has no messages.

        Raises `ConfigError` for values that are no token ids.
        """
        if isinstance(content, str | ReadsAsText):
            frontend = await self._emitter.frontend()
            return tuple(await frontend.tokenize(str(content), self.model))
        kinds = set(map(type, content))
        if any(kind is bool or not issubclass(kind, Integral) for kind in kinds):
            raise ConfigError(_OTHER_CONTENT.format(_names_of(kinds)))
        ids: tuple[int, ...] = content
        if not all(issubclass(kind, int) for kind in kinds):
            ids = tuple(map(int, ids))
        if ids and not 0 <= min(ids) <= max(ids) < _END_OF_IDS:
            wrong = next(each for each in ids if not 0 <= each < _END_OF_IDS)
            raise ConfigError(
                f"{wrong} is not a token id; token ids are integers from 0 to {_END_OF_IDS - 1}"
            )
        return ids

    def _check_alive(self) -> None:
        if self._dropped:
            raise UsageError(
                "the context was dropped and cannot be used any more; drop it after its last use, "
                "or fork it before you drop it"
            )

    @contextmanager
    def _changing(self, work: _Work) -> Iterator[None]:
        """Let nothing else change the tokens during the ``with`` block."""
        self._check_free()
        self._busy = work
        try:
            yield
        finally:
            self._busy = None

    def _check_free(self) -> None:
        self._check_alive()
        if self._busy == "generating":
            raise UsageError(
                "the context is generating; read the generation to its end first, close it (async "
                "with, or aclose()), or use a fork"
            )
        if self._busy == "filling":
            raise UsageError(
                "the context is being filled; await the other fill() first, or use a fork"
            )


async def next_with_report(
    context: TokenContext,
    k: int,
    *,
    allowed: Sequence[int] | None = None,
    attention: Attention | None = None,
) -> tuple[TokenLogprobs, CallReport]:
    """Return the result of `TokenContext.next_tokens`, and the report of its call."""
    if (k := _whole("k", k)) < 1:
        raise ConfigError(f"next_tokens(k={k}): k must be at least 1")
    only = None if allowed is None else _token_ids("allowed", allowed)
    if only is not None and not 0 < len(only) <= MOST_ALLOWED:
        raise ConfigError(
            f"next_tokens(allowed=…) takes 1 to {MOST_ALLOWED} tokens, not {len(only)}"
        )
    sampling = Sampling(logprobs=k, allowed_token_ids=only, attention=attention, as_text=False)
    reply = await context._reply(context._spec(context._ids, sampling), "next_tokens")
    context._saw(reply)
    return likeliest(reply.token_logprobs[0], k), reply.report


def open_saved(emitter: TokenEmitter, name: str) -> TokenContext:
    """Return a context that `TokenContext.save` has saved. Raises `UnknownContextError` if the
    tenant has saved no context with this name.
    """
    saved = emitter.open(name)
    context = TokenContext(emitter, saved.model, saved.token_ids)
    context._chat = Chat(saved.opened)
    context.keep()
    return context


# -- types of arguments ------------------------------------------------------------------------
#
# vLLM's engine core reads no further calls after a sampling parameter of a wrong type, so that all
# calls wait for ever. vLLM checks the values of parameters, but not the types of all of them.

_INT64 = 2**63


def _whole(name: str, value: Any) -> int:
    """Return an option as an int. Raises `ConfigError` for any other value than a whole number of
    64 bits.
    """
    whole = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else _INT64
    if -_INT64 <= whole < _INT64:
        return whole
    raise ConfigError(f"{name} must be a whole number of at most 64 bits, got {value!r:.80}")


def _number(name: str, value: Any) -> float:
    """Return an option as a number. Raises `ConfigError` for any other value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise ConfigError(f"{name} must be a number, got {value!r:.80}")


def _token_ids(name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, Iterable):
        raise ConfigError(f"{name} must be a list of token ids, got {values!r:.80}")
    return tuple(_whole(f"a token id of {name}", value) for value in values)


def _texts(name: str, values: Any) -> tuple[str, ...]:
    texts = tuple(values) if isinstance(values, Iterable) else (None,)
    if isinstance(values, str):
        texts = (values,)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name} must be a string or several strings, got {values!r:.80}")
    return texts


_OTHER_CONTENT = "a context takes text, chat messages, or token ids, not a list of {}"


def _read_content(content: Any) -> str | ReadsAsText | tuple[Any, ...]:
    """Return content as a text or a tuple. An iterator is read here, because it can be read only
    once.

    Raises `ConfigError` for content that is neither a text nor a list, and for a list of messages
    that also has texts or numbers.
    """
    if isinstance(content, str | ReadsAsText):
        return content
    if isinstance(content, Mapping):
        raise ConfigError(
            f"chat messages must be in a list, got {content!r:.80}; put the message into a list"
        )
    if isinstance(content, bytes | bytearray) or not isinstance(content, Iterable):
        raise ConfigError(f"a context takes text, chat messages, or token ids, got {content!r:.80}")
    values = tuple(content)
    if is_messages(values):
        kinds = set(map(type, values))
        if any(issubclass(kind, str | Integral) for kind in kinds):
            raise ConfigError(_OTHER_CONTENT.format(_names_of(kinds)))
    return values


def _names_of(kinds: Iterable[type]) -> str:
    return ", ".join(sorted(kind.__name__ for kind in kinds))


# -- tokens that contexts share, and tokens that can be evicted when a context is dropped ------


@dataclass(slots=True, eq=False)
class Stretch:
    """Tokens that contexts share, from the end of the stretch ``before`` to position ``end``.

    ``users`` is the number of contexts and later stretches that contain these tokens. ``call`` is
    the id of a call that had the tokens in its prompt or output; "" if there is no such call yet.
    """

    end: int
    before: Stretch | None
    users: int
    call: str


class Lineage:
    """A record of the tokens that a context shares with its forks.

    If a context is truncated within the tokens that it shares, the record is not continued, and
    dropping the context does not free the shared tokens before the program ends.
    """

    def __init__(self, shared: Stretch | None = None) -> None:
        self._shared = shared
        self._call = ""
        self._strayed = False

    def called(self, program_id: str, node: int) -> None:
        """Note a call whose prompt and output had all tokens of the context."""
        self._call = f"{program_id}/{node}"

    def truncated(self, length: int) -> None:
        """Note that the context was truncated to its first ``length`` tokens."""
        self._strayed |= length < self._start

    def fork(self, length: int) -> Lineage:
        """Return the lineage of a fork, which shares the first ``length`` tokens."""
        if self._shared is None or length > self._start:
            self._shared = Stretch(length, self._shared, 1, self._call)
            self._call = ""
        self._shared.users += 1
        other = Lineage(self._shared)
        other._strayed = self._strayed
        return other

    def kept(self, length: int) -> None:
        """Keep the first ``length`` tokens even when all contexts with them are dropped."""
        self.fork(length)

    def drop(self) -> list[tuple[str, int]]:
        """Drop the context. Return the calls with tokens that no other context contains, each with
        the number of the call's first tokens that another context still contains.
        """
        unused = [(self._call, self._start)]
        stretch = None if self._strayed else self._shared
        while stretch is not None:
            stretch.call = stretch.call or self._call
            stretch.users -= 1
            if stretch.users:
                break
            before = stretch.before
            unused.append((stretch.call, 0 if before is None else before.end))
            stretch = before
        return [(call, first) for call, first in unused if call]

    @property
    def _start(self) -> int:
        return 0 if self._shared is None else self._shared.end
