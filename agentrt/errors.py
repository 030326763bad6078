"""Every error that agentrt raises on purpose, in one tree.

AgentrtError
├── UsageError            the user's mistake: fix the input (exit code 2)
│   ├── ConfigError         an option or setting that cannot be
│   │   ├── NotServedError    a call names a model that its engine does not serve
│   │   ├── UnknownContextError  no context was saved under that name
│   │   ├── JournalError      a journal that cannot be used, or not by this command
│   │   ├── UnrecordableError a value that a journal could not give back as it is
│   │   └── AmbiguousOptionError  an option that is a tool's argument, too. Also a TypeError
│   ├── ProgramLoadError    a file without the program or graph that was asked for
│   └── ModelLoadError      a model that cannot be found or loaded
├── ProgramError          the user's program raised; its own error is the cause (exit code 1)
├── EngineError           the engine failed, through no fault of the program
│   ├── EngineStartError    it did not come up
│   ├── EngineDiedError     it came up and died; its calls were lost
│   └── CallRejectedError   it refused one call (a bad schema, …)
│       └── PromptTooLongError  its prompt leaves no room in the model's context
├── ToolError             a tool, a question or an event gave no answer; the program can catch each
│   ├── UnknownToolError      nobody offers a tool of that name
│   ├── ToolArgumentsError    the arguments do not fit the tool's schema; nothing was run
│   ├── ToolFailedError       the tool raised, elsewhere: its type and message are in the text
│   ├── ToolResultError       the result is too large, no JSON, or does not fit the tool's schema
│   ├── ToolUnavailableError  who does the work cannot be reached; nothing was run
│   ├── ToolLostError         who did the work died; whether the tool ran is unknown
│   ├── InterruptExpiredError it was not over by its deadline. Also a TimeoutError
│   └── QuestionClosedError   a question was answered, expired or withdrawn already
├── DivergenceError       a program's code asks for another thing than its journal has there
├── JournalWriteError     a journal takes no more: its disk is full, or away
├── CallTimeoutError      a call took longer than it may; it was aborted. Also a TimeoutError
└── InvariantError        our own bug: state that must not be was seen

Cancellation and preemption are not errors.
"""

from __future__ import annotations

INSTALL_VLLM = "install agentrt[engine] on a machine with a GPU, agentrt[engine-cpu] on one without"
"""The way out where vLLM is missing."""


def text_of(error: BaseException) -> str:
    """The text of an error of anybody's, also where its class fails to make it."""
    try:
        return str(error)
    except Exception as raised:
        return f"its text cannot be made ({type(raised).__name__})"


class AgentrtError(Exception):
    """Base of every error that agentrt raises on purpose."""


class UsageError(AgentrtError):
    """The user's mistake. The message names the thing, what is wrong, and the way out."""


class ConfigError(UsageError):
    """An option or setting that cannot be."""


class NotServedError(ConfigError):
    """A call names a model that its engine does not serve."""


class AmbiguousOptionError(ConfigError, TypeError):
    """An option of `Context.tool` that may be meant as an argument of the tool."""


class JournalError(ConfigError):
    """A journal that is damaged, foreign, in use, of another version or another command."""


class UnrecordableError(ConfigError):
    """A value that a journal could not give back as it is: it was not recorded."""


class UnknownContextError(ConfigError):
    """No context was saved under that name, by this tenant."""


class ProgramLoadError(UsageError):
    """A file without the program or graph that was asked for."""


class ModelLoadError(UsageError):
    """A model that cannot be found or loaded."""


class ProgramError(AgentrtError):
    """An agent program raised. ``__cause__`` is the program's own error."""

    def __init__(self, program_id: str, program_type: str, cause: BaseException) -> None:
        super().__init__(
            f"program {program_id} ({program_type}) failed: {type(cause).__name__}: "
            f"{text_of(cause)}"
        )
        self.program_id = program_id
        self.program_type = program_type
        self.__cause__ = cause


class EngineError(AgentrtError):
    """The engine failed, through no fault of the program."""


class EngineStartError(EngineError):
    """The engine did not come up."""


class NoRoomError(EngineStartError):
    """A cluster has no room for the engine now, but may have later."""


class EngineDiedError(EngineError):
    """The engine came up and died; the calls that it held were lost."""


class CallRejectedError(EngineError):
    """The engine refused one call: too long a prompt, a schema it cannot compile, …"""


class PromptTooLongError(CallRejectedError):
    """A call's prompt leaves no room for an output in the model's context."""


class ToolError(AgentrtError):
    """A tool, a question or an event gave no answer. ``name`` is that of the tool."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class UnknownToolError(ToolError):
    """Nobody offers a tool of that name."""


class ToolArgumentsError(ToolError):
    """The arguments do not fit the tool's schema. Nothing was run."""


class ToolFailedError(ToolError):
    """The tool raised in another process. ``type`` is the name of its exception."""

    def __init__(self, message: str, *, name: str = "", type: str = "") -> None:
        super().__init__(message, name=name)
        self.type = type


class ToolResultError(ToolError):
    """The tool's result is too large, no JSON, or does not fit the tool's schema."""


class ToolUnavailableError(ToolError):
    """Who does the tool's work cannot be reached. Nothing was run."""


class ToolLostError(ToolError):
    """Who did the tool's work died, or was cut off. Whether the tool ran is unknown."""


class InterruptExpiredError(ToolError, TimeoutError):
    """A tool, a question or an event was not over by its deadline."""


class QuestionClosedError(ToolError):
    """A question to a human was answered, expired or withdrawn already."""


class DivergenceError(AgentrtError):
    """A program's code asks for another thing than what is recorded at that node."""


class JournalWriteError(AgentrtError):
    """A journal takes no more. What was recorded is kept, and programs can go on from it."""


class CallTimeoutError(AgentrtError, TimeoutError):
    """A call took longer than its timeout allows. It was aborted, and holds nothing any more."""


class InvariantError(AgentrtError):
    """Our own bug: state that must not be was seen. Please report it."""
