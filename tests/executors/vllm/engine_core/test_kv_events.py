"""An engine reports of its prefix cache what is really in it: vLLM's scheduler, without a model."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request

from agentrt.executors.identity import to_extra_args
from agentrt.executors.vllm._compat.prefixes import cached_keys
from agentrt.executors.vllm.calls import BlockHasher
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import BLOCK_SIZE, HeadlessEngine, _hash_function, make_scheduler
from agentrt.lab.engine.host import transfer_config, with_host
from agentrt.lab.engine.host_memory import HostMemory
from agentrt.request import Call, CallSpec, Identity, RenderedCall
from agentrt.router.dispatch import ReplicaBlockIndex
from agentrt.router.kv_events import KV_EVENTS, KVEventBatch, KVEventStream, short

pytestmark = pytest.mark.engine

BLOCKS = 48


class Reader:
    """An index that gets one engine's notes. ``loses`` says for each note whether it is lost."""

    def __init__(self, engine: HeadlessEngine, loses: Any = lambda: False) -> None:
        self.index, self.stream, self.engine, self.loses = (
            ReplicaBlockIndex(),
            KVEventStream(),
            engine,
            loses,
        )
        self.index.join()
        self.asked = 0
        self.ask()

    def ask(self) -> None:
        self.asked += 1
        self.apply(self.engine.scheduler.control("cached_blocks"))

    def apply(self, values: Any) -> None:
        for note in self.stream.take(KVEventBatch.from_wire(values)):
            if note.whole:
                self.index.replace(0, note.stored)
            else:
                self.index.remove(0, note.removed)
                self.index.store(0, note.stored)

    def hear(self, notes: list[Any]) -> None:
        for values in notes:
            if not self.loses():
                self.apply(values)
        if self.stream.gap:
            self.ask()

    @property
    def held(self) -> set[int]:
        return self.index.blocks(0)


def engine(*, events: bool = True, host: bool = False) -> HeadlessEngine:
    """Return an engine. With ``host``, its cache is offloaded to host memory of twice its size."""
    offload = {"kv_transfer_config": transfer_config(2 * BLOCKS, {})} if host else {}
    scheduler = make_scheduler(
        ProgramScheduler,
        max_num_seqs=4,
        blocks=BLOCKS,
        max_model_len=512,
        kv_events=events,
        settings={"policy": "fcfs"},
        vllm=offload,
    )
    return with_host(scheduler, HostMemory(2.0)) if host else HeadlessEngine(scheduler)


def add(
    engine: HeadlessEngine, number: int, prompt: list[int], out: int = 20, salt: str | None = None
) -> None:
    call = Call(Identity(f"c{number}", f"p{number % 5}", "t"), CallSpec(max_tokens=out))
    engine.add(call.call_id, prompt, out, to_extra_args(call.identity), salt=salt)


def spec_of(prompt: Iterable[int], **fields: Any) -> CallSpec:
    return CallSpec(prompt_token_ids=tuple(prompt), **fields)


def truth(engine: HeadlessEngine) -> set[int]:
    return set(map(short, cached_keys(engine.scheduler)))


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("losing", [0.0, 0.5])
def test_notes_add_up_to_the_cache(losing: float, host: bool) -> None:
    """In a cache that is too small, blocks are stored, shared, stored twice and evicted. After each
    call that ends, the index has what the cache has; if notes get lost, it has so after it asked
    again.
    """
    rng = Random(f"held/{losing}")
    tiny = engine(host=host)
    reader = Reader(tiny, lambda: rng.random() < losing)
    prompts = [[rng.randrange(1000) + 10 * family for _ in range(150)] for family in range(4)]
    checked = number = 0
    while checked < 40:
        while len(tiny.requests) < 4:
            number += 1
            own = [rng.randrange(1000) for _ in range(rng.randrange(40))]
            add(tiny, number, prompts[rng.randrange(4)][: rng.randrange(20, 150)] + own)
        step = tiny.step()
        reader.hear(step.kv_events)
        if step.kv_events and not losing:
            assert reader.held == truth(tiny)
            checked += 1
        elif step.finished and losing:
            if not reader.stream.gap and reader.stream.number == tiny.scheduler.kv_events.number:
                assert reader.held == truth(tiny)
            checked += 1
    if losing:
        assert reader.asked > 10
        reader.ask()
        assert reader.held == truth(tiny)
    else:
        assert reader.asked == 1


