"""The versions of the weights in an engine core: which version writes the tokens of each call, and
which blocks of the prefix cache a call may read.

Blocks of old weights are not removed. The hash of a block covers the version of the weights that
computed it (`salted`), so that calls under other weights find the block neither in the engine's
memory nor in host memory. A call that keeps its blocks during an update (mode ``keep``) keeps the
hashes of these blocks, too, until the call is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentrt.executors.vllm._compat.offloading import forget_keys
from agentrt.executors.vllm._compat.pool import holds_blocks
from agentrt.executors.vllm._compat.requests import rehash
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler
from agentrt.request.weights import changed, salted
from agentrt.scheduler.state import QueuedCall


class WeightVersions:
    """The weights' current ``version`` in an engine core, and the versions of its calls."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self.version = 0
        self._scheduler = scheduler

    def arrived(self, call: QueuedCall) -> None:
        """Note the version of the weights for a call that has just arrived, and hash its blocks for
        this version.
        """
        call.salt = call.item.cache_salt
        if self.version:
            call.versions = [[0, self.version]]
            self._rehash(call)

    def preempted(self, call: QueuedCall) -> None:
        """After a call has lost its blocks, hash them for the current version of the weights, so
        that the call does not find blocks that it computed under older weights.
        """
        if call.salted_for != self.version:
            self._rehash(call)

    def update(self, version: int, calls: Iterable[QueuedCall]) -> None:
        """Note that the weights have been replaced by those of ``version``, while all ``calls`` in
        the engine were paused.
        """
        old, self.version = self.version, version
        for call in calls:
            call.versions = changed(call.versions, call.item.num_output_tokens, old, version)
            if not holds_blocks(self._scheduler, call.item):
                call.known_tokens = call.beside_tokens = 0
                self._rehash(call)

    def _rehash(self, call: QueuedCall) -> None:
        call.salted_for = self.version
        rehash(call.item, salted(call.salt, self.version))
        forget_keys(self._scheduler, call.item.request_id)
