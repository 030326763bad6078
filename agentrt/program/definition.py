"""The decorators that turn plain async functions into agent programs and nodes.

A program does not declare its graph. It awaits calls and tools, and starts and awaits nodes with
ordinary asyncio. agentrt derives the program's execution DAG from what the code awaits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import cached_property
from types import SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from agentrt.errors import ConfigError, text_of
from agentrt.interrupts.schema import name_of, reason_of
from agentrt.program.context import IS_NODE, Context
from agentrt.tracking import enter_node

if TYPE_CHECKING:
    from pydantic import TypeAdapter

P = ParamSpec("P")
T = TypeVar("T")
ProgramFunction = Callable[..., Awaitable[Any]]
_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_SHOWN = 80
"""Maximum number of characters that an error message shows of an input."""


class Program:
    """An agent program: an async function whose parameters are a `Context` and, if needed, an
    input, both passed by position. Further parameters must have defaults. Any other function raises
    `ConfigError`.

    ``name`` is the program's type. If the program ``owns_tasks``, the tasks that its code starts
    are cancelled at its end. Calling a `Program` calls the function itself.
    """

    def __init__(
        self, function: ProgramFunction, name: str | None = None, *, owns_tasks: bool = True
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise ConfigError(f"a program's name must be a text, got {name!r:.80}")
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"program {name_of(function)} must be an 'async def' function")
        signature = inspect.signature(function)
        by_position = [p for p in signature.parameters.values() if p.kind in _BY_POSITION]
        required = [
            p
            for p in signature.parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        named = any(p.kind is p.KEYWORD_ONLY for p in required)
        if not by_position or len(required) > 2 or named:
            raise ConfigError(
                f"program {name_of(function)} takes {signature}, but it must take a context and at "
                f"most one input, by their positions: async def {name_of(function)}(ctx, input)"
            )
        # A parameter such as `*args` may take the context and the input.
        inputs = by_position[1:] or [p for p in by_position if p.kind is p.VAR_POSITIONAL]
        # Before the program's own attributes are set, because a function may have attributes of the
        # same names, for example from another decorator.
        functools.update_wrapper(self, function)
        self.function = function
        self.owns_tasks = owns_tasks
        self.name = name or name_of(function)
        self.takes_input = bool(inputs)
        self.needs_input = self.takes_input and inputs[0] in required
        self.input_name = inputs[0].name if inputs else ""

    def accept_input(self, value: Any) -> Any:
        """Return an input that came as text or as JSON, converted to the type in the function's
        annotation. For example, the text "3" becomes the int 3, and a JSON object becomes an
        instance of a pydantic model.

        An object whose only key is the parameter's name stands for the value of that key, unless
        the object itself has the type. The input stays as it is if the parameter has no annotation,
        or if pydantic does not know the type. None means that there is no input, and is not
        converted. Raises `ConfigError` for an input that cannot be converted to the type, also if
        code of the type raises another error.
        """
        if value is None or self._input_type is None:
            return value
        from pydantic import ValidationError

        try:
            converted = self._input_type.validate_python(value)
        except ValidationError as error:
            if isinstance(value, dict) and [*value] == [self.input_name]:
                return self.accept_input(value[self.input_name])
            raise ConfigError(
                f"program {self.name!r}: the input is {_shown(value)}, but {self.input_name!r} "
                f"must be {self._expected}: {reason_of(error)}"
            ) from error
        except Exception as error:  # a validator of the type may raise any error
            raise ConfigError(
                f"program {self.name!r}: the input is {_shown(value)}, and the check of "
                f"{self.input_name!r} by its type failed with {type(error).__name__}: "
                f"{text_of(error)}"
            ) from error
        # For an Iterable, pydantic checks the items only while they are read.
        return value if isinstance(converted, Iterator) else converted

    def input_schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the input. The result is ``{}`` if the input has no annotation
        or its type has no schema, and None if the program takes no input.
        """
        if not self.takes_input:
            return None
        try:
            schema = {} if self._input_type is None else self._input_type.json_schema()
        except Exception:  # types that pydantic can validate, but not describe
            schema = {}
        return schema

    @cached_property
    def _input_type(self) -> TypeAdapter[Any] | None:
        from pydantic import TypeAdapter

        try:
            return TypeAdapter(self._input_hint)
        except Exception:  # no annotation, an unknown name in it, a type that pydantic lacks
            return None

    @cached_property
    def _input_hint(self) -> Any:
        """The annotation of the input. Other annotations are not evaluated, because their names may
        be imported for type checkers only. If the annotation cannot be evaluated, raises an error
        of any type.
        """
        function = inspect.unwrap(self.function)
        annotations = {self.input_name: function.__annotations__[self.input_name]}
        own = SimpleNamespace(__annotations__=annotations)
        return get_type_hints(own, function.__globals__, include_extras=True)[self.input_name]

    @property
    def _expected(self) -> str:
        """The annotation of the input, as it is written in code."""
        hint = self._input_hint
        plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        return inspect.formatannotation(plain, base_module=self.function.__module__)

    def arguments(self, ctx: Context, input: Any = None) -> tuple[Any, ...]:
        """Return the arguments of the function. If the input is None and the function's parameter
        has a default, the function uses the default. A function without an input parameter does not
        get the input.
        """
        if self.takes_input and (input is not None or self.needs_input):
            return ctx, input
        return (ctx,)

    async def __call__(self, ctx: Context, input: Any = None) -> Any:
        """Run the function with its `arguments`."""
        return await self.function(*self.arguments(ctx, input))

    @property
    def __agentrt_spawned__(self) -> ProgramFunction:
        # This is a property because decorators copy only the attributes of the instance.
        return self.function

    def __repr__(self) -> str:
        return f"<program {self.name}>"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


@overload
def program(function: ProgramFunction, /) -> Program: ...


@overload
def program(*, name: str | None = None) -> Callable[[ProgramFunction], Program]: ...


def program(
    function: ProgramFunction | None = None, /, *, name: str | None = None
) -> Program | Callable[[ProgramFunction], Program]:
    """Turn an async function into an agent program. The program's type is ``name``, or by default
    the function's name.
    """
    if function is not None:
        return Program(function)
    return lambda decorated: Program(decorated, name)


def node(
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Mark an async function as a node function: the calls and tools in its code are shown in the
    DAG under the function's name.
    """

    @functools.wraps(function)
    async def named(*args: P.args, **kwargs: P.kwargs) -> T:
        with enter_node(name_of(function)):
            return await function(*args, **kwargs)

    setattr(named, IS_NODE, True)
    return named
