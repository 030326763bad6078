"""The errors that agentrt raises on purpose, as a tree. A few modules define further subclasses of
these errors.

If such an error ends a command, the branch of the error decides the exit code: 2 for `UsageError`,
70 for `InvariantError`, and 1 for the others in this tree.

AgentrtError
├── UsageError            a user's mistake: the input must be corrected
│   ├── ConfigError         an invalid option or setting
│   │   ├── NotServedError    a request names a model or an endpoint that is not served
│   │   ├── UnknownContextError  no context was saved under this name
│   │   ├── JournalError      a journal that cannot be used, or that this command cannot use
│   │   ├── UnrecordableError a value that would not come back equal from a journal
│   │   └── AmbiguousOptionError  an option that is also a tool's argument. Also a TypeError
│   ├── ProgramLoadError    a program, graph or tool that cannot be loaded from its file
│   ├── ModelLoadError      a model that cannot be found or loaded
│   └── WeightsError        new weights that cannot be found, are incomplete or do not fit the model
├── ProgramError          a user's program raised; its own error is the cause
├── EngineError           the engine failed, or it rejected a call
│   ├── EngineStartError    the engine did not start
│   │   └── NoRoomError       a cluster has no room for the engine now, but may have later
│   ├── EngineDiedError     the engine died or was stopped; its calls were lost
│   └── CallRejectedError   the engine rejected a single call (a bad schema, …)
│       └── PromptTooLongError  a call's prompt leaves no room for an answer in the context
├── ToolError             a tool, a question or an event failed; the program can catch the error
│   ├── UnknownToolError      an unknown or ambiguous name of a tool or of a source of tools
│   ├── ToolArgumentsError    arguments or an answer that cannot be used; the tool did not run
│   ├── ToolFailedError       the tool raised, usually in another process; the text says what
│   ├── ToolResultError       the result is too large, cannot be sent, or does not fit the schema
│   ├── ToolUnavailableError  a tool or source of events cannot be reached; the tool did not run
│   ├── ToolLostError         the tool's process or result was lost; the tool may have run
│   ├── InterruptExpiredError a tool, question or event is past its deadline. Also a TimeoutError
│   └── QuestionClosedError   a question is unknown, answered, timed out or withdrawn
├── DivergenceError       a resumed program made a request that differs from the recorded one
├── JournalWriteError     a journal cannot be written, for example because its disk is full
├── StaleWeightsError     a program that was ended because its weights were too old
├── CallTimeoutError      a call took longer than its timeout; it was aborted. Also a TimeoutError
└── InvariantError        a bug in agentrt: a state that must never occur

Cancellation and preemption are not errors.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from agentrt.former import former_names

_MOST_TEXTS = 3
"""Maximum number of errors of a group that the group's text has."""


def text_of(error: BaseException) -> str:
    """Return the text of an error; a replacement text if the error's own ``__str__`` raises. The
    text of a group, such as the error of a TaskGroup, has the texts of its first errors, too.
    """
    try:
        text = str(error)
    except Exception as raised:
        return f"the error has no text ({type(raised).__name__})"
    if not isinstance(error, BaseExceptionGroup):
        return text
    shown = [f"{type(each).__name__}: {text_of(each)}" for each in error.exceptions[:_MOST_TEXTS]]
    more = len(error.exceptions) - len(shown)
    return f"{text}: {'; '.join(shown)}" + (f"; and {more} more" if more else "")


def first_of(error: BaseException) -> BaseException:
    """Return the first error of an error group, which made the task group cancel its other tasks.
    Return an error that is not a group unchanged.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_SECRET = re.compile(
    r"([?&#][\w.-]*(?:pass|pwd|token|secret|key|sig|auth|cred)[\w.-]*=)[^&#]*", re.IGNORECASE
)


def shown_url(url: str) -> str:
    """Return a URL for a message, without its user, its password and the secrets among its
    parameters, also if the URL is invalid.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    _, at, place = rest.rpartition("@")
    if at:
        rest = f"…@{place}"
    return _SECRET.sub(r"\1…", f"{scheme}{mark}{rest}")


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def url_fault(url: str) -> str | None:
    """Return why a URL cannot be read; None if it can be read. The text has no part of the URL,
    because the errors of libraries quote parts of an invalid URL that may belong to a password.
    """
    try:
        urlsplit(url).port  # noqa: B018 - raises for an invalid port
    except ValueError:
        return (
            "its port is not a number from 0 to 65535, or a character of its user, its password or "
            "its host must be written as %XX, such as %2F for /"
        )
    return None


