"""Decompress request bodies (gzip, deflate, br and zstd) in pieces of a bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping

PIECE = 64 * 1024
"""Maximum size of a decompressed piece (bytes)."""
_MOST_WINDOW = 8 * 1024 * 1024
"""Maximum window of the zstd decoder (bytes), which RFC 9659 sets for HTTP."""
_ZSTD_SLICE = 256
"""Compressed bytes that are passed to zstd at a time. Four bytes can expand to 128 KiB."""
_IDENTITY = ("", "identity")

Decoder = Callable[[bytes], Iterator[bytes]]


class EncodingError(Exception):
    """A body has an unknown content coding, or cannot be decompressed. The message names the cause,
    and the codings that this server can read.
    """


def coding_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the content coding of a request's body; None for a plain body.

    Raises `EncodingError` for a coding that this server cannot read.
    """
    value = headers.get(b"content-encoding")
    if value is None:
        return None
    named = [name.strip() for name in value.decode("latin-1").lower().split(",")]
    codings = [name for name in named if name not in _IDENTITY]
    if not codings:
        return None
    (coding, *others) = codings
    if others:
        names = ", ".join(codings)
        raise EncodingError(f"the request's body is compressed more than once ({names}); {_way()}")
    if coding not in _DECODERS:
        package = _PACKAGES.get(coding)
        why = f" without the package {package}" if package else ""
        shown = coding if len(coding) <= _MOST_NAME else f"{coding[:_MOST_NAME]}…"
        raise EncodingError(
            f"the request's body has the content encoding {shown!r}, which this server does not "
            f"read{why}; {_way()}"
        )
    return coding


def accepted() -> str:
    """Return the codings that this server can read, as a value of the header Accept-Encoding."""
    return ", ".join(name for name in _DECODERS if name != "x-gzip")


def decompressed(coding: str, body: bytes) -> Iterator[bytes]:
    """Yield the decompressed pieces of ``body``. Raises `EncodingError` if its data is invalid."""
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
    while body:
        member = zlib.decompressobj(wbits=31)
        yield from _inflated(member, body)
        body = member.unused_data.lstrip(b"\0")  # padding


def _deflate(body: bytes) -> Iterator[bytes]:
    # Some clients leave out zlib's header, although the standard requires it.
    has_header = body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    stream = zlib.decompressobj(wbits=15 if has_header else -15)
    yield from _inflated(stream, body)
    if stream.unused_data:
        raise ValueError("bytes follow its end")


def _inflated(stream: zlib._Decompress, body: bytes) -> Iterator[bytes]:
    while not stream.eof:
        piece = stream.decompress(body, PIECE)
        body = stream.unconsumed_tail
        if piece:
            yield piece
        elif not body and not stream.eof:
            raise ValueError("its end is missing")


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
        left = memoryview(body)
        while left:
            frame = reader.decompressobj()
            while not frame.eof:
                if not left:
                    raise ValueError("its end is missing")
                taken, left = left[:_ZSTD_SLICE], left[_ZSTD_SLICE:]
                piece = frame.decompress(taken)
                if piece:
                    yield piece
            if frame.unused_data:
                left = memoryview(frame.unused_data + bytes(left))

    _DECODERS["zstd"] = _zstd
    _ERRORS += (zstandard.ZstdError,)
