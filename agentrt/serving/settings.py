"""Reads sections of the langgraph.json files that are served, each by a model of pydantic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.files import read_json


class Settings(BaseModel):
    """A section: unknown fields are errors, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


S = TypeVar("S", bound=Settings)


def read_section(projects: Sequence[Path], name: str, kind: type[S]) -> tuple[Path, S] | None:
    """The section ``name``, such as ``http.cors``, and the project that has it.

    Raises `ConfigError` where several have it, and `ProgramLoadError` for what cannot be.
    """
    found = {project: given for project in projects if (given := _section(project, name))}
    if len(found) > 1:
        raise ConfigError(f"one server takes {name} of one project: {', '.join(map(str, found))}")
    for project, given in found.items():
        try:
            return project, kind.model_validate(given)
        except ValidationError as error:
            raise ProgramLoadError(f"{project}: {fault_in(error, name)}") from None
    return None


def fault_in(error: ValidationError, *within: str) -> str:
    """The first field at fault, and what is wrong with it."""
    first = error.errors()[0]
    field = ".".join(map(str, (*within, *first["loc"])))
    what = first["msg"].partition(" or instance of ")[0]
    return f"{field}: {what}"


def _section(project: Path, name: str) -> Any:
    given = read_json(project)
    for key in name.split("."):
        if isinstance(given, dict):  # anything else is refused by the model
            given = given.get(key)
    return given
