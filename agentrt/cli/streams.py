"""The standard streams, which whoever starts a command may have closed, filled or stopped reading.

What cannot be said ends nothing that runs. What is said may be a text of somebody else's: a
model's, a client's, a tool's.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import re
import select
import sys

import click

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move a terminal's cursor, end a line, or turn the direction of the text."""


def open_closed() -> None:
    """Open what was closed at the start (``2>&-``) on nothing.

    Else the next file that is opened, a database say, would get its number, and with it what
    libraries write there.
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
    """Have what a stream cannot write be ``?`` there, where its encoding is not UTF-8. It would
    be an error in whoever prints: in a table of ours, or in a user's program.

    Where the locale is C, the streams are of UTF-8, as Python has it unless that is switched off.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if codecs.lookup(stream.encoding).name == "utf-8":
            continue
        if stream.errors == "surrogateescape":  # so Python marks the streams of the locale C
            stream.reconfigure(encoding="utf-8")
        elif stream.errors == "strict":
            stream.reconfigure(errors="replace")


def typed(text: str) -> str:
    """A text of the command line, which Python has read by a locale that is not of UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        with contextlib.suppress(ValueError):
            return os.fsencode(text).decode()
    return text


def printable(text: str) -> str:
    """A text of somebody else's, without what would steer a terminal."""
    return _STEERING.sub("\ufffd", text)


def counted(count: int, noun: str) -> str:
    """So many of a thing, such as ``1 call`` and ``2 calls``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def say(text: str) -> None:
    """A line on stderr, if there is somebody to read it."""
    with contextlib.suppress(OSError):
        click.echo(printable(text), err=True)


def show(text: str) -> None:
    """A line on stdout: for a terminal what it can print, elsewhere the text as it is."""
    whole = text.encode("utf-8", "replace").decode()  # it may have halves of surrogate pairs
    click.echo(printable(text) if sys.stdout.isatty() else whole, color=True)


def guard_log() -> None:
    """Have what Python logs where nobody has set that up be printable, each record apart."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Records())


class _Records(logging.Formatter):
    """A record of several lines has them indented: none of them looks like another record."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")


def reader_left() -> bool:
    """Whether what reads our output closed it (``| head``), or its terminal is gone."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)  # errors are reported unasked
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def drop_unwritten() -> None:
    """Forget what could not be written, which Python would try once more at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