def header_fault(name: str, value: str) -> str | None:
    """Return why HTTP cannot carry a header; None if it can. The text has no part of the value,
    because the errors of libraries quote the whole value, which may be a secret.
    """
    if _HEADER_NAME.fullmatch(name) is None:
        return "a header's name has only letters, digits, and marks such as - and _"
    if value != value.strip():
        return "its value begins or ends with a blank or a line break; remove it"
    if not value.isascii() or set("\0\n\v\f\r") & set(value):
        return "its value has a line break, or a character that is not ASCII; remove or encode it"
    return None


class AgentrtError(Exception):
    """The base class of all errors that agentrt raises on purpose."""


class UsageError(AgentrtError):
    """A user's mistake. The message says what was wrong, what is allowed, and what to do."""


class ConfigError(UsageError):
    """An invalid option or setting."""


class NotServedError(ConfigError):
    """A request that names a model, or an endpoint for batches, that is not served."""


class AmbiguousOptionError(ConfigError, TypeError):
    """An option of `Context.tool` that may have been meant as an argument of the tool."""


class JournalError(ConfigError):
    """A journal that cannot be used, for example because it is damaged, in use, written by another
    version or another command, or lacks the named run.
    """


class UnrecordableError(ConfigError):
    """A value that was not recorded, because it would not come back equal from the journal."""


class UnknownContextError(ConfigError):
    """A name under which the program's tenant has saved no context."""


class ProgramLoadError(UsageError):
    """A program, graph or tool that cannot be loaded from its file."""


class ModelLoadError(UsageError):
    """A model that cannot be found or loaded, perhaps because of wrong options."""


class WeightsError(UsageError):
    """New weights that cannot be found, are incomplete, or do not fit the model. The engines
    keep their old weights.
    """


@former_names(program_id="run_id")
class ProgramError(AgentrtError):
    """The error of a run whose program raised. ``__cause__`` is the program's own error."""

    def __init__(self, run_id: str, program_type: str, cause: BaseException) -> None:
        super().__init__(
            f"run {run_id} of {program_type} failed: {type(cause).__name__}: {text_of(cause)}"
        )
        self.run_id = run_id
        self.program_type = program_type
        self.__cause__ = cause


class EngineError(AgentrtError):
    """A failure of the engine, or a call that the engine rejected."""


class EngineStartError(EngineError):
    """A failed start of the engine."""


class NoRoomError(EngineStartError):
    """A failed start on a cluster that has no room for the engine now, but may have later."""


class EngineDiedError(EngineError):
    """The death or the stop of an engine, or the cancellation of a call because its runtime or run
    has ended. The calls were lost.
    """


class CallRejectedError(EngineError):
    """A call that the engine rejected, for example because its prompt is too long or its schema
    cannot be compiled.
    """


class PromptTooLongError(CallRejectedError):
    """A call whose prompt leaves no room for an answer in the model's context."""


class ToolError(AgentrtError):
    """A tool, a question or an event that failed. ``name`` is the name of the tool or of the source
    of tools, or the topic of the event; "" if there is none.
    """

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class UnknownToolError(ToolError):
    """An unknown or ambiguous name of a tool or of a source of tools."""


class ToolArgumentsError(ToolError):
    """Arguments of a tool or an answer to a question that cannot be used, for example because they
    do not fit the schema. With such arguments, the tool did not run.
    """


class ToolFailedError(ToolError):
    """A tool that raised its own error, which the program cannot get, usually because the tool
    ran in another process. ``type`` is the name of that error's class.
    """

    def __init__(self, message: str, *, name: str = "", type: str = "") -> None:
        super().__init__(message, name=name)
        self.type = type


class ToolResultError(ToolError):
    """A tool's result that is too large, cannot be sent, or does not fit the tool's schema."""


class ToolUnavailableError(ToolError):
    """A tool or a source of events that cannot be reached now. The tool did not run."""


class ToolLostError(ToolError):
    """A tool whose process died or was disconnected, or whose result was lost. The tool may have
    run.
    """


class InterruptExpiredError(ToolError, TimeoutError):
    """A tool, a question or an event whose deadline has passed."""


class QuestionClosedError(ToolError):
    """A question to a human that is unknown, or that cannot be answered any more, for example
    because it was already answered, has timed out or was withdrawn.
    """


class DivergenceError(AgentrtError):
    """A request of a resumed program that differs from the request in its journal."""


class JournalWriteError(AgentrtError):
    """A journal, or a batch's file of calls, that cannot be written any more. Programs can resume
    from what was recorded.
    """


class CallTimeoutError(AgentrtError, TimeoutError):
    """A call that took longer than its timeout. It was aborted, and its memory was freed."""


class StaleWeightsError(AgentrtError):
    """The end of a program that began with weights more than ``max_staleness`` versions older than
    the engines' weights.
    """


class InvariantError(AgentrtError):
    """A bug in agentrt: a state that must never occur. Please report it."""
