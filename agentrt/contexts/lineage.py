"""What of a context others have in common with it, and what goes with it when it is dropped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Stretch:
    """Tokens from where ``before`` ends up to ``end``, which ``users`` contexts and stretches hold.

    ``call`` is the id of a call that had them in its prompt or output, "" for none yet.
    """

    end: int
    before: Stretch | None
    users: int
    call: str


class Lineage:
    """A context's place among its forks.

    A context that was cut off inside of what it shares is not followed any further: what it
    shares stays until its program ends.
    """

    def __init__(self, shared: Stretch | None = None) -> None:
        self._shared = shared
        self._call = ""
        self._strayed = False

    def called(self, program_id: str, node: int) -> None:
        """All tokens of the context went through a call."""
        self._call = f"{program_id}/{node}"

    def truncated(self, length: int) -> None:
        """The context has only its first tokens left."""
        self._strayed |= length < self._start

    def fork(self, length: int) -> Lineage:
        """Of a fork at ``length`` tokens: what it has in common is nobody's own any more."""
        if self._shared is None or length > self._start:
            self._shared = Stretch(length, self._shared, 1, self._call)
            self._call = ""
        self._shared.users += 1
        other = Lineage(self._shared)
        other._strayed = self._strayed
        return other

    def kept(self, length: int) -> None:
        """The context is saved: its tokens are not given up."""
        self.fork(length)

    def drop(self) -> list[tuple[str, int]]:
        """What nobody has any more: calls, and how many of their first tokens others still have."""
        gone = [(self._call, self._start)]
        stretch = None if self._strayed else self._shared
        while stretch is not None:
            stretch.call = stretch.call or self._call
            stretch.users -= 1
            if stretch.users:
                break
            before = stretch.before
            gone.append((stretch.call, 0 if before is None else before.end))
            stretch = before
        return [(call, first) for call, first in gone if call]

    @property
    def _start(self) -> int:
        return 0 if self._shared is None else self._shared.end
