"""What an executor may show a router of its prompts and its prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from agentrt.request import CallSpec
from agentrt.router.kv_events import KVEventBatch


@runtime_checkable
class ShowsCachedBlocks(Protocol):
    """An executor whose prompts can be hashed as its engine hashes them, and that tells what
    its engine holds. All methods belong to the executor's loop.
    """

    async def prompt_ids(self, spec: CallSpec) -> list[int]:
        """The token ids of a call's prompt, its chat template included.

        Raises `CallRejectedError` for a chat that the template refuses, and `EngineDiedError`
        if an engine that is elsewhere is gone.
        """

    def block_hashes(self, ids: Sequence[int], salt: str | None = None) -> Sequence[int]:
        """64 bits of the hash of each full block of a prompt, which has this cache salt."""

    def hear_held(self, hear: Callable[[KVEventBatch], None]) -> None:
        """Tell ``hear`` each note of what the engine stored and removed, from now on."""

    async def held(self) -> tuple[KVEventBatch, int] | None:
        """A snapshot of what the engine holds, and its tokens per block.

        None where the engine does not tell, or is gone.
        """
