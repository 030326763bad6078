"""A KV connector to an imaginary second engine. Its transfers are slow and sometimes fail.

The name of a request begins with its kind. The KV cache of a ``load`` arrives from the other engine
within the step, the KV cache of a ``wait`` arrives after some steps, and the KV cache of a ``send``
goes to the other engine. When the scheduler first asks about a ``load`` or a ``wait``, the other
engine answers "not known yet".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

Load = tuple[str, list[int], int, int]
"""A request, its blocks, the position of the first token whose KV cache arrives in these blocks,
and the position after the last such token.
"""


@dataclass
class Transfers(KVConnectorMetadata):
    """The transfers that arrive with a step, and the transfers that begin with this step."""

    loads: list[Load] = field(default_factory=list)
    begun: list[Load] = field(default_factory=list)


class Elsewhere(KVConnectorBase_V1):
    """The scheduler's half of the connector. ``going`` has the requests whose KV cache is being
    sent to the other engine.

    The other engine has no KV cache of the ``failed`` requests any more. Otherwise vLLM would
    reserve blocks for such a request in addition to the request's own blocks, and would wait for
    ever if twice the number of blocks is not available.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.going: dict[str, None] = {}
        self.failed: set[str] = set()
        self._next = Transfers()
        self._known: set[str] = set()
        self._size = self._vllm_config.cache_config.block_size

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        name = request.request_id
        kind = name.split("-")[0]
        if kind not in ("load", "wait") or name in self.failed:
            return 0, False
        if name not in self._known:
            self._known.add(name)
            return None, False
        whole = (request.num_prompt_tokens - 1) // self._size * self._size
        return max(0, whole - num_computed_tokens), kind == "wait" and whole > num_computed_tokens

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            return
        name = request.request_id
        end = (request.num_prompt_tokens - 1) // self._size * self._size
        load = name, list(blocks.get_block_ids()[0]), end - num_external_tokens, end
        (self._next.begun if name.startswith("wait") else self._next.loads).append(load)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        transfers, self._next = self._next, Transfers()
        return transfers

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        if not request.request_id.startswith("send") or not block_ids:
            return False, None
        self.going[request.request_id] = None
        return True, None

    # The methods of the worker's half, which a scheduler does not call.
    def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, *args: Any) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...
