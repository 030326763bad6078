"""Batches of KV events: as they travel, and in the order in which they count."""

from __future__ import annotations

import json

from agentrt.router.kv_events import KVEventBatch, KVEventStream


def numbers(batches: list[KVEventBatch]) -> list[int]:
    return [batch.number for batch in batches]


def test_a_batch_travels_as_plain_values() -> None:
    for batch in (
        KVEventBatch.of(7, [1, 2**64 - 1], [3, 2**64 - 2]),
        KVEventBatch.of(8, [], [5, 6]),
        KVEventBatch.of(9, [4], whole=True),
    ):
        wire = batch.to_wire()
        assert KVEventBatch.from_wire(wire) == batch
        assert sorted(wire) == ["number", "removed", "stored", "whole"]
        assert len(wire["stored"]) == 8 * len(batch.stored)
        assert json.dumps([wire["number"], wire["whole"]])


def test_a_snapshot_comes_again_and_a_batch_does_not() -> None:
    stream = KVEventStream()
    assert numbers(stream.take(KVEventBatch.of(0, [1], whole=True))) == [0]
    assert numbers(stream.take(KVEventBatch.of(1, [2]))) == [1]
    assert stream.take(KVEventBatch.of(1, [2])) == []
    assert not stream.gap
    assert numbers(stream.take(KVEventBatch.of(1, [1, 2], whole=True))) == [1]
    assert stream.take(KVEventBatch.of(0, [1], whole=True)) == []
    assert stream.number == 1


def test_what_came_early_follows_the_first_snapshot() -> None:
    stream = KVEventStream()
    assert stream.take(KVEventBatch.of(0, [1])) == []
    assert stream.take(KVEventBatch.of(1, [2])) == []
    assert numbers(stream.take(KVEventBatch.of(0, [], whole=True))) == [0, 1]
    assert not stream.gap
