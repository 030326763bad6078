"""Escape the characters in JSON at which some clients end a line.

Python's ``str.splitlines`` ends a line not only at a line feed. Clients that use it, such as
httpx's ``iter_lines``, would cut an event of a stream, or a line of a JSONL file, within a text.
"""

from __future__ import annotations

import re

_LINE_ENDS = re.compile("\u0085|\u2028|\u2029".encode())
"""The characters beyond ASCII at which a line ends. JSON does not allow the others in texts."""


def escape_line_ends(json: bytes) -> bytes:
    """Return JSON, or a stream of events with JSON, whose lines end at line feeds only."""
    return json if json.isascii() else _LINE_ENDS.sub(_escaped, json)


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match[0].decode())
