"""How the command line reports errors: a message on stderr, and an exit code.

Exit codes: 0 success · 1 the program, the engine or a tool failed · 2 a usage error · 3 a question
to a human is still open, which is not an error · 70 a bug in agentrt · 130 Ctrl-C · 143 SIGTERM ·
129 SIGHUP · 141 the reader has closed the output. The place of an error's class in the tree of
`agentrt.errors` decides between 1, 2 and 70.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from agentrt.cli.options import RunCommand
from agentrt.cli.streams import drop_unwritten, reader_left, say
from agentrt.errors import (
    AgentrtError,
    InvariantError,
    ProgramError,
    UsageError,
    text_of,
)
from agentrt.extras import install_vllm

FAILED = 1
USAGE = 2
INTERRUPTED = 3
BUG = 70
UNREAD = 128 + signal.SIGPIPE

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_KEY_LOG = "SSLKEYLOGFILE"
"""The variable that names the file for TLS keys. Python opens the file with each TLS context."""
_KINDS = {
    "a valid integer range": "an integer",
    "a valid integer": "an integer",
    "a valid float range": "a number",
    "a valid float": "a number",
}
"""For each of click's words for kinds of numbers, agentrt's words."""
_NO_TEMPORARY = "No usable temporary directory"
_ROOMS = ("agentrt.executors", "agentrt.graph", "agentrt.integrations", "agentrt.serving")


class StoppedError(AgentrtError):
    """The error of a command that a signal ended."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + number


class ImportFailedError(AgentrtError):
    """The error of a user's file that raised an error while it was imported. ``__cause__`` is the
    error that the file raised.
    """


class RefusedError(AgentrtError):
    """The error of a server that refused a request or cannot be reached."""


def exit_code_of(error: BaseException) -> int:
    """Report an error on stderr, and return its exit code."""
    code = _report(error)
    drop_unwritten()
    return code


def _report(error: BaseException) -> int:
    match error:
        case SystemExit():
            if error.code == FAILED and reader_left():  # click and rich exit with 1 in this case
                return UNREAD
            return error.code if isinstance(error.code, int) else FAILED
        case click.Abort() | KeyboardInterrupt():
            say("interrupted")
            return 128 + signal.SIGINT
        case StoppedError():
            say(str(error))
            return error.code
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return USAGE
        case click.ClickException():
            _say(_of_click(error))
            return USAGE
        case ModuleNotFoundError(name="vllm"):
            _say(f"this command needs vLLM; {install_vllm()}")
            return USAGE
        case AgentrtError():
            return _own_fault(error)
        case _:
            return _unwritten(error)


def branch_code(error: BaseException | None) -> int:
    """Return the exit code that an error's branch in `agentrt.errors` decides."""
    match error:
        case UsageError():
            return USAGE
        case InvariantError():
            return BUG
        case _:
            return FAILED


def _own_fault(error: AgentrtError) -> int:
    match error:
        case InvariantError():
            return _bug(error)
        case ProgramError():
            say(program_fault(error))
        case ImportFailedError():
            assert error.__cause__ is not None
            where = place_of(error.__cause__)
            _say(f"cannot import {error}: {summary(error.__cause__)}{where}{_hint(error)}")
        case _:
            _say(str(error))
    return branch_code(error)


