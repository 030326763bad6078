"""Read the session fields of other servers (vLLM, SGLang, Dynamo, ThunderAgent) from the body of a
request, so that their clients work without a change.

Fields that have no meaning here, such as priorities and expected output lengths, may have any
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, StringConstraints, ValidationError

from agentrt.serving.error_responses import ApiError

_VISIBLE = r"^[^\x00-\x1f\x7f]*$"
Name = Annotated[str, StringConstraints(max_length=256, pattern=_VISIBLE)]
Kind = Annotated[str, StringConstraints(max_length=128, pattern=_VISIBLE)]
_OR_NOTHING = BeforeValidator(lambda value: {} if value is None else value)


class _AgentContext(BaseModel):
    """Dynamo's ``agent_context``. It has two forms; in the older form, a session has
    trajectories.
    """

    session_id: Name | None = None
    parent_session_id: Name | None = None
    session_final: bool | None = None
    trajectory_id: Name | None = None
    parent_trajectory_id: Name | None = None
    trajectory_final: bool | None = None
    session_type_id: Kind | None = None

    @property
    def program(self) -> str | None:
        """The program's name, or None. A sub-agent belongs to its parent's program."""
        session = self.parent_session_id or self.session_id
        return session or self.parent_trajectory_id or self.trajectory_id

    @property
    def is_last(self) -> bool:
        """Whether the program ends with this request. The end of a sub-agent does not end its
        parent's program.
        """
        parent = self.parent_session_id or self.parent_trajectory_id
        return bool(self.session_final or self.trajectory_final) and not parent


class _SessionControl(BaseModel):
    """Dynamo's ``session_control``."""

    session_id: Name | None = None
    action: Literal["open", "close"] | None = None


class _Extensions(BaseModel):
    """Dynamo's ``nvext``."""

    agent_context: Annotated[_AgentContext, _OR_NOTHING] = _AgentContext()
    session_control: Annotated[_SessionControl, _OR_NOTHING] = _SessionControl()


class _SessionParams(BaseModel):
    """SGLang's ``session_params``."""

    id: Name | None = None


class Hints(BaseModel):
    """The fields of a request's body that name the request's session.

    ``session_id`` comes from clients of vLLM and SGLang, ``program_id`` from ThunderAgent's,
    ``nvext`` from Dynamo's, and ``session_params`` from SGLang's.
    """

    session_id: Name | None = None
    program_id: Name | None = None
    nvext: Annotated[_Extensions, _OR_NOTHING] = _Extensions()
    session_params: Annotated[_SessionParams, _OR_NOTHING] = _SessionParams()

    @property
    def program(self) -> str | None:
        """The name of the program that the request belongs to, or None."""
        return (
            self.session_id
            or self.program_id
            or self.nvext.agent_context.program
            or self.nvext.session_control.session_id
            or self.session_params.id
            or None
        )

    @property
    def type(self) -> str | None:
        """The program's type, or None."""
        return self.nvext.agent_context.session_type_id or None

    @property
    def is_last(self) -> bool:
        """Whether the program ends with this request."""
        control = self.nvext.session_control
        closed = control.action == "close" and control.session_id == self.program
        return closed or self.nvext.agent_context.is_last


FIELDS = frozenset(Hints.model_fields)
NONE = Hints()


def read_hints(fields: Mapping[str, Any]) -> Hints:
    """Return the hints of a request's body. Raises `ApiError`, with the field's name, for an
    invalid field.
    """
    if FIELDS.isdisjoint(fields):
        return NONE
    try:
        return Hints.model_validate(fields)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, fault["loc"]))
        raise ApiError(400, f"{field}: {fault['msg']}", param=field) from error
