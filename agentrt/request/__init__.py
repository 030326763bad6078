"""What a program asks of a model, and what it gets back: plain values, no behaviour.

A `CallSpec` is the program's own words. A `Call` adds who asks, which is what a
scheduler needs. A `Reply` is what comes back, with the engine's own account of the
call in a `CallReport`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrt.request.sampling import Sampling, TokenLogprobs
from agentrt.request.text import ReadsAsText

Message = Mapping[str, Any]
"""One chat message, as OpenAI's API has it: ``{"role": …, "content": …}``."""


NO_LIMIT = 2**31 - 1
"""``max_tokens`` that is no bound: as many as the model's context has room for."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that a model may call: its name, what it is for, and its arguments' JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to call a tool. ``arguments`` obey the tool's JSON schema.

    A message of role ``tool`` with the result names it by its ``id``; that is "" where the reply's
    text itself has the call, so that the order of the messages tells.
    """

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class InvalidToolCall:
    """A tool call that cannot be made: its ``arguments``, as text, are no JSON object.

    Most often ``max_tokens`` cut it off.
    """

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class RenderedCall:
    """A call as vLLM's engine takes it: rendered, tokenized, and with vLLM's own parameters.

    ``prompt`` is vLLM's ``EngineInput`` (token ids, and images or audio where there are some),
    ``params`` its ``SamplingParams`` with ``n`` 1; of one that is ``pooled`` (an embedding, a
    score), its ``PoolingParams``. ``options`` are other keyword arguments of vLLM's ``AsyncLLM``,
    such as ``lora_request``.
    """

    prompt: Any
    params: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One LLM call, as a front end gives it to an executor.

    It is ``rendered`` for vLLM's engine, with its ``prompt_token_ids``; or it is the whole chat
    ``request`` in OpenAI's form, for executors that take requests; or bare token ids,
    which are sampled as ``sampling`` says; ``rendered`` then has no more than its ``options``.
    The other fields are what schedulers, routers and accounts look at, and what they may change.
    ``max_tokens`` bounds the output (tokens). ``temperature`` 0 is greedy. With ``seed`` None the
    runtime draws one and records it, so that a call can be run again with the same outcome.
    ``ignore_eos`` goes on to ``max_tokens`` whatever the model says. Calls with different
    ``cache_salt`` share no cached prefix. ``model`` names one of those that are served; None is
    the first of them.
    """

    prompt_token_ids: tuple[int, ...] | None = None
    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    cache_salt: str | None = None
    model: str | None = None
    request: Mapping[str, Any] | None = None
    rendered: RenderedCall | None = None
    sampling: Sampling | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The chat of a ``request``."""
        return tuple((self.request or {}).get("messages") or ())


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose call it is, and how its program stands, for a scheduler in another process.

    ``call_id`` is the program's id and the call's node in its DAG, with a slash; "" is unknown.
    ``node`` is the name of the node function that emitted the call, "" for the program's own.
    ``parents`` are the program's calls that had to end last before this one, by their nodes'
    ids; what lies between them, such as a tool, is left out.
    ``path_s`` is p(c) of ATLAS, Eq. 2 (seconds of service on the longest path that leads
    here), None where parents are unknown. ``service_s``, ``program_path_s`` and ``waiting_s``
    are the program's row in the process table when the call was emitted (seconds).
    ``size_hint`` is a guess of the program's size, in a unit of its type's own.
    """

    call_id: str
    program_id: str
    program_type: str = "unknown"
    tenant: str = "default"
    session: str | None = None
    node: str = ""
    parents: tuple[int, ...] = ()
    path_s: float | None = None
    service_s: float = 0.0
    program_path_s: float = 0.0
    waiting_s: float = 0.0
    size_hint: float | None = None

    @property
    def attained_s(self) -> float:
        """The service before the call: on its path, or where that is unknown its program's."""
        return self.service_s if self.path_s is None else self.path_s


@dataclass(frozen=True, slots=True)
class Call:
    """A `CallSpec` with its identity: what the scheduler ranks."""

    identity: Identity
    spec: CallSpec

    @property
    def call_id(self) -> str:
        """The call's name, for engines and people."""
        return self.identity.call_id

    @property
    def program_id(self) -> str:
        """The program that the call is part of."""
        return self.identity.program_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a call used, or several together: usages add up.

    ``cached_tokens`` of the prompt were found in the prefix cache. ``recomputed_tokens`` were
    computed again after a preemption. Its program's earlier calls had computed the first
    ``returned_tokens`` of the prompt, of which ``lost_tokens`` were not in the cache any more,
    and were computed again.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    returned_tokens: int = 0
    lost_tokens: int = 0
    preemptions: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            recomputed_tokens=self.recomputed_tokens + other.recomputed_tokens,
            returned_tokens=self.returned_tokens + other.returned_tokens,
            lost_tokens=self.lost_tokens + other.lost_tokens,
            preemptions=self.preemptions + other.preemptions,
        )

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that the prefix cache did not have, and that were computed."""
        return max(0, self.prompt_tokens - self.cached_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport(Usage):
    """The engine's account of one call.

    Times are seconds: ``service_s`` in the model executor, ``waiting_s`` in the
    scheduler's queue (before the first step and after each preemption). ``steps`` are
    the engine steps that the call ran in; ``arrived_step`` and ``finished_step`` count
    the engine's steps from its start. ``replica`` is the engine that ran it, "" where there
    is only one. ``spans`` say where its time in the engine went and why, with their sum from its
    arrival there to its end: `agentrt.request.spans` reads them. An engine that does not tell has
    none.
    """

    service_s: float = 0.0
    waiting_s: float = 0.0
    demotions: int = 0
    promotions: int = 0
    steps: int = 0
    arrived_step: int = 0
    finished_step: int = 0
    level: int = 0
    replica: str = ""
    # To make JSON of each number by itself takes longer than of all else.
    spans: Sequence[Sequence[Any]] = field(default=(), metadata={"plain": True})


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an output, its log probability (natural), and the likeliest at its place."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Reply(ReadsAsText):
    """What a call gave back.

    ``parsed`` is the JSON value when the call had a schema, else None. ``finish_reason``
    is ``stop``, ``length`` or ``tool_calls``. ``reasoning`` is what the model thought before its
    answer, "" where it does not tell. Tool calls that were cut off are ``invalid_tool_calls``.
    With ``n`` above 1 ``choices`` are all replies, this one first. ``node`` is the call's id in
    its program's DAG; ``program_id`` names the program to those outside it, and is empty inside.
    ``logprobs`` are there, one a token, if the call asked for them; those of a call of token ids
    are in ``token_logprobs``, one of each output token, and in ``prompt_logprobs``, one of each
    that was to be scored.

    In a prompt it is its ``text``: in an f-string, by ``str()``, and in a list, where it has quotes
    as a string has. So ``repr()`` is the text, too; ``to_dict()`` has all fields.
    """

    text: str
    finish_reason: str = "stop"
    tool_calls: tuple[ToolCall, ...] = ()
    parsed: Any = None
    token_ids: tuple[int, ...] = field(default=(), metadata={"packed": True})
    report: CallReport = field(default_factory=CallReport)
    node: int = -1
    program_id: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    invalid_tool_calls: tuple[InvalidToolCall, ...] = ()
    choices: tuple[Reply, ...] = ()
    token_logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """This reply as an assistant message in OpenAI's form, to append to the chat."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        calls = [_as_message(call) for call in self.tool_calls if call.id]
        if calls:
            message |= {"content": self.text or None, "tool_calls": calls}
        return message


def _as_message(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}
