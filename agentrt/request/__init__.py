"""The data classes of a call: the request of a program to a model, and the reply.

A `CallSpec` is the request itself. A `Call` adds the identity of the calling program, which a
scheduler needs. A `Reply` is the answer, with the engine's report of the call as a `CallReport`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from agentrt.former import former_names
from agentrt.request.sampling import Sampling, TokenLogprobs
from agentrt.request.text import ReadsAsText
from agentrt.request.tokens import CallTokens

Message = Mapping[str, Any]
"""A chat message in OpenAI's form: ``{"role": …, "content": …}``."""


NO_LIMIT = 2**31 - 1
"""The value of ``max_tokens`` for a call that may use the whole rest of the model's context."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that a model may call: its name, its description, and the JSON schema of its
    arguments.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in a model's reply. ``arguments`` are a JSON object that may violate the tool's
    schema.

    The message that passes the result to the model refers to the call by its ``id``. The id is ""
    if the call is a part of the reply's text; then the results must follow in the order of the
    calls.
    """

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class InvalidToolCall:
    """A tool call that cannot be run, because its ``arguments`` (text) are not a JSON object.

    In most cases, ``max_tokens`` has cut the call off.
    """

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class RenderedCall:
    """A call for vLLM's engine: rendered, tokenized, and with vLLM's own parameters.

    ``prompt`` is vLLM's ``EngineInput`` (token ids, and images or audio if there are any).
    ``params`` are vLLM's ``SamplingParams`` with ``n`` 1, or its ``PoolingParams`` if the call is
    ``pooled`` (an embedding or a score). ``options`` are other keyword arguments of vLLM's
    ``AsyncLLM``, such as ``lora_request``. If a call has ``sampling`` (`CallSpec`), only
    ``options`` are set: the engine makes the prompt and the parameters.
    """

    prompt: Any = field(default_factory=dict)
    params: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class CallSpec:
    """An LLM call, as a front end passes it to an executor. It has one of three forms:

    - ``rendered``, for vLLM's engine, together with ``prompt_token_ids``;
    - ``request``, the complete chat request in OpenAI's form, for executors that take requests;
    - ``prompt_token_ids`` with ``sampling``; here ``rendered`` has at most ``options``.

    Schedulers and routers read the other fields. The runtime and the server set some of them after
    the call was rendered, such as ``seed`` and ``cache_salt``. ``max_tokens`` is the maximum number
    of output tokens. ``temperature`` 0 is greedy decoding. If ``seed`` is None and the temperature
    is above 0, the runtime derives a seed from its own seed, the run's id and the call's node or
    place, so that the call can be repeated with the same result. ``ignore_eos`` continues to
    ``max_tokens`` even if the model ends its output. Calls with different ``cache_salt`` do not
    share cached prefixes. ``model`` is the name of a served model; None means the first served
    model. With ``with_logprobs``, the engine's reply has ``token_logprobs`` for each output token,
    even if the program did not request them.
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
    with_logprobs: bool = False

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the ``request``; empty if the call has another form."""
        return tuple((self.request or {}).get("messages") or ())


