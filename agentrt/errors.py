"""Every error that agentrt raises on purpose, in one tree.

AgentrtError
├── UsageError            the user's mistake: fix the input (exit code 2)
│   ├── ConfigError         an option or setting that cannot be
│   │   └── NotServedError    a call names a model that its engine does not serve
│   ├── ProgramLoadError    a file without the program or graph that was asked for
│   └── ModelLoadError      a model that cannot be found or loaded
├── ProgramError          the user's program raised; its own error is the cause (exit code 1)
├── EngineError           the engine failed, through no fault of the program
│   ├── EngineStartError    it did not come up
│   ├── EngineDiedError     it came up and died; its calls were lost
│   └── CallRejectedError   it refused one call (a bad schema, …)
│       └── PromptTooLongError  its prompt leaves no room in the model's context
├── CallTimeoutError      a call took longer than it may; it was aborted. Also a TimeoutError
└── InvariantError        our own bug: state that must not be was seen

Cancellation and preemption are not errors.
"""

from __future__ import annotations


class AgentrtError(Exception):
    """Base of every error that agentrt raises on purpose."""


class UsageError(AgentrtError):
    """The user's mistake. The message names the thing, what is wrong, and the way out."""


class ConfigError(UsageError):
    """An option or setting that cannot be."""


class NotServedError(ConfigError):
    """A call names a model that its engine does not serve."""


class ProgramLoadError(UsageError):
    """A file without the program or graph that was asked for."""


class ModelLoadError(UsageError):
    """A model that cannot be found or loaded."""


class ProgramError(AgentrtError):
    """An agent program raised. ``__cause__`` is the program's own error."""

    def __init__(self, program_id: str, program_type: str, cause: BaseException) -> None:
        super().__init__(
            f"program {program_id} ({program_type}) failed: {type(cause).__name__}: {cause}"
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


class CallTimeoutError(AgentrtError, TimeoutError):
    """A call took longer than its timeout allows. It was aborted, and holds nothing any more."""


class InvariantError(AgentrtError):
    """Our own bug: state that must not be was seen. Please report it."""
