"""Read sections of the served langgraph.json files, and validate them with pydantic models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.files import read_json


class SettingsSection(BaseModel):
    """A section in which unknown fields are errors, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


S = TypeVar("S", bound=SettingsSection)


def read_section(projects: Sequence[Path], name: str, kind: type[S]) -> tuple[Path, S] | None:
    """Return the project that has the section ``name``, such as ``http.cors``, and the section.

    Returns None if no project has the section; an empty section does not count. Raises
    `ConfigError` if several projects have it, and `ProgramLoadError` for invalid values.
    """
    every = ((project, _section(project, name)) for project in projects)
    sections = {project: section for project, section in every if section not in (None, {})}
    if len(sections) > 1:
        raise ConfigError(
            f"several projects have {name} ({', '.join(map(str, sections))}), and a server can use "
            "the section of one project only; remove it from the other files"
        )
    for project, section in sections.items():
        try:
            return project, kind.model_validate(section)
        except ValidationError as error:
            raise ProgramLoadError(f"{project}: {fault_in(error, name)}") from None
    return None


def fault_in(error: ValidationError, *within: str) -> str:
    """Return the first field at fault and its error, as text. ``within`` is the field's prefix."""
    first = error.errors()[0]
    field = ".".join(map(str, (*within, *first["loc"])))
    message = first["msg"].partition(" or instance of ")[0]
    return f"{field}: {message}"


def _section(project: Path, name: str) -> Any:
    value = read_json(project)
    for key in name.split("."):
        if isinstance(value, dict):  # the model refuses a value of another type
            value = value.get(key)
    return value