@dataclass(frozen=True, slots=True)
class Identity:
    """The program of a call, and the state of this program, for a scheduler in another process.

    ``call_id`` is the program's id and the id of the call's node in the DAG, joined by a slash; ""
    if unknown. ``node`` is the name of the node function that made the call, "" for the program's
    own function. ``parents`` are the node ids of the last calls of the program that had to end
    before this call; tools and other interrupts in between are skipped. ``path_s`` is p(c) of
    ATLAS, Eq. 2: the seconds of service on the longest path to the call; None if the parents are
    unknown. ``service_s``, ``program_path_s`` and ``waiting_s`` are the values in the program's row
    in the process table, in seconds, when the call was made. ``size_hint`` is an estimate of the
    program's size, in the same unit for all programs of a type.
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
    def level_service_s(self) -> float:
        """The seconds of service by which a policy of attained service chooses the call's first
        level: on the longest path to the call, or of the whole program if the parents are unknown.
        """
        return self.service_s if self.path_s is None else self.path_s


@dataclass(frozen=True, slots=True)
class Call:
    """A `CallSpec` with its identity, as the scheduler ranks it."""

    identity: Identity
    spec: CallSpec

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self.identity.call_id

    @property
    def program_id(self) -> str:
        """The id of the program to which the call belongs."""
        return self.identity.program_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The token counts and preemptions of a call, or of several calls: two usages can be added.

    ``cached_tokens`` is the number of prompt tokens that were prefix cache hits.
    ``recomputed_tokens`` is the number of tokens that were computed again after a preemption.
    ``returned_tokens`` is the number of leading prompt tokens that earlier calls of the program had
    computed, without tokens that the call computes in any case, such as the tokens of a prompt that
    it scores. ``lost_tokens`` is the part of the ``returned_tokens`` that had been evicted from the
    cache and was recomputed. ``loaded_tokens`` is the number of tokens that were loaded from host
    memory or another engine instead of being computed; loaded prompt tokens are also counted in
    ``cached_tokens``. ``unused_loaded_tokens`` is the number of tokens whose load was of no use,
    because the load failed, or because the call ended before it ran.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    returned_tokens: int = 0
    lost_tokens: int = 0
    loaded_tokens: int = 0
    unused_loaded_tokens: int = 0
    preemptions: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            recomputed_tokens=self.recomputed_tokens + other.recomputed_tokens,
            returned_tokens=self.returned_tokens + other.returned_tokens,
            lost_tokens=self.lost_tokens + other.lost_tokens,
            loaded_tokens=self.loaded_tokens + other.loaded_tokens,
            unused_loaded_tokens=self.unused_loaded_tokens + other.unused_loaded_tokens,
            preemptions=self.preemptions + other.preemptions,
        )

    @property
    def uncached_tokens(self) -> int:
        """The prompt tokens that were not in the prefix cache and had to be computed."""
        return max(0, self.prompt_tokens - self.cached_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport(Usage):
    """The engine's report of a call.

    ``service_s`` is the time in the model executor, and ``waiting_s`` the time in the scheduler's
    queue (before the first step and after each preemption) and, on a server with tenants, in the
    tenant's queue, both in seconds. ``steps`` is the number of engine steps in which the call ran.
    ``arrived_step`` and ``finished_step`` are numbers of engine steps, counted from the engine's
    start. ``replica`` is the name of the engine, "" if there is only one engine. ``spans`` describe
    how the time from the call's arrival at the engine to its end was spent, and why;
    `agentrt.request.spans` reads them. Some engines report no spans. ``versions`` are the versions
    of the weights that wrote the output (`agentrt.request.weights.Versions`).
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
    # "plain" tells the journal's codec not to convert each number separately, which would take
    # longer than all other steps of writing the JSON.
    spans: Sequence[Sequence[Any]] = field(default=(), metadata={"plain": True})
    versions: Sequence[Sequence[int]] = field(default=(), metadata={"plain": True})

    @classmethod
    def of_all(cls, reports: Sequence[CallReport]) -> CallReport:
        """Return one report for the calls that generated the choices of one answer. ``reports``
        must not be empty.

        Tokens, preemptions and seconds are summed; all other fields are those of the last report.
        """
        if len(reports) == 1:
            return reports[0]
        usage = sum(reports, Usage())
        return replace(
            reports[-1],
            **{each.name: getattr(usage, each.name) for each in fields(Usage)},
            service_s=sum(each.service_s for each in reports),
            waiting_s=sum(each.waiting_s for each in reports),
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an output, its natural log probability, and the most likely tokens at its
    position.
    """

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@former_names(program_id="run_id")
@dataclass(frozen=True, slots=True, repr=False, weakref_slot=True)
class Reply(ReadsAsText):
    """The reply to a call.

    ``parsed`` is the text's JSON value if the call had a schema; None without a schema, with tool
    calls, and for a text that is not JSON. ``finish_reason`` is ``stop``, ``length``,
    ``tool_calls``, or another reason of the engine. ``reasoning`` is the model's reasoning before
    its answer, "" if there is none. Tool calls whose arguments are not a JSON object are in
    ``invalid_tool_calls``. If ``n`` was above 1, ``choices`` has all answers as replies, and this
    reply has the first of these answers. ``node`` is the id of the call's node in the DAG of its
    run, and ``run_id`` is the id of this run.

    An engine also yields a reply with a call's last piece of output. For a call whose prompt is
    token ids, this is the reply that the program gets. For a chat that a front end formats, the
    engine's reply has no tool calls and no reasoning, and carries the report: the program's reply
    is made of the front end's answer and of this report.

    ``logprobs`` has an entry for each token if the call requested log probabilities. A call whose
    prompt is token ids has them in ``token_logprobs``, for each output token, and in
    ``prompt_logprobs``, for each scored token of the prompt. ``tokens`` are the recorded tokens of
    the engine's calls, if the program runs in a batch with the option ``tokens``, or for a trainer.

    In a prompt, a reply is replaced by its ``text``: in an f-string, by ``str()``, and in a list,
    where the text has quotes like a string. So ``repr()`` returns the text in quotes, too. Use
    ``to_dict()`` to see all fields.
    """

    text: str
    finish_reason: str = "stop"
    tool_calls: tuple[ToolCall, ...] = ()
    parsed: Any = None
    token_ids: tuple[int, ...] = field(default=(), metadata={"packed": True})
    report: CallReport = field(default_factory=CallReport)
    node: int = -1
    run_id: str = field(default="", metadata={"recorded_as": "program_id"})
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    invalid_tool_calls: tuple[InvalidToolCall, ...] = ()
    choices: tuple[Reply, ...] = ()
    token_logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    tokens: tuple[CallTokens, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The reply as an assistant message in OpenAI's form, to append to the chat. Tool calls
        without an id are only in its text.
        """
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
