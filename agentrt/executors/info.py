"""A description of an executor: its models, the size of its batch, and its abilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentrt.errors import ConfigError, NotServedError


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """A description of an executor. Models and slots may be unknown before it has started.

    Attributes:
        models: The models that the executor serves; the first is for calls that name no model.
            Empty if the models are not known.
        slots: Maximum number of calls that run at the same time on an engine; None if not known.
        engines: The number of the executor's engines.
        engine_slots: The slots of each engine if they may differ, None for an engine whose slots
            are not known; empty if every engine has ``slots``.
        cached_blocks: Whether the executor can hash prompts as its engine does, and can report the
            blocks in the engine's prefix cache.
        images: Whether the models take images. This is set only for executors that take chat
            requests; see `FrontProfile` for other executors.
        logits: The names of logits processors, each with the reason why the engine cannot run it,
            or "" if it can.
        history_key: The key of the engine's history file (`engine_key`); "" if it has no key, or
            has not started.
        history: The path of the engine's history file; "" if there is none.
        logprobs: Whether the executor takes calls as token ids, and reports the token ids of each
            output with their log probabilities. These are the model's own log probabilities,
            before sampling changes them.
    """

    models: tuple[str, ...] = ()
    slots: int | None = None
    engines: int = 1
    engine_slots: tuple[int | None, ...] = ()
    cached_blocks: bool = False
    images: bool = False
    logits: tuple[tuple[str, str], ...] = ()
    history_key: str = ""
    history: str = ""
    logprobs: bool = False

    @property
    def model(self) -> str:
        """The model of calls that name no model; "" if it is not known."""
        return self.models[0] if self.models else ""

    def all_slots(self, default: int) -> int:
        """Return the maximum number of calls that run at the same time on all engines together.

        An engine whose slots are not known, because it has not started yet, counts as if it had
        ``slots``, or ``default`` if these are not known either.
        """
        assumed = self.slots or default
        if not self.engine_slots:
            return assumed * self.engines
        return sum(slots or assumed for slots in self.engine_slots)

    def served_as(self, model: str) -> str | None:
        """Return the name under which the executor serves ``model``; None if it is not served."""
        return next((served for served in self.models if is_model(model, served)), None)

    def is_first(self, model: str | None) -> bool:
        """Return whether ``model`` is the first of the executor's models, whose weights are
        updated. None means the first model; any model is the first if there is only one.
        """
        if model is None or len(self.models) < 2:
            return True
        return self.served_as(model) == self.models[0]

    def check_served(self, model: str | None) -> None:
        """Raise `NotServedError` for a model that is not served. None is always accepted.

        If the executor's models are not known, every model counts as served.
        """
        if model is not None and self.models and self.served_as(model) is None:
            raise not_served(model, self.models)

    def check_logits(self, names: Iterable[str]) -> None:
        """Raise `ConfigError` for a logits processor that is unknown or that the engine cannot
        run.
        """
        known = dict(self.logits)
        for name in names:
            if name not in known:
                available = ", ".join(name for name, why in known.items() if not why) or "none"
                raise ConfigError(
                    f"unknown logits processor {name!r} (available: {available}); install a "
                    "package that offers it, or start the engine with "
                    "-- --logits-processors module:Class"
                )
            if known[name]:
                raise ConfigError(f"the engine cannot run logits processor {name!r}: {known[name]}")


def is_model(name: str, served: str) -> bool:
    """Return whether ``name`` is the name of the model ``served``, or the last part of its name."""
    if name == served:  # usual, and asked several times for each call
        return True
    served = served.rstrip("/")
    return name.rstrip("/") in (served, served.rpartition("/")[2])


def display_name(model: str) -> str:
    """Return a model's name as people see it: for a folder, the last part of its path."""
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", ".", "~")) else model


def not_served(model: str, served: tuple[str, ...]) -> NotServedError:
    """Return the error for a call that names a ``model`` which is not ``served``."""
    names = " or ".join(repr(display_name(name)) for name in served)
    return NotServedError(
        f"this engine serves {names}, not model {model!r}: leave model out, or name {names}"
    )
