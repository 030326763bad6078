"""A program's shape while a generator draws it: calls are added, prompts add themselves up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.lab.workloads.sizes import Sizes

_SHARED = 0.4
"""How much of the spread of a program's sizes is its own: a verbose user, a terse model."""


class Sketch:
    """The calls of one program so far. All that is random about them comes from ``rng``.

    Token counts of one program go up and down together: each is as far up its
    distribution as a normal with correlation ``shared`` to the program's own says. The
    distributions themselves do not change by that.
    """

    def __init__(self, rng: Random, *, system_tokens: int = 0, shared: float = _SHARED) -> None:
        self.calls: list[CallShape] = []
        self._rng = rng
        self._system_tokens = system_tokens
        self._verbosity = rng.gauss(0.0, 1.0)
        self._shared = math.sqrt(shared)
        self._own = math.sqrt(1.0 - shared)

    def draw(self, sizes: Sizes) -> int:
        """A token count of this program."""
        z = self._shared * self._verbosity + self._own * self._rng.gauss(0.0, 1.0)
        return sizes.draw(self._rng, z)

    def call(
        self,
        node: str,
        output: Sizes,
        fresh: Sizes | int,
        *,
        after: Sequence[int] = (),
        extends: int | None = None,
        quotes: Sequence[int] = (),
        gap_s: float = 0.0,
        human: bool = False,
    ) -> int:
        """Add a call and return its index.

        Its prompt is that of the call which it ``extends`` with the output of that (or
        the program's system prompt), then the outputs of the calls that it ``quotes``,
        then ``fresh`` tokens.
        """
        new = fresh if isinstance(fresh, int) else self.draw(fresh)
        prompt = self._begin(extends) + sum(self.calls[i].output_tokens for i in quotes) + new
        self.calls.append(
            CallShape(
                output_tokens=self.draw(output),
                prompt_tokens=prompt,
                after=tuple(after),
                gap_s=gap_s,
                node=node,
                extends=extends,
                human=human and gap_s > 0,
            )
        )
        return len(self.calls) - 1

    def shape(self, program_id: str, type: str) -> ProgramShape:
        """The program as drawn, arriving at 0."""
        return ProgramShape(program_id, type, tuple(self.calls), system_tokens=self._system_tokens)

    def _begin(self, extends: int | None) -> int:
        if extends is None:
            return self._system_tokens
        parent = self.calls[extends]
        return parent.prompt_tokens + parent.output_tokens
