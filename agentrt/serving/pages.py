"""Web pages that are part of the package. Their files load nothing from other servers."""

from __future__ import annotations

from importlib import resources

from fastapi import HTTPException, Response

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers that make the browser load files only from this server."""


class WebPage:
    """A web page: the files in the folder ``page`` of ``package``, by name."""

    def __init__(self, package: str) -> None:
        folder = resources.files(package).joinpath("page")
        files = [(file, file.name.rpartition(".")[2]) for file in folder.iterdir()]
        self._files = {
            file.name: (file.read_bytes(), _TYPES[kind]) for file, kind in files if kind in _TYPES
        }

    def file(self, name: str, put: tuple[bytes, bytes] = (b"", b"")) -> Response:
        """Return a response with the content of a file. Raises `HTTPException` 404 for an unknown
        file.

        ``put`` are two byte strings: wherever the first occurs in the content, the response has the
        second in its place. If the first is empty, the content stays as it is.
        """
        entry = self._files.get(name)
        if entry is None:
            raise HTTPException(404, f"unknown file {name[:80]!r}")
        content, media_type = entry
        old, new = put
        content = content.replace(old, new) if old else content
        return Response(content, media_type=media_type, headers=_HEADERS)
