"""Decompress request bodies (gzip, deflate, br and zstd) in pieces of a bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator

PIECE = 64 * 1024
"""Maximum size of a decompressed piece of gzip, deflate or br (bytes)."""
_MOST_WINDOW = 8 * 1024 * 1024
"""Maximum window of the zstd decoder (bytes), which RFC 9659 sets for HTTP."""
_ZSTD_SLICE = 256
"""Compressed bytes that are passed to zstd at a time. Four bytes can expand to 128 KiB, so a piece
has at most 8 MiB.
"""
MOST_MEMBERS = 4096
"""Maximum number of gzip members or zstd frames in a body. Each member costs microseconds, even if
it is empty, and a body has room for a million empty members.
"""
_IDENTITY = ("", "identity")

Decoder = Callable[[bytes], Iterator[bytes]]


class EncodingError(Exception):
    """A body has a content coding that this server cannot read, has several codings, or cannot be
    decompressed. The message names the cause and, unless the body's data is invalid, the codings
    that this server can read.
    """


def coding_of(value: bytes | None) -> str | None:
    """Return the content coding of a request's body; None for a plain body. ``value`` is the value
    of the header Content-Encoding, or None without this header.

    Raises `EncodingError` for a coding that this server cannot read, and for several codings.
    """
    if value is None:
        return None
    named = [name.strip() for name in value.decode("latin-1").lower().split(",")]
    codings = [name for name in named if name not in _IDENTITY]
    if not codings:
        return None
    (coding, *others) = codings
    if others:
        names = _shortened(", ".join(codings))
        raise EncodingError(f"the request's body is compressed more than once ({names}); {_way()}")
    if coding not in _DECODERS:
        package = _PACKAGES.get(coding)
        why = f" without the package {package}" if package else ""
        raise EncodingError(
            f"the request's body has the content encoding {_shortened(coding)!r}, which this "
            f"server does not read{why}; {_way()}"
        )
    return coding


def _shortened(name: str) -> str:
    return name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}…"


def accepted() -> str:
    """Return the codings that this server can read, as a value of the header Accept-Encoding."""
    return ", ".join(name for name in _DECODERS if name != "x-gzip")


def decompressed(coding: str, body: bytes) -> Iterator[bytes]:
    """Yield the decompressed pieces of ``body``, and empty pieces where the work takes long.

    Raises `EncodingError` if the data of the body is invalid.
    """
    if not body:
        return
    try:
        yield from _DECODERS[coding](body)
    except _ERRORS as error:
        raise EncodingError(
            f"the request's body cannot be read as {coding}: {str(error).lower()}; compress it "
            "again, or send it plain"
        ) from error


def _way() -> str:
    return f"send it plain, or with one of {accepted()}"


def _gzip(body: bytes) -> Iterator[bytes]:
    at = members = 0
    while at < len(body):
        members += 1
        _check_count(members)
        at = yield from _inflated(zlib.decompressobj(wbits=31), body, at)
        at = yield from _without_padding(body, at)


def _without_padding(body: bytes, at: int) -> Generator[bytes, None, int]:
    while padded := body[at : at + PIECE]:
        rest = padded.lstrip(b"\0")
        at += len(padded) - len(rest)
        if rest:
            break
        yield b""
    return at


def _deflate(body: bytes) -> Iterator[bytes]:
    # Some clients leave out zlib's header, although the standard requires it.
    has_header = body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    stream = zlib.decompressobj(wbits=15 if has_header else -15)
    if (yield from _inflated(stream, body, 0)) < len(body):
        raise ValueError("bytes follow its end")


def _inflated(stream: zlib._Decompress, body: bytes, at: int) -> Generator[bytes, None, int]:
    """Yield the pieces of the stream that begins at ``at``, and return where the stream ends.

    The decoder gets the body in slices, because it copies all input that it has not used yet.
    """
    left = b""
    while not stream.eof:
        if not left:
            left = body[at : at + PIECE]
            at += len(left)
        piece = stream.decompress(left, PIECE)
        if not left and not piece and not stream.eof:
            raise ValueError("its end is missing")
        left = stream.unconsumed_tail
        yield piece
    return at - len(stream.unused_data)


def _check_count(parts: int) -> None:
    if parts > MOST_MEMBERS:
        raise ValueError(f"it has more than {MOST_MEMBERS} members or frames")


_DECODERS: dict[str, Decoder] = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate}
_PACKAGES = {"br": "brotli", "zstd": "zstandard"}
_ERRORS: tuple[type[Exception], ...] = (ValueError, zlib.error)
_MOST_NAME = 40

try:
    import brotli
except ImportError:
    brotli = None
if hasattr(getattr(brotli, "Decompressor", None), "can_accept_more_data"):  # since 1.2

    def _brotli(body: bytes) -> Iterator[bytes]:
        stream = brotli.Decompressor()
        while body or not stream.is_finished():
            piece = stream.process(body, output_buffer_limit=PIECE)
            body = b""
            if piece:
                yield piece
            elif not stream.is_finished() and stream.can_accept_more_data():
                raise ValueError("its end is missing")

    _DECODERS["br"] = _brotli
    _ERRORS += (brotli.error,)

try:
    import zstandard
except ImportError:
    zstandard = None  # type: ignore[assignment]  # checked below
if zstandard is not None:

    def _zstd(body: bytes) -> Iterator[bytes]:
        reader = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        at = frames = 0
        while at < len(body):
            frames += 1
            _check_count(frames)
            frame = reader.decompressobj()
            while not frame.eof:
                if at >= len(body):
                    raise ValueError("its end is missing")
                taken = body[at : at + _ZSTD_SLICE]
                at += len(taken)
                yield frame.decompress(taken)
            at -= len(frame.unused_data)

    _DECODERS["zstd"] = _zstd
    _ERRORS += (zstandard.ZstdError,)
