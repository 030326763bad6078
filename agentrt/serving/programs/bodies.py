"""The bodies of requests that start a program."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Label = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]([\x20-\x7e]{0,126}[\x21-\x7e])?$")]


class Strict(BaseModel):
    """A request body in which unknown fields, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RunRequest(Strict):
    """The body of ``POST /v1/programs/{name}/runs``. ``deadline`` is in seconds from now."""

    input: Any = None
    stream: bool = False
    wait: bool = True
    session: Label | None = None
    deadline: float | None = Field(None, gt=0, le=7 * 24 * 3600)
