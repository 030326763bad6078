"""What the working set learns: what calls add, which run side by side, and what prefill takes.

Bounded in size; per tenant, so that nobody can teach falsehoods about others' programs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

Kind = tuple[str, str]
"""Tenant and type of a program."""

_OUTPUT_TOKENS = 256.0
"""A call's output where nothing is known of its type."""
_MEMORY = 64.0
"""Samples that a mean remembers: older ones fade."""
_KINDS = 1024
_BESIDE = 0.25
"""A type branches if more than this share of its calls comes beside another of its program."""
_TOKEN_S = 25e-6
"""Prefill of a token before it is measured: an 8B model on a large GPU."""
_FEW = 16
"""Prompt tokens in a step below which its time says nothing about prefill."""


@dataclass(slots=True)
class _Mean:
    """A faded mean; ``value`` is the prior before the first sample."""

    value: float
    n: float = 0.0

    def add(self, value: float) -> None:
        self.n = min(self.n + 1.0, _MEMORY)
        self.value += (value - self.value) / self.n


@dataclass(slots=True)
class _Of:
    """What is known of a type's programs, in tokens."""

    output: _Mean
    shared: _Mean
    beside: _Mean


class Growth:
    """By type of program: a call's output, what a first call finds cached, and if it branches."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, _Of] = OrderedDict()

    def output(self, kind: Kind) -> int:
        """The output tokens to expect of a call."""
        of = self._kinds.get(kind)
        return int(_OUTPUT_TOKENS if of is None else of.output.value)

    def shared(self, kind: Kind) -> int:
        """The tokens at the start of a program that others of its type have, too."""
        of = self._kinds.get(kind)
        return 0 if of is None else int(of.shared.value)

    def branches(self, kind: Kind) -> bool:
        """Whether a type's programs often have several calls at a time."""
        of = self._kinds.get(kind)
        return of is not None and of.beside.value > _BESIDE

    def call_arrived(self, kind: Kind, *, beside: bool) -> None:
        """A call came, ``beside`` another of its program or alone."""
        self._of(kind).beside.add(beside)

    def call_ended(self, kind: Kind, output_tokens: int) -> None:
        """A call ended with so many tokens of output."""
        self._of(kind).output.add(output_tokens)

    def first_call(self, kind: Kind, cached_tokens: int) -> None:
        """A program's first call found so many tokens of its prompt cached.

        One that found none tells nothing: what others had there may have been pushed out.
        """
        if cached_tokens:
            self._of(kind).shared.add(cached_tokens)

    def _of(self, kind: Kind) -> _Of:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = _Of(_Mean(_OUTPUT_TOKENS), _Mean(0.0), _Mean(0.0))
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        return found


class StepCost:
    """The seconds that a prompt token adds to a step, by steps with prompts and without."""

    def __init__(self) -> None:
        self._decode = _Mean(0.0)
        self._token = _Mean(_TOKEN_S)

    @property
    def token_s(self) -> float:
        """Seconds of prefill per token."""
        return self._token.value

    def step(self, seconds: float, tokens: int, calls: int) -> None:
        """A step computed so many ``tokens``: one of each call, and more of those in prefill."""
        prefill = tokens - calls
        if prefill <= 0:
            self._decode.add(seconds)
        elif prefill >= _FEW:
            self._token.add(max(seconds - self._decode.value, 0.0) / prefill)
