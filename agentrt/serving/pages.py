"""Web pages that the package brings: their files, with nothing from elsewhere."""

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
"""The browser loads nothing that is not from this server."""


class Page:
    """The files of the folder ``page`` of ``package``, by name. No other file is served."""

    def __init__(self, package: str) -> None:
        folder = resources.files(package).joinpath("page")
        files = [(file, file.name.rpartition(".")[2]) for file in folder.iterdir()]
        self._files = {
            file.name: (file.read_bytes(), _TYPES[kind]) for file, kind in files if kind in _TYPES
        }

    def file(self, name: str, put: tuple[bytes, bytes] = (b"", b"")) -> Response:
        """A file's response, with the second of ``put`` where it has the first. Raises 404 if
        there is no file of that name.
        """
        found = self._files.get(name)
        if found is None:
            raise HTTPException(404, "the page has no such file")
        content, media_type = found
        old, new = put
        content = content.replace(old, new) if old else content
        return Response(content, media_type=media_type, headers=_HEADERS)