def _unwritten(error: BaseException) -> int:
    """Report a file that cannot be opened, made or written, and return the exit code. Nothing is
    printed if the reader has closed the output (``| head``).

    Any other error is reported as a bug.
    """
    for leaf in _leaves(error):
        if isinstance(leaf, BrokenPipeError) and reader_left():
            return UNREAD
        if isinstance(leaf, OSError) and leaf.errno in _NO_ROOM:
            where = f" to {leaf.filename}" if leaf.filename else ""
            _say(f"cannot write{where}: {str(leaf.strerror).lower()}")
            return FAILED
        if (
            isinstance(leaf, OSError)
            and leaf.filename
            and leaf.filename == os.environ.get(_KEY_LOG)
        ):
            _say(
                f"{_KEY_LOG}={leaf.filename!r}: {str(leaf.strerror).lower()}; name a file that can "
                f"be written, or unset {_KEY_LOG}"
            )
            return USAGE
        if isinstance(leaf, OSError) and leaf.errno == errno.ENAMETOOLONG and leaf.filename:
            _say(f"{str(leaf.filename)[:60]}…: the name of this file is too long; shorten it")
            return USAGE
        if isinstance(leaf, OSError) and leaf.errno in _CLOSED and leaf.filename:
            _say(
                f"cannot open or write {leaf.filename}: {str(leaf.strerror).lower()}; "
                "give this user permission to read and write it, or choose another place"
            )
            return FAILED
        if isinstance(leaf, FileNotFoundError) and _NO_TEMPORARY in str(leaf.strerror):
            _say("no folder for temporary files is writable; set TMPDIR to a writable folder")
            return FAILED
    return _bug(error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of an exception group and of the groups within it."""
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error


def _bug(error: BaseException) -> int:
    say("".join(traceback.format_exception(error)).rstrip())
    _say("this is a bug in agentrt; please report it with the lines above")
    return BUG


def place_of(error: BaseException) -> str:
    """Return the place in the user's own code where an error was raised, such as `` (a.py:3)``; ""
    if there is none.
    """
    trace = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in trace if _is_users(frame.filename)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _hint(error: ImportFailedError) -> str:
    """Return a hint if the error is a missing package, which is often installed in another
    environment; "" for any other error.
    """
    if not isinstance(error.__cause__, ModuleNotFoundError):
        return ""
    return f"; install it into agentrt's environment, {sys.prefix}"


def program_fault(error: ProgramError) -> str:
    """Return a program's failure as text: its traceback, then a line that names the program."""
    cause = error.__cause__
    assert cause is not None
    return f"{user_traceback(cause)}\nerror: run {error.run_id} failed: {summary(cause)}"


def summary(error: BaseException) -> str:
    """Return an error as one line: its class and its message."""
    text = " ".join(text_of(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def user_traceback(error: BaseException) -> str:
    """Return an error's traceback with only the frames of the user's own code; with all frames if
    none of them is the user's.
    """
    trace = traceback.TracebackException.from_exception(error)
    _trim(trace, set(), linked=False)
    return "".join(trace.format()).rstrip()


def _trim(trace: traceback.TracebackException | None, seen: set[int], *, linked: bool) -> None:
    """Drop the frames outside the user's code, also in causes, contexts and group members."""
    if trace is None or id(trace) in seen:
        return
    seen.add(id(trace))
    frames = [frame for frame in trace.stack if _is_users(frame.filename)]
    # If the outermost traceback has no frame of the user's code, keep all of its frames: an empty
    # traceback would say nothing.
    if frames or linked:
        trace.stack = traceback.StackSummary.from_list(frames)
    _trim(trace.__cause__, seen, linked=bool(frames) or linked)
    _trim(trace.__context__, seen, linked=bool(frames) or linked)
    for member in trace.exceptions or ():
        _trim(member, seen, linked=linked)


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in _foreign_folders())


@cache
def _foreign_folders() -> tuple[Path, ...]:
    """Return the folders of agentrt, of Python and of installed packages."""
    folders = [Path(__file__).parents[1]]
    for room in _ROOMS:
        spec = importlib.util.find_spec(room)
        folders += map(Path, (spec.submodule_search_locations or []) if spec else [])
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders += [Path(sysconfig.get_path(name)) for name in names]
    return tuple({folder.resolve() for folder in folders})


def _of_click(error: click.ClickException) -> str:
    """Return click's message as one line in the style of agentrt's messages, with a hint to the
    help.
    """
    text = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption):
        text = f"no such option {error.option_name!r}"
        if error.possibilities:
            text += f"; did you mean {' or '.join(sorted(error.possibilities))}?"
    text = text[:1].lower() + text[1:]
    for kind, plain in _KINDS.items():
        text = text.replace(kind, plain)
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and context is not None:
        text += "; options of vLLM go after --" if isinstance(context.command, RunCommand) else ""
    where = context.command_path if context is not None else "agentrt"
    return f"{text} (see '{where} --help')"


def _say(message: str) -> None:
    say(f"error: {message}")
