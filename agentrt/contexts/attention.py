"""A kind of attention that a program chooses: which earlier tokens each token of a context sees."""

from __future__ import annotations

from dataclasses import dataclass

from agentrt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention in which each token sees the last ``window`` and the first ``sinks`` tokens.

    The window includes the token itself. Without sinks, this is sliding-window attention
    (Longformer); with sinks, it is the attention of StreamingLLM. With ``chunk``, the attention is
    hierarchical: the text is cut into chunks of ``chunk`` tokens. All later tokens see the last
    ``summary`` tokens of each chunk. Each summary token has seen the tokens of its chunk that are
    in its window.

    Tokens that no later token sees are removed from the cache. So the cache has ``sinks + window``
    tokens, and ``summary`` tokens for each chunk. Raises `ConfigError` for sizes that are
    too small or not integers, and for a summary that is larger than its chunk.
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
                raise ConfigError(
                    f"attention: {name} is {value!r}; it must be an integer of at least {lowest} "
                    "(tokens)"
                )
        if self.chunk is not None and self.summary > self.chunk:
            raise ConfigError(
                f"attention: a summary of {self.summary} tokens is larger than its chunk of "
                f"{self.chunk}; use a smaller summary or a larger chunk"
            )

    def sees(self, query: int, key: int) -> bool:
        """Return whether the token at position ``query`` of the text sees the token at ``key``."""
        return key <= query and (query - key < self.window or self.keeps(key))

    def keeps(self, key: int) -> bool:
        """Return whether all later tokens see the token at position ``key``."""
        if key < self.sinks:
            return True
        return self.chunk is not None and key % self.chunk >= self.chunk - self.summary
