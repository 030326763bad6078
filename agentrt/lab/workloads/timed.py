"""A reader of timed requests with the hashes of their prompts' blocks: traces of Mooncake and of
vLLM.

A line is a request with ``timestamp``, ``input_length``, ``output_length``, and ``hash_ids``, which
has an id for each block of the prompt; the last block may be incomplete. Blocks with equal ids are
equal in all requests. There are two formats:

* ``mooncake``: milliseconds, blocks of 512 tokens (kvcache-ai/Mooncake, FAST25-release/README.md);
* ``timed``: seconds, blocks of 16 tokens: the defaults of ``vllm bench serve --dataset-name
  timed_trace`` (vllm/benchmarks/datasets, ``TimedTrace``).

The files do not say which requests belong to the same conversation. A request counts as the next
turn of a conversation if its prompt contains the last whole block of the conversation's latest
request, and no other conversation has this block. Requests are sorted by their timestamps, because
a log may have them in another order. The gap between two turns is the time between their
timestamps. This gap includes the duration of the first call, which is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from agentrt.lab.workloads.fields import LocatedFields, Notes, Number, Record, Tokens
from agentrt.lab.workloads.replay import Scales, Turn, chain
from agentrt.lab.workloads.shape import CallShape, ProgramShape

MOONCAKE, TIMED = (1e-3, 512), (1.0, 16)
"""The seconds of a time unit, and the number of tokens in a block, for each format."""
_FIRST, _STRIDE = 1 << 42, 2_000_003
"""The first token id, which is greater than all token ids of other modules, and the difference
between the first token ids of two blocks.
"""

UNREADABLE = "requests that cannot be read, left out"
TURNS = "requests that count as the next turn of an earlier request, by their blocks"


class _Request(Record):
    timestamp: Number
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Annotated[int, Field(ge=0, lt=1 << 40)]]


_Conversation = list[_Request]


def has_blocks(values: dict[str, Any], tokens: int) -> bool:
    """Return whether a request has an id for each block of ``tokens`` tokens."""
    length, ids = values.get("input_length"), values["hash_ids"]
    return isinstance(length, int) and isinstance(ids, list) and -(-length // tokens) == len(ids)


def read(
    entries: Sequence[LocatedFields],
    type: str,
    scales: Scales,
    notes: Notes,
    *,
    units: tuple[float, int] = MOONCAKE,
) -> list[ProgramShape]:
    """Return a program for each conversation. A program arrives at the time of its first request.
    Requests that cannot be read are left out, and counted in ``notes``.
    """
    unit_s, size = units
    requests: list[_Request] = []
    conversations: list[_Conversation] = []
    tips: dict[tuple[int, int], _Conversation | None] = {}
    for entry in entries:
        with notes.leaving_out(UNREADABLE):
            request = entry.read(_Request)
            if not has_blocks(entry.values, size):
                raise entry.complain(
                    f"hash_ids has {len(request.hash_ids)} ids, but a prompt of "
                    f"{request.input_length} tokens has one for each {size} tokens"
                )
            requests.append(request)
    for request in sorted(requests, key=lambda request: request.timestamp):
        _place(request, size, tips, conversations)
    notes.update([TURNS] * sum(len(conversation) - 1 for conversation in conversations))
    first = min((request.timestamp for request in requests), default=0.0)
    programs = []
    for index, conversation in enumerate(conversations):
        calls = tuple(_calls(conversation, unit_s, int(size * scales.context), scales, notes))
        name = f"{entries[0].file.stem}-{index}"
        programs.append(
            ProgramShape(name, type, calls, (conversation[0].timestamp - first) * unit_s)
        )
    return programs


def _place(
    request: _Request,
    size: int,
    tips: dict[tuple[int, int], _Conversation | None],
    conversations: list[_Conversation],
) -> None:
    """Add a request to the conversation that it continues, or to a new conversation.

    ``tips`` maps each block to a conversation or to None: to a conversation only if the block is
    the last whole block of this conversation and occurs in no other conversation. A block is its
    position in the prompt and its id.
    """
    blocks = list(enumerate(request.hash_ids[: request.input_length // size]))
    conversation = next((tip for block in reversed(blocks) if (tip := tips.get(block))), None)
    if conversation is None:
        conversation = []
        conversations.append(conversation)
    conversation.append(request)
    for block in blocks:
        own = block == blocks[-1] and tips.get(block, conversation) is conversation
        tips[block] = conversation if own else None


def _calls(
    turns: _Conversation, unit_s: float, size: int, scales: Scales, notes: Notes
) -> Iterator[CallShape]:
    before = turns[0].timestamp
    chain_turns: list[Turn] = []
    for request in turns:
        gap_s = max(0.0, request.timestamp - before) * unit_s
        chain_turns.append(Turn(request.input_length, request.output_length, gap_s))
        before = request.timestamp
    for call, request in zip(chain(chain_turns, scales, notes).calls, turns, strict=True):
        yield _with_ids(call, request.hash_ids, size)


def _with_ids(call: CallShape, blocks: Sequence[int], size: int) -> CallShape:
    """Return the call with token ids for its prompt. Each of the ``blocks`` gets ``size`` ids, and
    the last block gets as many as are left of the prompt.
    """
    left = call.prompt_tokens - size * (len(blocks) - 1)
    parts = [
        range(first, first + (left if index == len(blocks) else size))
        for index, block in enumerate(blocks, 1)
        for first in [_FIRST + _STRIDE * block]
    ]
    return replace(call, prompt_ids=tuple(parts))
