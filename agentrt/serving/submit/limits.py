"""The token budget of submitted programs, and the error of one that failed or reached a limit."""

from __future__ import annotations

from agentrt.errors import AgentrtError


class SubmittedProgramError(AgentrtError):
    """A submitted program failed, or was stopped at a limit.

    ``line`` is the line of the program's source at fault, or None if the error has no line.
    ``traceback`` is the program's own traceback.
    """

    def __init__(self, message: str, line: int | None = None, traceback: str = "") -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line
        self.traceback = traceback


class TokenBudget:
    """The tokens that a program may use. A call's output limit is reserved until the call ends."""

    def __init__(self, tokens: int) -> None:
        self._limit = tokens
        self._left = tokens

    def reserve(self, wanted: int, times: int = 1) -> int:
        """Reserve ``wanted`` tokens for each of ``times`` choices, or as many as are left.

        Returns the tokens per choice. Raises `SubmittedProgramError` if fewer tokens are left than
        choices.
        """
        tokens = min(wanted, self._left // times)
        if tokens < 1:
            raise SubmittedProgramError(
                f"the program has {max(self._left, 0)} of its {self._limit} tokens left, and this "
                f"call needs at least {times}"
            )
        self._left -= tokens * times
        return tokens

    def settle(self, reserved: int, used: int) -> None:
        """Charge the ``used`` tokens of a call, and release the ``reserved`` tokens."""
        self._left += reserved - used