def test_a_block_that_is_there_twice_is_held_until_both_are_gone() -> None:
    """vLLM reports each copy of a block. If one of two copies goes, the block is still cached."""
    tiny = engine()
    reader = Reader(tiny)
    prompt = list(range(100, 200))
    add(tiny, 1, prompt)
    add(tiny, 2, prompt)
    for step in tiny.run():
        reader.hear(step.kv_events)
        if step.kv_events:
            assert reader.held == truth(tiny)
    hashes = BlockHasher("sha256", BLOCK_SIZE)(spec_of(prompt))
    assert reader.index.match(hashes) == [len(hashes)] == [100 // BLOCK_SIZE]


def test_a_cache_that_is_reset_is_told_as_a_whole() -> None:
    tiny = engine()
    reader = Reader(tiny)
    add(tiny, 1, list(range(64)))
    for step in tiny.run():
        reader.hear(step.kv_events)
    assert reader.held
    assert tiny.scheduler.reset_prefix_cache()
    add(tiny, 2, list(range(500, 530)))
    for step in tiny.run():
        reader.hear(step.kv_events)
    assert reader.asked == 1
    assert reader.held == truth(tiny)
    assert reader.held.isdisjoint(BlockHasher("sha256", BLOCK_SIZE)(spec_of(range(64))))


@pytest.mark.parametrize("salt", [None, "alice"])
def test_prompts_are_hashed_as_the_engine_hashes_them(salt: str | None) -> None:
    """The engine finds as much of each next prompt in its cache as the index said before."""
    tiny, rng = engine(), Random(3)
    reader, hasher = Reader(tiny), BlockHasher("sha256", BLOCK_SIZE)
    context = [rng.randrange(1000) for _ in range(60)]
    for number in range(6):
        context = [*context, *(rng.randrange(1000) for _ in range(25))]
        most = len(context) - 1
        hashes = hasher(spec_of(context, cache_salt=salt))
        expected = reader.index.match(hashes, BLOCK_SIZE, most // BLOCK_SIZE * BLOCK_SIZE)
        add(tiny, number, context, salt=salt)
        for step in tiny.run():
            reader.hear(step.kv_events)
            for report in step.reports.values():
                assert report["cached_tokens"] == expected[0]
        assert number == 0 or expected[0] >= 64


AHEAD = [0, 1, 3] if "num_hash_lookahead_tokens" in vars(VllmConfig) else [0]
"""How many tokens after a block its hash may cover: from 0.33 on some, with EAGLE's drafts."""
IMAGES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(1, 50)))


@given(
    st.integers(0, 200),
    IMAGES,
    st.sampled_from([None, "alice"]),
    st.sampled_from([None, ("poet", "/a"), ("poet", "/b")]),
    st.sampled_from(AHEAD),
)
def test_images_adapters_and_salts_are_hashed_as_the_engine_does(
    length: int,
    images: list[tuple[str, int, int]],
    salt: str | None,
    adapter: tuple[str, str] | None,
    ahead: int,
) -> None:
    """Our hashes of a prompt with images and videos anywhere, as a front end renders it, equal
    those of vLLM's own request.
    """
    lora = adapter and LoRARequest(adapter[0], 1, adapter[1])
    places: dict[str, list[Any]] = {"image": [], "video": []}
    hashes: dict[str, list[str]] = {"image": [], "video": []}
    at, features = 0, []
    for number, (name, gap, size) in enumerate(images):
        kind, place = ("image", "video")[number % 2], PlaceholderRange(at + gap, size)
        at = place.offset + size
        places[kind].append(place)
        hashes[kind].append(name)
        features.append(MultiModalFeatureSpec(None, kind, name, place))
    ids = list(range(max(length, at)))
    more = [ahead] if ahead else []  # 0.32 knows no such argument
    theirs = Request(
        "r",
        ids,
        SamplingParams(),
        None,
        mm_features=features,
        lora_request=lora,
        cache_salt=salt,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, _hash_function(), *more),
    )
    prompt = {"type": "multimodal", "mm_placeholders": places, "mm_hashes": hashes}
    rendered = RenderedCall(prompt, None, {"lora_request": lora} if lora else {})
    hasher = BlockHasher("sha256", BLOCK_SIZE, ahead)
    ours = hasher(spec_of(ids, cache_salt=salt, rendered=rendered))
    assert ours == [short(value) for value in theirs.block_hashes]
    assert len(set(ours)) == max(0, len(ids) - ahead) // BLOCK_SIZE


def test_a_log_that_nobody_reads_starts_over() -> None:
    """Calls of other clients end without notes. The changes that pile up are dropped, and a reader
    that comes back notices the gap.
    """
    tiny = engine()
    reader = Reader(tiny)
    log = tiny.scheduler.kv_events
    for number in range(30):
        tiny.add(f"lone-{number}", [1000 * number + i for i in range(100)], 4)
        assert not [note for step in tiny.run() for note in step.kv_events]
        assert len(log._changed) <= 2 * BLOCKS
    add(tiny, 1, list(range(100)))
    for step in tiny.run():
        reader.hear(step.kv_events)
    assert reader.asked > 1
    assert reader.held == truth(tiny)


def test_nothing_is_told_without_events() -> None:
    quiet = engine(events=False)
    assert quiet.scheduler.control("cached_blocks") is None
    add(quiet, 1, list(range(64)))
    assert not [note for step in quiet.run() for note in step.kv_events]


def test_a_note_survives_the_way_to_the_client() -> None:
    """A note is packed as vLLM packs outputs and the answers to control messages."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, UtilityOutput
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder, UtilityResult

    note = KVEventBatch.of(7, [1, 2**64 - 1], [3])
    output = EngineCoreOutput("r", [1], kv_transfer_params={KV_EVENTS: note.to_wire()})
    answer = UtilityOutput(1, result=UtilityResult(note.to_wire() | {"block_size": 16}))
    packed = MsgpackEncoder().encode(EngineCoreOutputs(outputs=[output], utility_output=answer))
    read = MsgpackDecoder(EngineCoreOutputs).decode(packed)
    assert KVEventBatch.from_wire(read.outputs[0].kv_transfer_params[KV_EVENTS]) == note
    assert KVEventBatch.from_wire(read.utility_output.result.result) == note
