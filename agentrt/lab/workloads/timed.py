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

from collections.abc import Iterator, Sequence
from dataclasses import replace
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


_Conversation = list[_Request]


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
    unit_s, size = units
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
            _place(request, size, tips, found)
    notes.update([TURNS] * sum(len(one) - 1 for one in found))
    first = min((one[0].timestamp for one in found), default=0.0)
    programs = []
    for index, one in enumerate(found):
        calls = tuple(_calls(one, unit_s, int(size * scales.context), scales, notes))
        name = f"{entries[0].file.stem}-{index}"
        programs.append(ProgramShape(name, type, calls, (one[0].timestamp - first) * unit_s))
    return programs


def _place(
    request: _Request,
    size: int,
    tips: dict[tuple[int, int], _Conversation | None],
    found: list[_Conversation],
) -> None:
    """Add it to the conversation that it goes on with, or to a new one.

    ``tips`` has the conversation of which a block is the last whole one, and none of others.
    """
    blocks = list(enumerate(request.hash_ids[: request.input_length // size]))
    conversation = next((tip for one in reversed(blocks) if (tip := tips.get(one))), None)
    if conversation is None:
        conversation = []
        found.append(conversation)
    conversation.append(request)
    for one in blocks:
        own = one == blocks[-1] and tips.get(one, conversation) is conversation
        tips[one] = conversation if own else None


def _calls(
    turns: _Conversation, unit_s: float, size: int, scales: Scales, notes: Notes
) -> Iterator[CallShape]:
    before = turns[0].timestamp
    told: list[Turn] = []
    for one in turns:
        gap_s = max(0.0, one.timestamp - before) * unit_s
        told.append(Turn(one.input_length, one.output_length, gap_s))
        before = one.timestamp
    for call, one in zip(chain(told, scales, notes).calls, turns, strict=True):
        yield _with_ids(call, one.hash_ids, size)


def _with_ids(call: CallShape, blocks: Sequence[int], size: int) -> CallShape:
    """The ids of its prompt: so many for each block, and what is over for the last one."""
    left = call.prompt_tokens - size * (len(blocks) - 1)
    parts = [
        range(first, first + (left if index == len(blocks) else size))
        for index, block in enumerate(blocks, 1)
        for first in [_FIRST + _STRIDE * block]
    ]
    return replace(call, prompt_ids=tuple(parts))
