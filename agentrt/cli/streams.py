"""The standard streams, which whoever starts a command may have closed, filled or stopped reading.

What cannot be said ends nothing that runs.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys

import click


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


def say(text: str) -> None:
    """A line on stderr, if there is somebody to read it."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


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
