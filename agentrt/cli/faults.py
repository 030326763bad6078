"""What an error becomes on the command line: words on stderr, and an exit code.

0 success · 1 the program failed, or the engine did · 2 the user's mistake · 3 a question to a
human was left open, which is no fault · 70 our own bug · 130, 143, 129, 141 ended by Ctrl-C,
SIGTERM, SIGHUP, or since nobody reads the output any more.
"""

from __future__ import annotations

import errno
import importlib.util
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from agentrt.cli.streams import drop_unwritten, reader_left, say
from agentrt.errors import (
    INSTALL_VLLM,
    AgentrtError,
    EngineError,
    JournalWriteError,
    ProgramError,
    UsageError,
    text_of,
)

FAILED = 1
USAGE = 2
INTERRUPTED = 3
BUG = 70
UNREAD = 128 + signal.SIGPIPE

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_NO_TEMPORARY = "No usable temporary directory"
_ROOMS = ("agentrt.executors", "agentrt.graph", "agentrt.integrations", "agentrt.serving")


class StoppedError(AgentrtError):
    """A signal ended the command."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.code = 128 + number


class ImportFailedError(AgentrtError):
    """The user's file raised while it was imported. ``__cause__`` is its own error."""


class RefusedError(AgentrtError):
    """A server did not do what it was asked, or there is none."""


def exit_code_of(error: BaseException) -> int:
    """Say on stderr what went wrong, and return the exit code for it."""
    code = _said(error)
    drop_unwritten()
    return code


def _said(error: BaseException) -> int:
    match error:
        case SystemExit():
            if error.code == FAILED and reader_left():  # which click and rich tell thus
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
            _say(f"this command needs vLLM; {INSTALL_VLLM}")
            return USAGE
        case AgentrtError():
            return _own_fault(error)
        case _:
            return _unwritten(error)


def _own_fault(error: AgentrtError) -> int:
    match error:
        case UsageError():
            _say(str(error))
            return USAGE
        case EngineError() | RefusedError() | JournalWriteError():
            _say(str(error))
            return FAILED
        case ProgramError():
            say(program_fault(error))
            return FAILED
        case ImportFailedError():
            assert error.__cause__ is not None
            where = place_of(error.__cause__)
            _say(f"{error}: not imported: {summary(error.__cause__)}{where}{_looked(error)}")
            return FAILED
        case _:
            return _bug(error)


def _unwritten(error: BaseException) -> int:
    """The output was closed (``| head``), which needs no words, or a disk is full; else a bug."""
    for one in _leaves(error):
        if isinstance(one, BrokenPipeError) and reader_left():
            return UNREAD
        if isinstance(one, OSError) and one.errno in _NO_ROOM:
            where = f" to {one.filename}" if one.filename else ""
            _say(f"cannot write{where}: {str(one.strerror).lower()}")
            return FAILED
        if isinstance(one, OSError) and one.errno in _CLOSED and one.filename:
            _say(
                f"cannot open or write {one.filename}: {str(one.strerror).lower()}; "
                "let this user read and write it, or name another place"
            )
            return FAILED
        if isinstance(one, FileNotFoundError) and _NO_TEMPORARY in str(one.strerror):
            _say("no folder for temporary files can be written; set TMPDIR to one that can")
            return FAILED
    return _bug(error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, and in its groups."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _bug(error: BaseException) -> int:
    say("".join(traceback.format_exception(error)).rstrip())
    _say("this is a bug in agentrt; please report it with the lines above")
    return BUG


def place_of(error: BaseException) -> str:
    """Where in the user's own code it was raised."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if _is_users(one.filename)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _looked(error: ImportFailedError) -> str:
    """Where a package that is missing was looked for: often it is in another environment."""
    if not isinstance(error.__cause__, ModuleNotFoundError):
        return ""
    return f"; agentrt's environment is {sys.prefix}: install it there"


def program_fault(error: ProgramError) -> str:
    """A program's failure for people: its own traceback, then one line that names it."""
    cause = error.__cause__
    assert cause is not None
    return f"{user_traceback(cause)}\nerror: program {error.program_id} failed: {summary(cause)}"


def summary(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(text_of(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def user_traceback(error: BaseException) -> str:
    """An error's traceback with the frames of the user's own code only."""
    trace = traceback.TracebackException.from_exception(error)
    _trim(trace, set(), linked=False)
    return "".join(trace.format()).rstrip()


def _trim(trace: traceback.TracebackException | None, seen: set[int], *, linked: bool) -> None:
    """Drop the frames that are not the user's, in all errors that are linked here."""
    if trace is None or id(trace) in seen:
        return
    seen.add(id(trace))
    frames = [frame for frame in trace.stack if _is_users(frame.filename)]
    # A trace of none but foreign frames is still better than nothing, but not below another.
    if frames or linked:
        trace.stack = traceback.StackSummary.from_list(frames)
    _trim(trace.__cause__, seen, linked=bool(frames) or linked)
    _trim(trace.__context__, seen, linked=bool(frames) or linked)
    for one in trace.exceptions or ():
        _trim(one, seen, linked=linked)


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in _foreign_folders())


@cache
def _foreign_folders() -> tuple[Path, ...]:
    """Where agentrt, Python and installed packages live."""
    folders = [Path(__file__).parents[1]]
    for room in _ROOMS:
        spec = importlib.util.find_spec(room)
        folders += map(Path, (spec.submodule_search_locations or []) if spec else [])
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders += [Path(sysconfig.get_path(name)) for name in names]
    return tuple({folder.resolve() for folder in folders})


def _of_click(error: click.ClickException) -> str:
    """Click's message as one line in our own words, with the way out."""
    text = " ".join(error.format_message().split()).rstrip(".")
    text = text[:1].lower() + text[1:]
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and context is not None and context.parent:
        text += "; options of vLLM go after --"
    where = context.command_path if context is not None else "agentrt"
    return f"{text} (see '{where} --help')"


def _say(message: str) -> None:
    say(f"error: {message}")
