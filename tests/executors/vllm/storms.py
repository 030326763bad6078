"""Random lives of programs against a real scheduler over a tiny KV cache, without a model.

A storm starts programs, lets them call, go to tools and humans, return, end, be cancelled
and fall silent, and empties the prefix cache in between; then it lets the engine finish.
The same seed against engines that decide alike is the same storm.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrt.executors.vllm._compat.pool import FreeKVCacheBlockQueue
from agentrt.executors.vllm.engine_core.block_retention import ProtectedFreeQueue
from agentrt.lab.engine.headless import BLOCK_SIZE, HeadlessEngine, StepDecisions

PATIENCE_S = 400.0
"""Seconds after which the engines under test give a silent program up."""
_TYPES = ("react", "chat", "search")
_TOOLS = ("shell", "web", "")


@dataclass(slots=True)
class Life:
    """One program: what it has said and will send again, and its calls in the engine."""

    name: str
    type: str
    session: str | None
    said: list[int]
    calls: set[str] = field(default_factory=set)

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "program_id": self.name,
            "program_type": self.type,
            "session": self.session,
            "report": True,
        }


class Storm:
    """Random acts on one engine. A call has at most ``most`` tokens. With ``alone``, the engine
    gets no messages about programs.
    """

    def __init__(self, engine: HeadlessEngine, seed: int, most: int, *, alone: bool) -> None:
        self.engine = engine
        self.alone = alone
        self.steps: list[StepDecisions] = []
        self.finished: set[str] = set()
        self._rng = random.Random(seed)
        self._name = f"s{seed}"
        self._most = most
        self._lives: dict[str, Life] = {}
        self._owner: dict[str, Life] = {}
        self._added = 0
        self._sessions: dict[str, list[int]] = {}
        self._acts: list[tuple[int, Callable[[], None]]] = [
            (3, self._start),
            (9, self._call),
            (16, self._step),
            (5, self._note),
            (2, self._abort),
            (2, self._end),
            (1, self._reset),
            (1, self._silence),
        ]

    def act(self) -> None:
        """Do one random thing."""
        weights, acts = zip(*self._acts, strict=True)
        self._rng.choices(acts, weights)[0]()

    def settle(self, limit: int = 2000) -> None:
        """Let every call finish. This fails if one does not finish within ``limit`` steps."""
        self._take(self.engine.run(limit))
        assert not self.engine.requests
        assert len(self.finished) == self._added

    def end_all(self) -> None:
        """End all programs."""
        for name in list(self._lives):
            self._lives.pop(name)
            self._control("ends", [name])

    # -- acts --------------------------------------------------------------------------

    def _start(self) -> None:
        if len(self._lives) >= 6:
            return
        rng, name = self._rng, f"{self._name}-{self._rng.getrandbits(40)}"
        type, session = rng.choice(_TYPES), rng.choice((None, None, "a", "b"))
        said = [100 + _TYPES.index(type)] * (BLOCK_SIZE * 2)
        if session is not None:
            said = self._sessions.setdefault(session, said)
        self._lives[name] = Life(name, type, session, list(said))

    def _call(self) -> None:
        rng = self._rng
        life = rng.choice(list(self._lives.values())) if self._lives else None
        alone = life is None or rng.random() < 0.1
        said = [] if life is None else life.said[: rng.choice((len(life.said), 40))]
        fresh = rng.choices(range(10, 90), k=rng.randint(1, 3 * BLOCK_SIZE))
        output = rng.randint(1, BLOCK_SIZE)
        prompt = [*said, *fresh][-(self._most - output) :]
        self._added += 1
        call_id = f"{self._name}/{self._added}"
        if life is not None and not alone:
            life.said = prompt
            life.calls.add(call_id)
            self._owner[call_id] = life
            if life.session is not None:
                self._sessions[life.session] = prompt
        extra = None if life is None or alone else {"agentrt": life.identity}
        self.engine.add(call_id, prompt, output, extra)

    def _step(self) -> None:
        self._take([self.engine.step() for _ in range(self._rng.randint(1, 4))])

    def _note(self) -> None:
        names = [*self._lives, "nobody"]
        notes = [
            (
                self._rng.choice(names),
                self._rng.choice(("tool", "tool", "returned", "returned", "human", "answered")),
                self._rng.choice(_TOOLS),
            )
            for _ in range(self._rng.randint(1, 3))
        ]
        self._control("boundary", notes)

    def _abort(self) -> None:
        if self.engine.requests:
            call_id = self._rng.choice(list(self.engine.requests))
            self.engine.abort(call_id)
            self._over(call_id)

    def _end(self) -> None:
        """End a program, after its calls were cancelled or without that, by chance."""
        if not self._lives:
            return
        life = self._lives.pop(self._rng.choice(list(self._lives)))
        if self._rng.random() < 0.5:
            for call_id in sorted(life.calls):
                self.engine.abort(call_id)
                self._over(call_id)
        self._control("ends", [life.name])

    def _reset(self) -> None:
        if self._rng.random() < 0.3:
            running = self._rng.random() < 0.5 and self.engine.in_flight == 1
            self.engine.scheduler.reset_prefix_cache(running)

    def _silence(self) -> None:
        """Let a program crash: nothing is heard of it any more."""
        if self._lives:
            del self._lives[self._rng.choice(list(self._lives))]
        self.engine.now += self._rng.choice((1.0, 30.0, 2 * PATIENCE_S))

    # -- inside ------------------------------------------------------------------------

    def _take(self, steps: list[StepDecisions]) -> None:
        self.steps += steps
        for step in steps:
            for call_id in step.finished:
                self._over(call_id)

    def _over(self, call_id: str) -> None:
        assert call_id not in self.finished
        self.finished.add(call_id)
        life = self._owner.get(call_id)
        if life is not None:
            life.calls.discard(call_id)

    def _control(self, op: str, argument: Any) -> None:
        if not self.alone:  # vLLM's own scheduler takes no messages
            self.engine.scheduler.control(op, argument)


def check_free_queue(queue: ProtectedFreeQueue) -> None:
    """Check that each free block is on exactly one list, is counted, and is protected only for an
    owner that may still use it.
    """
    plain = FreeKVCacheBlockQueue.get_all_free_blocks(queue)
    protected = [
        (block, owner) for owner, own in queue._lists.items() for block in own.get_all_free_blocks()
    ]
    blocks = [*plain, *(block for block, _ in protected)]
    assert len({block.block_id for block in blocks}) == len(blocks) == queue.num_free_blocks
    assert len(protected) == queue._protected
    assert all(queue._listed[block.block_id] is owner for block, owner in protected)
    assert all(queue._listed[block.block_id] is None for block in plain)
    assert not any(owner.released for owner in queue._lists)
    assert set(queue._lists) == set(queue.order.in_order(queue.now))
    assert not any(block.ref_cnt for block in blocks)
