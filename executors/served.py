"""Which models an executor serves, and whether a call's is one of them."""

from __future__ import annotations

from typing import Any

from agentrt.errors import NotServedError


def is_model(asked: str, served: str) -> bool:
    """Whether ``asked`` names the model ``served``: by its whole name, or by its last part."""
    served = served.rstrip("/")
    return asked.rstrip("/") in (served, served.rpartition("/")[2])


def served_models(executor: Any) -> tuple[str, ...]:
    """The names of the models, the first being that of calls that name none.

    Empty where the executor does not say, or has not started.
    """
    several = getattr(executor, "models", None)
    if several is not None:
        return tuple(several)
    one = getattr(executor, "model", "")
    return (one,) if one else ()


def check_served(executor: Any, model: str | None) -> None:
    """Raise `NotServedError` for a model that the executor does not serve; None is any."""
    served = served_models(executor)
    if model is not None and served and not any(is_model(model, one) for one in served):
        raise not_served(model, served)


def not_served(model: str, served: tuple[str, ...]) -> NotServedError:
    """The error for a call that names a model which is none of ``served``."""
    names = " or ".join(repr(display_name(one)) for one in served)
    return NotServedError(
        f"this engine serves {names}, not model {model!r}: leave model out, or name {names}"
    )


def display_name(model: str) -> str:
    """A model's name for people: of a folder, its last part."""
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", ".", "~")) else model
