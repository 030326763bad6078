"""Writing to the standard streams.

A stream may be closed, its disk may be full, or nobody may read it any more: none of these ends a
running program. Text may come from a model, a client or a tool, so its control characters are
replaced before the text reaches a terminal.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import logging
import os
import re
import select
import sys
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, TextIO

import click

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move a terminal's cursor, end a line, or reverse the direction of text, and lone
surrogates; but not tabs and line feeds.
"""


def open_closed() -> None:
    """Open each standard stream that was closed at the start (``2>&-``) on the null device.

    Otherwise the next file that is opened, such as a database, would get the descriptor of the
    closed stream, and libraries would write their messages into this file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def tolerate_encodings() -> None:
    """Let stdout and stderr replace characters that they cannot encode by ``?``.

    Otherwise printing such a character would raise an error, in agentrt or in a user's program.
    In the C locale the streams are set to UTF-8. This is Python's own default, which a user may
    have switched off.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if codecs.lookup(stream.encoding).name == "utf-8":
            continue
        if stream.errors == "surrogateescape":  # Python's mark for the C locale
            stream.reconfigure(encoding="utf-8")
        elif stream.errors == "strict":
            stream.reconfigure(errors="replace")


def typed(text: str) -> str:
    """Return an argument of the command line, decoded as UTF-8 even if Python has decoded it with
    another encoding.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        with contextlib.suppress(ValueError):
            return os.fsencode(text).decode()
    return text


def printable(text: str) -> str:
    """Return a text in which the characters that would control a terminal are replaced."""
    return _STEERING.sub("\ufffd", text)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 call`` or ``2 calls``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def say(text: str) -> None:
    """Print a line on stderr. Do nothing if stderr cannot be written."""
    with contextlib.suppress(OSError):
        click.echo(printable(text), err=True)


def show(text: str) -> None:
    """Print a line on stdout: without control characters on a terminal, else unchanged."""
    whole = text.encode("utf-8", "replace").decode()  # the text may have lone surrogates
    click.echo(printable(text) if sys.stdout.isatty() else whole, color=True)


def show_json(value: Any) -> None:
    """Print any value on stdout as one line of standard JSON. Characters that control a terminal or
    that stdout cannot encode, such as lone surrogates, are escaped.

    If a field of the dict ``value`` is an iterator, its items become a list, and are converted and
    printed one after another, so that they need not fit into the memory together.
    """
    for part in _json_parts(value):
        click.echo(part, nl=False)
    click.echo()


def _json_parts(value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or not any(isinstance(v, Iterator) for v in value.values()):
        yield _json(value)
        return
    for begin, (name, field) in zip(chain("{", repeat(", ")), value.items(), strict=False):
        yield f"{begin}{_json(name)}: "
        if not isinstance(field, Iterator):
            yield _json(field)
            continue
        yield "["
        for before, item in zip(chain([""], repeat(", ")), field, strict=False):
            yield before + _json(item)
        yield "]"
    yield "}"


def _json(value: Any) -> str:
    from agentrt.batch.plain import as_json  # imported here, so that --help stays fast

    text = as_json(value, replies_as_text=False)
    text = _STEERING.sub(lambda part: f"\\u{ord(part[0]):04x}", text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text))
    return text


def width_of(stream: TextIO) -> int | None:
    """Return the width of the lines that rich writes to a stream: None for a terminal, whose width
    rich finds. In a file or a pipe no line is wrapped, for grep, and no cell of a table is cut off.
    """
    return None if stream.isatty() else 10_000


def guard_log() -> None:
    """Make the log records that Python prints without a configured handler safe to show.

    Control characters are replaced, and the lines after a record's first line are indented.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Records())


class _Records(logging.Formatter):
    """A log formatter that indents all lines of a record after its first, so that none of them
    looks like a record of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")


def reader_left() -> bool:
    """Return whether the reader has closed this process's output (``| head``), or the terminal is
    gone.
    """
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)  # poll always reports errors, also with an empty mask
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def drop_unwritten() -> None:
    """Discard output that could not be written, which Python would try to write again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
