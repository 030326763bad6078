"""Versions of a model's weights: which version wrote a token, and which may read a cached block.

The version is 0 until the weights are updated for the first time. `agentrt.executors.weights`
updates the weights of engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from agentrt.errors import ConfigError

PauseMode = Literal["abort", "wait", "keep"]
"""The ways to treat the calls in an engine when generation pauses, under vLLM's names:

- ``abort``: calls whose output nobody has read yet begin again afterwards, and others continue.
- ``wait``: calls that have begun are finished before the pause.
- ``keep``: calls stop where they are and continue afterwards.
"""
MODES: tuple[PauseMode, ...] = get_args(PauseMode)
Versions = Sequence[Sequence[int]]
"""The versions that wrote a call's output, as pairs: the index of the first output token that a
version wrote, and the version. The first pair has the index 0, and the pairs are in ascending
order. If there are no pairs, version 0 wrote the whole output.
"""


def check_mode(mode: str) -> None:
    """Raise `ConfigError` for a mode that is not a `PauseMode`."""
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r}; available: {', '.join(MODES)}")


def salted(salt: str | None, version: int) -> str | None:
    """Return the cache salt of a call whose own salt is ``salt``, under a version of the weights.

    Calls with different salts share no cached blocks. Different pairs of salt and version have
    different results, unless a caller's own salt imitates the form of a result.
    """
    if version == 0:
        return salt
    return f"weights-{version}" if salt is None else f"weights-{version}:{salt}"


def changed(versions: Versions, tokens: int, old: int, new: int) -> list[list[int]]:
    """Return ``versions``, the versions of a call's output, as they are after an update of the
    weights from version ``old`` to ``new``. Before the update, the call wrote ``tokens`` tokens.
    """
    pairs = [[start, version] for start, version in versions] or [[0, old]]
    while pairs and pairs[-1][0] >= tokens:
        pairs.pop()
    return [*pairs, [tokens, new]]


def version_spans(versions: Versions, tokens: int) -> Iterable[tuple[int, int, int]]:
    """Yield (start, end, version) for each part of an output of ``tokens`` tokens that a version
    wrote: the indexes of its first token and of the token after its last. Empty parts are left out.
    """
    pairs = [*versions] or [(0, 0)]
    ends = [*pairs[1:], (tokens, 0)]
    for (start, version), (end, _) in zip(pairs, ends, strict=True):
        if start < (end := min(end, tokens)):
            yield start, end, version
