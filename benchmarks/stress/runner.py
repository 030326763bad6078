"""A replacement for vLLM's model runner. It has a memory of KV blocks, and detects wrong positions
and blocks.

It keeps the same state from step to step as vLLM's model runner: the tokens and the block tables of
the requests, and the content of each slot of each block. A real model reads the KV cache; this
runner compares the content that a model would read with the content that must be there. Each token
depends only on its request and its position, so every call has exactly one right answer, even if it
is preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from agentrt.executors.vllm._compat.scheduling import SchedulerOutput, computed_before
from benchmarks.stress.faults import Violation

STOP = 5
"""The token that ends a call."""
_REJECTED = -1
"""The content of the slot of a rejected draft."""


@dataclass(slots=True)
class Text:
    """The right tokens of a request, computed as far as they were needed. ``chain`` has a hash of
    each prefix.

    ``stops_at`` is the position of the request's `STOP`, or -1 if the request has none. ``flavour``
    distinguishes requests whose cache differs for the same tokens (adapters, salts).
    """

    name: str
    tokens: list[int]
    prompt: int
    flavour: int = 0
    stops_at: int = -1
    chain: list[int] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.number = crc32(self.name.encode())

    def reach(self, length: int) -> None:
        """Extend the text to this length."""
        tokens, chain = self.tokens, self.chain
        while len(tokens) < length:
            tokens.append(self.token(len(tokens)))
        last = chain[-1] if chain else self.flavour
        for token in tokens[len(chain) : length]:
            last = hash((last, token))
            chain.append(last)

    def token(self, position: int) -> int:
        """Return the token that the model writes at a position."""
        return STOP if position == self.stops_at else 10 + (self.number + 37 * position) % 89


@dataclass(slots=True)
class _Row:
    """A request in the batch. The first ``known`` tokens of its text are known, and the first
    ``computed`` tokens are computed. ``rejected`` has a pair for each step that rejected drafts:
    the number of the step, and the number of these drafts.
    """

    text: Text
    known: int
    computed: int
    tables: list[list[int]]
    pooling: bool
    rejected: list[tuple[int, int]] = field(default_factory=list)


class ModelRunner:
    """A runner that executes the outputs of a scheduler, with a memory of ``blocks`` blocks.

    ``windows`` has a value for each group of layers: the number of tokens of context that the
    layers attend to, or 0 for all tokens. A group with None has a state in place of a context,
    which is not checked.
    """

    def __init__(self, blocks: int, block_size: int, windows: Sequence[int | None]) -> None:
        self.texts: dict[str, Text] = {}
        self.pooling: set[str] = set()
        self.executed = 0
        self._size, self._windows = block_size, tuple(windows)
        self.memory: list[list[int] | None] = [None] * blocks
        self._rows: dict[str, _Row] = {}

    def leave(self, output: SchedulerOutput) -> None:
        """Forget the requests that have ended or were preempted before a step. Their blocks may be
        overwritten from now on, by the copies of a connector, too.
        """
        gone = output.finished_req_ids | (output.preempted_req_ids or set())
        for name in gone & self._rows.keys():
            self._check_memory(name, self._rows.pop(name))

    def execute(
        self, output: SchedulerOutput, settled: int
    ) -> tuple[dict[str, list[int]], list[Any]]:
        """Run a step after `leave`. Return the tokens sampled for each request, and a list with an
        answer for each pooling request whose prompt is computed, and None for each other request.

        When the step was scheduled, the scheduler knew the results of the first ``settled`` steps.
        """
        self.executed += 1
        self._load(output)
        before = computed_before(output)
        begun = self._begin(output)
        sampled, pooled = {}, []
        for name, count in output.num_scheduled_tokens.items():
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            row = self._rows.get(name)
            if row is None:
                raise Violation("runner", "the call is in a step, but has never begun", name)
            if name in begun:
                self._check_memory(name, row)
            optimistic = sum(number for step, number in row.rejected if step > settled)
            if before[name] != row.computed + optimistic:
                raise Violation(
                    "order",
                    f"the call continues at position {before[name]}, but {row.computed} tokens are "
                    f"computed, and the scheduler does not know of {optimistic} rejected drafts",
                    name,
                )
            sampled[name] = self._compute(name, row, count, drafts)
            whole = row.computed >= row.text.prompt
            pooled.append("vector" if row.pooling and whole else None)
        return sampled, pooled

    # -- requests that begin -----------------------------------------------------------

    def _begin(self, output: SchedulerOutput) -> set[str]:
        """Add the requests that begin with this step, and the new blocks of the other requests.
        Return the names of the requests that begin.
        """
        begun = set()
        for new in output.scheduled_new_reqs:
            tokens = new.prefill_token_ids or new.prompt_token_ids or []
            self._start(new.req_id, tokens, new.num_computed_tokens, new.block_ids)
            begun.add(new.req_id)
        cached = output.scheduled_cached_reqs
        each = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
        for name, blocks, computed in each:
            if name in cached.resumed_req_ids:
                self._start(name, cached.all_token_ids[name], computed, blocks or ())
                begun.add(name)
            elif blocks is not None and name in self._rows:
                for table, ids in zip(self._rows[name].tables, blocks, strict=True):
                    table.extend(ids)
        return begun

    def _start(
        self, name: str, tokens: Sequence[int], computed: int, blocks: Sequence[Sequence[int]]
    ) -> None:
        text = self.texts.get(name)
        if text is None:
            raise Violation("runner", "the call begins, but no client has sent it", name)
        if name.startswith("stream"):  # vLLM makes the computed part of all turns the new prompt
            text.tokens, text.chain, text.prompt = list(tokens), [], len(tokens)
        text.reach(len(tokens))
        if text.tokens[: len(tokens)] != list(tokens):
            raise Violation("tokens", "the call begins with tokens that are not its own", name)
        if len(tokens) < text.prompt:
            detail = f"the call begins with {len(tokens)} of {text.prompt} tokens"
            raise Violation("tokens", detail, name)
        tables = [list(ids) for ids in blocks]
        self._rows[name] = _Row(text, len(tokens), computed, tables, name in self.pooling)

    def _load(self, output: SchedulerOutput) -> None:
        """Write into the blocks the KV cache that the connector loads in this step."""
        for load in getattr(output.kv_connector_metadata, "loads", ()):
            self.write_loaded(*load)

    def write_loaded(self, name: str, blocks: Sequence[int], start: int, end: int) -> None:
        """Write the KV cache that has arrived for a request into these blocks, for the positions
        from ``start`` to ``end`` - 1.
        """
        text = self.texts[name]
        text.reach(end)
        self._write(name, [blocks], start, text.chain[start:end])

    # -- computing ---------------------------------------------------------------------

    def _compute(self, name: str, row: _Row, count: int, drafts: int) -> list[int]:
        start, text = row.computed, row.text
        end = start + count
        if end - drafts > row.known:
            detail = (
                f"the call computes {end - drafts} tokens without drafts, but only {row.known} are "
                "known"
            )
            raise Violation("order", detail, name)
        samples = end - drafts == row.known
        accepted = (text.number + end) % (drafts + 1) if samples else 0
        row.computed = end - drafts + accepted
        if rejected := drafts - accepted:
            row.rejected.append((self.executed, rejected))
        known = row.known
        if samples and not row.pooling:
            row.known += accepted + 1
        text.reach(max(row.known, row.computed))
        self._write(
            name, row.tables, start, text.chain[start : row.computed] + [_REJECTED] * rejected
        )
        return text.tokens[known : row.known]

    def _write(
        self, name: str, tables: Sequence[Sequence[int]], start: int, values: Sequence[int]
    ) -> None:
        size, memory = self._size, self.memory
        for table, window in zip(tables, self._windows, strict=True):
            if window is None:
                continue
            at, rest = start, values
            while rest:
                slot = at % size
                if at // size >= len(table):
                    raise Violation("memory", f"the call has no block for position {at}", name)
                block = table[at // size]
                held = memory[block]
                if held is None:
                    held = memory[block] = [0] * size
                part = rest[: size - slot]
                held[slot : slot + len(part)] = part
                at, rest = at + len(part), rest[len(part) :]

    def _check_memory(self, name: str, row: _Row) -> None:
        """Raise `Violation` if the content that attention would read for the next token differs
        from the content that must be there.
        """
        size, chain = self._size, row.text.chain
        row.text.reach(row.computed)
        for table, window in zip(row.tables, self._windows, strict=True):
            if window is None:
                continue
            first = max(0, row.computed - window + 1) if window else 0
            for index in range(first // size, -(-row.computed // size)):
                start, end = max(first, index * size), min(row.computed, (index + 1) * size)
                held = self.memory[table[index]]
                if (
                    held is None
                    or held[start % size : start % size + end - start] != chain[start:end]
                ):
                    block = f"block {table[index]}, positions {start} to {end - 1}"
                    detail = f"the KV cache in {block} is not the call's own"
                    raise Violation("memory", detail, name)
