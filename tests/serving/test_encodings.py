"""Compressed bodies at every door: read within the bounds of a body, or refused in words."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import zstandard

from agentrt.serving import encodings
from agentrt.serving.encodings import (
    MOST_MEMBERS,
    EncodingError,
    accepted,
    coding_of,
    decompressed,
)
from tests.serving.langgraph.graphs import poem
from tests.serving.langgraph.serve import serving
from tests.serving.local import MODEL, open_server

MANY = random.Random(1).randbytes(300_000)


def brotli_compress(body: bytes) -> bytes:
    return bytes(pytest.importorskip("brotli").compress(body))


def raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


def streamed_zstd(body: bytes) -> bytes:
    """Without the size of the content in its head, as clients that stream write it."""
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return stream.compress(body) + stream.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "members": ("gzip", lambda body: gzip.compress(body[:5]) + gzip.compress(body[5:])),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
    "streamed zstd": ("identity, zstd", streamed_zstd),
    "frames": ("zstd", lambda body: streamed_zstd(body[:5]) + streamed_zstd(body[5:])),
    "br": ("br", brotli_compress),
}


@pytest.mark.parametrize("body", [b"", b"{}", b'{"a": 1}' * 9000, MANY], ids=len)
@pytest.mark.parametrize("kind", CODINGS)
def test_a_body_is_read_in_small_pieces(kind: str, body: bytes) -> None:
    name, compress = CODINGS[kind]
    compressed = compress(body)
    coding = coding_of(name.encode())
    assert coding is not None
    pieces = list(decompressed(coding, compressed))
    assert b"".join(pieces) == body
    assert max(map(len, pieces), default=0) <= 8 * 1024 * 1024
    assert list(decompressed(coding, b"")) == []


@pytest.mark.parametrize("kind", CODINGS)
def test_a_body_that_is_broken_is_refused_in_words(kind: str) -> None:
    name, compress = CODINGS[kind]
    coding = name.split(", ")[-1].lower()
    whole = compress(b'{"a": 1}' * 900)
    for broken in (whole[:-3], whole[: len(whole) // 2], b"{" + whole, b'{"plain": true}'):
        with pytest.raises(EncodingError, match=f"cannot be read as {coding}: .*send it plain"):
            list(decompressed(coding, broken))


@pytest.mark.parametrize("value", ["", "identity", "Identity, identity"])
def test_the_coding_identity_is_accepted(value: str) -> None:
    assert coding_of(value.encode()) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("lzma", "'lzma', which this server does not read; send it plain, or with one of gzip, "),
        ("gzip, gzip", r"compressed more than once \(gzip, gzip\)"),
        ("ü" * 500, "…', which"),
    ],
)
def test_the_error_names_an_unsupported_coding(value: str, words: str) -> None:
    with pytest.raises(EncodingError, match=words):
        coding_of(value.encode("latin-1"))


def test_a_coding_without_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(encodings._DECODERS, "zstd")
    with pytest.raises(EncodingError, match="does not read without the package zstandard"):
        coding_of(b"zstd")
    assert "zstd" not in accepted()


def test_a_frame_that_needs_much_memory_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=26)
    body = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    compressed = body.compress(b"a" * 100) + body.flush()
    with pytest.raises(EncodingError):
        list(decompressed("zstd", compressed))


EMPTY: dict[str, bytes] = {
    "gzip": gzip.compress(b""),
    "zstd": zstandard.ZstdCompressor().compress(b""),
}


@pytest.mark.parametrize("coding", EMPTY)
def test_a_body_of_many_empty_parts_is_refused(coding: str) -> None:
    """Each part costs time, but no size. Few parts are read, with padding behind gzip's."""
    few = EMPTY[coding] * 1000 + (bytes(200_000) if coding == "gzip" else b"")
    assert b"".join(decompressed(coding, few)) == b""
    with pytest.raises(EncodingError, match=f"more than {MOST_MEMBERS} members"):
        list(decompressed(coding, EMPTY[coding] * (MOST_MEMBERS + 1)))


# -- at the doors --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving({"poem": poem}, tmp_path_factory.mktemp("encodings") / "agentrt.db") as it:
        yield it.url


DOORS = [
    ("/threads", {}),
    ("/threads/search", {}),
    ("/runs/wait", {"assistant_id": "poem", "input": {}}),
    ("/store/items/search", {}),
    ("/assistants/search", {}),
    ("/a2a/poem", {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}),
    ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}),
    ("/v1/nowhere", {}),
]


