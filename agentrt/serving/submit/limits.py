"""What one submitted program may use."""

from __future__ import annotations

from agentrt.errors import AgentrtError


class SubmittedProgramError(AgentrtError):
    """A submitted program failed, or was stopped at a limit. ``line`` is where in its source,
    None where nothing of it was at fault; ``traceback`` says how it came there.
    """

    def __init__(self, message: str, line: int | None = None, traceback: str = "") -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line
        self.traceback = traceback


class TokenBudget:
    """The tokens of a program: those that a call may put out are set aside until it has ended."""

    def __init__(self, tokens: int) -> None:
        self._limit = tokens
        self._left = tokens

    def reserve(self, wanted: int, times: int = 1) -> int:
        """Set aside ``wanted`` tokens, or what is left, so many ``times``; how many each has.

        Raises `SubmittedProgramError` if there are none.
        """
        given = min(wanted, self._left // times)
        if given < 1:
            raise SubmittedProgramError(f"the program has used its {self._limit} tokens")
        self._left -= given * times
        return given

    def settle(self, reserved: int, used: int) -> None:
        """A call for which ``reserved`` were set aside has used so many."""
        self._left += reserved - used
