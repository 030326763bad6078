"""What an executor says of itself: its models, the size of its batch, and what it can do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentrt.errors import ConfigError, NotServedError


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """An executor in plain values; models and slots may be known only once it has started.

    The first of ``models`` is that of calls which name none; none at all means that the executor
    does not say. ``slots`` calls run at once on each of its ``engines``; None if it does not say.
    With ``cached_blocks`` its prompts can be hashed as its engine hashes them, and
    it tells what its engine's prefix cache holds. With ``images`` the models of one that takes
    requests as they are see; of the others, each front end knows. ``logits`` are the
    logits processors that a call may name, each with the reason why the engine cannot run it; ""
    for one that it can.

    ``history_key`` names the model and the size of an engine that has started, for the file that
    keeps what it learns of programs; "" where an executor learns nothing. ``history`` is that
    file; "" where nothing is kept.
    """

    models: tuple[str, ...] = ()
    slots: int | None = None
    engines: int = 1
    cached_blocks: bool = False
    images: bool = False
    logits: tuple[tuple[str, str], ...] = ()
    history_key: str = ""
    history: str = ""

    @property
    def model(self) -> str:
        """The model of calls that name none; "" where the executor does not say."""
        return self.models[0] if self.models else ""

    def served_as(self, model: str) -> str | None:
        """The name under which the executor serves ``model``."""
        return next((one for one in self.models if is_model(model, one)), None)

    def check_served(self, model: str | None) -> None:
        """Raise `NotServedError` for a model that is not served; None is any.

        An executor that does not say is believed to serve every model.
        """
        if model is not None and self.models and self.served_as(model) is None:
            raise not_served(model, self.models)

    def check_logits(self, names: Iterable[str]) -> None:
        """Raise `ConfigError` for a logits processor that is not there, or cannot run here."""
        known = dict(self.logits)
        for name in names:
            if name not in known:
                there = ", ".join(name for name, why in known.items() if not why) or "none"
                raise ConfigError(
                    f"the engine has no logits processor {name!r} (it has: {there}): install a "
                    "package that offers it, or give -- --logits-processors module:Class"
                )
            if known[name]:
                raise ConfigError(f"the engine cannot run logits processor {name!r}: {known[name]}")


def is_model(asked: str, served: str) -> bool:
    """Whether ``asked`` names the model ``served``: by its whole name, or by its last part."""
    served = served.rstrip("/")
    return asked.rstrip("/") in (served, served.rpartition("/")[2])


def display_name(model: str) -> str:
    """A model's name for people: of a folder, its last part."""
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", ".", "~")) else model


def not_served(model: str, served: tuple[str, ...]) -> NotServedError:
    """The error for a call that names a model which is none of ``served``."""
    names = " or ".join(repr(display_name(one)) for one in served)
    return NotServedError(
        f"this engine serves {names}, not model {model!r}: leave model out, or name {names}"
    )