def post(url: str, coding: str, body: bytes) -> httpx.Response:
    kinds = "application/json, text/event-stream"
    headers = {"content-type": "application/json", "accept": kinds, "content-encoding": coding}
    return httpx.post(url, content=body, headers=headers, timeout=60)


@pytest.mark.parametrize(("path", "body"), DOORS, ids=[path for path, _ in DOORS])
def test_every_api_reads_and_refuses_compressed_bodies_alike(
    url: str, path: str, body: dict[str, Any]
) -> None:
    plain = json.dumps(body).encode()
    expected = post(f"{url}{path}", "identity", plain).status_code
    for coding, compress in (("gzip", gzip.compress), ("zstd", streamed_zstd)):
        assert post(f"{url}{path}", coding, compress(plain)).status_code == expected
    for coding, content in (("lzma", plain), ("gzip", plain), ("gzip", gzip.compress(plain)[:-9])):
        refused = post(f"{url}{path}", coding, content)
        assert refused.status_code == 415
        assert refused.headers["accept-encoding"] == accepted()
        assert "send it plain" in refused.text
    bomb = gzip.compress(b"[" + b" " * 40_000_000 + b"]")
    refused = post(f"{url}{path}", "gzip", bomb)
    assert refused.status_code == 413
    assert "bytes once it is decompressed; send less" in refused.text


def test_values_in_a_compressed_body_are_counted(url: str) -> None:
    values = b'{"metadata": {"a": [' + b"1," * 600_000 + b"1]}}"
    for coding, compress in (("gzip", gzip.compress), ("zstd", streamed_zstd)):
        answer = post(f"{url}/threads", coding, compress(values))
        assert answer.status_code == 413
        assert "values" in answer.text


def test_several_headers_are_one_list_of_codings(url: str) -> None:
    plain = b'{"metadata": {"a": 1}}'

    def posted(body: bytes, *codings: str) -> httpx.Response:
        headers = [
            ("content-type", "application/json"),
            *(("content-encoding", c) for c in codings),
        ]
        return httpx.post(f"{url}/threads", content=body, headers=headers, timeout=60)

    assert posted(gzip.compress(plain), "identity", "gzip").json()["metadata"] == {"a": 1}
    assert posted(gzip.compress(plain), "gzip", "identity").json()["metadata"] == {"a": 1}
    refused = posted(zlib.compress(gzip.compress(plain)), "gzip", "deflate")
    assert (refused.status_code, "(gzip, deflate)" in refused.text) == (415, True)
    long = posted(plain, ", ".join(["gzip"] * 5000))
    assert (long.status_code, len(long.content) < 400) == (415, True)


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 7):
        yield body[at : at + 7]


@pytest.mark.engine
@pytest.mark.asyncio
async def test_vllms_apis_read_compressed_bodies() -> None:
    """Also without the body's length, and with one that is large only once it is decompressed."""
    ask = [{"role": "user", "content": "?"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"model": MODEL, "messages": ask},
        "/v1/completions": {"model": MODEL, "prompt": "?", "max_tokens": 5},
        "/v1/responses": {"model": MODEL, "input": "?"},
        "/v1/messages": {"model": MODEL, "messages": ask, "max_tokens": 5},
        "/v1/messages/count_tokens": {"model": MODEL, "messages": ask},
        "/tokenize": {"model": MODEL, "prompt": "?"},
    }
    async with open_server() as server:
        for path, fields in bodies.items():
            for metadata in ({}, {"metadata": {"user_id": " " * 200_000}}):
                plain = json.dumps({**fields, **(metadata if "messages" in path else {})}).encode()
                for coding, compress in (("gzip", gzip.compress), ("zstd", streamed_zstd)):
                    headers = {"content-type": "application/json", "content-encoding": coding}
                    body = compress(plain)
                    for content in (body, in_pieces(body)):
                        answer = await server.client.post(path, content=content, headers=headers)
                        assert answer.status_code == 200, (path, coding, answer.text)
            refused = await server.client.post(
                path, content=b"{}", headers={"content-encoding": "x"}
            )
            assert refused.status_code == 415
            error = refused.json()["error"] if path.startswith("/v1") else refused.json()["detail"]
            assert "content encoding 'x'" in str(error)
