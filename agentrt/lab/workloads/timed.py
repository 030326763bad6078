"""Timed requests with the hashes of their prompts' blocks: Mooncake's traces, and those of vLLM.

A line is a request: ``timestamp``, ``input_length``, ``output_length``, and ``hash_ids``, one for
each block of the prompt, the last of which may be begun only. Equal ids are equal blocks, in whose
request ever. Two scales are in use:

* ``mooncake``: milliseconds, blocks of 512 tokens (kvcache-ai/Mooncake, FAST25-release/README.md);
* ``timed``: seconds, blocks of 16: the defaults of ``vllm bench serve --dataset-name timed_trace``
  (vllm/benchmarks/datasets, ``TimedTrace``).

The files do not say which requests belong together. A request is taken as the next turn of an
earlier one if it has the last whole block of that, which no request had before that. Between the
two lies the time from the one's timestamp to the other's, with the call itself, whose time nobody
recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from agentrt.lab.workloads.fields import Fields, Notes, Number, Record, Tokens
from agentrt.lab.workloads.replay import Scales, Turn, chain
from agentrt.lab.workloads.shape import CallShape, ProgramShape

MOONCAKE, TIMED = (1e-3, 512), (1.0, 16)
"""Seconds in a unit of time, tokens in a block."""
_FIRST, _STRIDE = 1 << 42, 2_000_003
"""Above all token ids that others make, and from one block's to the next one's."""

UNREADABLE = "requests that cannot be read, left out"
TURNS = "requests taken as the next turn of an earlier one, by their blocks"


class _Request(Record):
    timestamp: Number
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Annotated[int, Field(ge=0, lt=1 << 40)]]


@dataclass(slots=True)
class _Conversation:
    name: str
    turns: list[_Request] = field(default_factory=list)


def has_blocks(values: dict[str, Any], tokens: int) -> bool:
    """Whether a request's prompt has as many ids as blocks of so many tokens."""
    length, ids = values.get("input_length"), values["hash_ids"]
    return isinstance(length, int) and isinstance(ids, list) and -(-length // tokens) == len(ids)


def read(
    entries: Sequence[Fields],
    type: str,
    scales: Scales,
    notes: Notes,
    *,
    units: tuple[float, int] = MOONCAKE,
) -> list[ProgramShape]:
    """A program for each conversation, which arrives when its first request did."""
    _, size = units
    found: list[_Conversation] = []
    tips: dict[tuple[int, int], _Conversation | None] = {}
    for entry in entries:
        with notes.leaving_out(UNREADABLE):
            request = entry.read(_Request)
            if not has_blocks(entry.values, size):
                raise entry.complain(
                    f"hash_ids: {len(request.hash_ids)} of them, where a prompt of "
                    f"{request.input_length} tokens has a block for each {size}"
                )
            _place(request, size, tips, found, f"{entry.file.stem}-{len(found)}")
    notes.update([TURNS] * sum(len(one.turns) - 1 for one in found))
    first = min((one.turns[0].timestamp for one in found), default=0.0)
    return [_program(one, type, scales, notes, units, first) for one in found]


def _place(
    request: _Request,
    size: int,
    tips: dict[tuple[int, int], _Conversation | None],
    found: list[_Conversation],
    name: str,
) -> None:
    """Add it to the conversation that it goes on with, or to a new one."""
    blocks = list(enumerate(request.hash_ids[: request.input_length // size]))
    earlier = next((tips[one] for one in reversed(blocks) if tips.get(one)), None)
    conversation = earlier or _Conversation(name)
    if earlier is None:
        found.append(conversation)
    conversation.turns.append(request)
    for one in blocks[:-1]:
        tips[one] = None  # what was gone on with, or what others begin with, too
    for one in blocks[-1:]:
        own = tips.get(one, conversation) is conversation
        tips[one] = conversation if own else None


def _program(
    one: _Conversation,
    type: str,
    scales: Scales,
    notes: Notes,
    units: tuple[float, int],
    first: float,
) -> ProgramShape:
    unit_s, size = units
    begins = [request.timestamp for request in one.turns]
    gaps = [0.0, *(max(0.0, after - before) * unit_s for before, after in pairwise(begins))]
    turns = [
        Turn(request.input_length, request.output_length, gap_s)
        for request, gap_s in zip(one.turns, gaps, strict=True)
    ]
    calls = chain(turns, scales, notes).calls
    pairs = zip(calls, one.turns, strict=True)
    made = tuple(_with_ids(call, request, int(size * scales.context)) for call, request in pairs)
    return ProgramShape(one.name, type, made, (begins[0] - first) * unit_s)


def _with_ids(call: CallShape, request: _Request, size: int) -> CallShape:
    """The ids of its prompt: so many for each block, and what is over for the last one."""
    parts, left = list[range](), call.prompt_tokens
    for index, block in enumerate(request.hash_ids, 1):
        first, is_last = _FIRST + _STRIDE * block, index == len(request.hash_ids)
        parts.append(range(first, first + (left if is_last else min(size, left))))
        left -= len(parts[-1])
    return replace(call, prompt_ids=tuple(parts))
