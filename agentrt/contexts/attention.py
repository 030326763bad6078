"""Which earlier tokens each token of a context sees, where the executor lets a program choose."""

from __future__ import annotations

from dataclasses import dataclass

from agentrt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Attention:
    """Each token sees the last ``window`` tokens, itself among them, and the first ``sinks``.

    That is sliding-window attention (Longformer), and with sinks StreamingLLM's attention. With
    ``chunk`` it is hierarchical: the text is cut into chunks of so many tokens, of which a later
    token sees the last ``summary`` ones, which have read their chunk.

    What no later token sees leaves the cache: it holds ``sinks + window`` tokens, and ``summary``
    for each chunk.
    """

    window: int
    sinks: int = 0
    chunk: int | None = None
    summary: int = 1

    def __post_init__(self) -> None:
        least = {"window": 1, "sinks": 0, "chunk": 1, "summary": 1}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is None and name == "chunk":
                continue
            if not isinstance(value, int) or value < lowest:
                raise ConfigError(f"attention: {name} is {value!r}; give {lowest} or more tokens")
        if self.chunk is not None and self.summary > self.chunk:
            raise ConfigError(
                f"attention: a chunk of {self.chunk} tokens has no {self.summary} to be its "
                "summary; give a smaller summary, or a larger chunk"
            )

    def sees(self, query: int, key: int) -> bool:
        """Whether the token at position ``query`` of the text sees the one at ``key``."""
        return key <= query and (query - key < self.window or self.keeps(key))

    def keeps(self, key: int) -> bool:
        """Whether all later tokens see the one at ``key``."""
        if key < self.sinks:
            return True
        return self.chunk is not None and key % self.chunk >= self.chunk - self.summary
