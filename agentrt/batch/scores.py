"""Scores: functions that say how good a result is.

    @score
    def exact(record, result):
        return result.strip() == record["answer"]

A score may be async, may ask a model (``async def judge(ctx, record, result)``), or be a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import inspect
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, overload

from agentrt import files
from agentrt.batch.plain import as_json
from agentrt.errors import AgentrtError, ConfigError
from agentrt.interrupts.local import ToolThreads
from agentrt.interrupts.schema import name_of
from agentrt.program import Context, Program
from agentrt.program.context import finite_number

_FORMS = "(record, result), or (ctx, record, result) to ask a model"
_STDERR = 400


class ScoreError(AgentrtError):
    """A score without a number: its function returned another value, or its process or its program
    failed.
    """


class Score:
    """A score with a name. ``uses_model`` is True if its function takes a context. ``code`` is a
    fingerprint of the function's file.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.function = function
        self.name = name or name_of(function)
        signature = inspect.signature(function)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and parameter.default is parameter.empty
        ]
        named = any(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
        if len(parameters) not in (2, 3) or named:
            raise ConfigError(f"score {self.name} takes {signature}; a score takes {_FORMS}")
        self.uses_model = len(parameters) == 3
        if not self.uses_model and parameters[0].name in ("ctx", "context"):
            raise ConfigError(
                f"score {self.name} takes a context and one value; a score takes {_FORMS}"
            )
        if self.uses_model and not inspect.iscoroutinefunction(function):
            raise ConfigError(f"score {self.name} asks a model, so it must be 'async def'")
        self.code = _fingerprint(function)
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function itself."""
        return self.function(*arguments)

    def __repr__(self) -> str:
        return f"<score {self.name}>"

    def program(self) -> Program:
        """Return the program that runs the function of a score that asks a model."""

        async def scored(ctx: Context, pair: Mapping[str, Any]) -> Any:
            return await self.function(ctx, pair["record"], pair["result"])

        return Program(scored, self.name)

    async def of(self, record: Any, result: Any) -> Any:
        """Return the value of the function of a score that asks no model. A function that is not
        async runs in a thread.
        """
        threads = ToolThreads()
        try:
            return await value_of(self, record, result, threads)
        finally:
            threads.close()

    def numbers(self, value: Any) -> dict[str, float]:
        """Return the value of the function as numbers by name.

        A finite number is returned unchanged, True becomes 1 and False 0. A mapping becomes several
        numbers, whose names consist of the score's name and the key. None becomes no number. Raises
        `ScoreError` for any other value.
        """
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return {
                f"{self.name}.{key}": self._number(item)
                for key, item in value.items()
                if item is not None
            }
        return {self.name: self._number(value)}

    def _number(self, value: Any) -> float:
        if (number := finite_number(value)) is not None:
            return number
        raise ScoreError(
            f"the value {value!r:.80} is not a finite number; return a number, True or False, a "
            "mapping of names to numbers, or None"
        )


async def value_of(score: Score, record: Any, result: Any, threads: ToolThreads) -> Any:
    """Return the value of a score's function, which runs in one of the ``threads`` if it is not
    async.
    """
    if inspect.iscoroutinefunction(score.function):
        return await score.function(record, result)
    value = await threads.run(functools.partial(score.function, record, result))
    return await value if inspect.isawaitable(value) else value


@overload
def score(function: Callable[..., Any], /) -> Score: ...


@overload
def score(*, name: str | None = None) -> Callable[[Callable[..., Any]], Score]: ...


def score(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None
) -> Score | Callable[[Callable[..., Any]], Score]:
    """Turn a function of a record and a result into a score. The score's name is ``name``, or by
    default the name of the function.

    The function gets the whole record that contains the input, and the result. An async function
    with three parameters first gets a `Context`, with which it can ask a model. The function
    returns a number, True or False, a mapping of names to numbers, or None for a result without a
    score. Raises `ConfigError` for a function with other parameters.
    """
    if function is not None:
        return Score(function)
    return lambda decorated: Score(decorated, name)


def _fingerprint(function: Callable[..., Any]) -> str:
    """Return a fingerprint of the file that defines a function, or "" if there is no file."""
    try:
        source = Path(inspect.getfile(function)).read_bytes()
    except (OSError, TypeError):
        return ""
    return hashlib.blake2b(source, digest_size=4).hexdigest()


def score_process(command: str | Sequence[str], *, name: str | None = None) -> Score:
    """Make a score that a process computes. The process reads one JSON object with ``record`` and
    ``result`` from its standard input, and prints the score as JSON in its last line. Raises
    `ConfigError` for an empty command, for text with an unclosed quote, and for a program that does
    not exist.
    """
    try:
        words = shlex.split(command) if isinstance(command, str) else [*command]
    except ValueError as error:
        raise ConfigError(f"score command {command!r}: {error}") from error
    if not words:
        raise ConfigError("the command of a score is empty; give a program and its arguments")
    if shutil.which(words[0]) is None:
        raise ConfigError(
            f"score command {words[0]!r}: no such executable file; correct its path or its "
            "permissions"
        )

    async def run(record: Any, result: Any) -> Any:
        return await _output(words, as_json({"record": record, "result": result}))

    files_named = [word for word in words if "." in PurePath(word).name] or words
    stem = PurePath(files_named[0]).name.partition(".")[0]
    return Score(run, name or re.sub(r"\W+", "_", stem))


async def _output(words: Sequence[str], said: str) -> Any:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except OSError as error:
        raise ScoreError(f"{words[0]}: {error.strerror or error}") from error
    try:
        out, err = await process.communicate(said.encode("utf-8", "replace"))
    finally:
        if process.returncode is None:
            # The command may have started other processes, as a shell does.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        words_said = " ".join(err.decode("utf-8", "replace").split())[-_STDERR:]
        raise ScoreError(f"{words[0]} ended with exit code {process.returncode}: {words_said}")
    lines = out.decode("utf-8", "replace").strip().splitlines()
    if not lines:
        raise ScoreError(f"{words[0]} printed nothing; it must print the score in its last line")
    try:
        return files.parse_json(lines[-1])
    except ValueError as error:
        raise ScoreError(f"{words[0]} printed {lines[-1]!r:.80}, which is not JSON") from error


def scores_among(names: Mapping[str, Any]) -> list[Score]:
    """Return the scores among the values of a module's names. A score with several names is
    returned once.
    """
    return [*{id(value): value for value in names.values() if isinstance(value, Score)}.values()]
