"""Authentication and authorization hooks, as LangGraph defines them: `langgraph_sdk.Auth`.

    {"graphs": {"agent": "./agent.py:graph"}, "auth": {"path": "./auth.py:auth"}}

The authenticate hook says who a request is from; the most specific of the ``on`` hooks says
whether they may do it, and which objects they see. All of this is inside the request's tenant.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import Depends, HTTPException, Request
from langgraph_sdk import Auth
from langgraph_sdk.auth.exceptions import HTTPException as HookHTTPException
from langgraph_sdk.auth.types import AuthContext

from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.files import read_json
from agentrt.serving.langgraph._compat import authenticate_hook, authorize_hook
from agentrt.serving.langgraph.database.filters import Filter, FilterError, parse_filter, plain_json
from agentrt.serving.langgraph.outages import READER
from agentrt.serving.middleware import tenant_of

_FORM = '{"path": "./auth.py:auth"}'
_KEYS = {"path", "disable_studio_auth"}
_log = logging.getLogger(__name__)


class User:
    """A user as the authenticate hook gives it: a name, a mapping, or an object."""

    is_authenticated = True

    def __init__(self, given: Any) -> None:
        self._given = {"identity": given} if isinstance(given, str) else given
        if not self._get("identity"):
            raise ConfigError("the authenticate hook gave no identity; it is a text")

    def _get(self, key: str) -> Any:
        if isinstance(self._given, Mapping):
            return self._given.get(key)
        return getattr(self._given, key, None)

    @property
    def identity(self) -> str:
        """The user's id."""
        return str(self._get("identity"))

    @property
    def display_name(self) -> str:
        """For people."""
        return str(self._get("display_name") or self.identity)

    @property
    def permissions(self) -> Sequence[str]:
        """What the user may do, in words of the hooks."""
        return list(self._get("permissions") or ())

    def __getattr__(self, name: str) -> Any:
        value = None if name.startswith("_") else self._get(name)
        if value is None:
            raise AttributeError(name)
        return value

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._get(key)

    def __contains__(self, key: str) -> bool:
        return self._get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._given if isinstance(self._given, Mapping) else vars(self._given))

    def to_json(self) -> dict[str, Any]:
        """What a graph finds about its user in its config."""
        known = {key: self[key] for key in self if key in self}
        return {**known, "identity": self.identity, "permissions": list(self.permissions)}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request is from: a tenant, and a user of it if there are hooks."""

    tenant: str
    user: User | None
    auth: Auth | None

    @classmethod
    def of_config(cls, tenant: str, config: Mapping[str, Any] | None, auth: Auth | None) -> Caller:
        """Whoever asked for a run, from the `config` that was stored with it."""
        user = (config or {}).get("langgraph_auth_user")
        return cls(tenant, None if user is None else User(user), auth)

    @property
    def identity(self) -> str:
        """The user's id; "anonymous" where nobody says who a request is from."""
        return "anonymous" if self.user is None else self.user.identity

    async def authorize(self, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Ask the hooks whether the user may do this, and return the filter for what they see.

        ``value`` is what LangGraph's own server gives to hooks. A hook may change it: the metadata
        of what is created or changed (`metadata_after`), and all of an operation of the store.
        Raises 403 where a hook refuses, and 500 for a filter that is not understood.
        """
        hook = authorize_hook(self.auth, resource, action)
        if hook is None:
            return None
        user: Any = self.user or User("anonymous")
        context = AuthContext(
            permissions=user.permissions,
            user=user,
            resource=cast("Any", resource),  # literals of the SDK, which routes pass by name
            action=cast("Any", action),
        )
        try:
            verdict = await _asked(hook, ctx=context, value=value)
        except AssertionError as error:  # LangGraph's documentation refuses by ``assert``
            refused = str(error) or f"{user.identity} may not {action} {resource}"
            raise HTTPException(403, refused) from error
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        if verdict is False:
            raise HTTPException(403, f"{user.identity} may not {action} {resource}")
        try:
            return parse_filter(verdict)
        except FilterError as error:
            raise hook_fault(f"{resource}.{action}", str(error)) from error

    def metadata_after(self, hook: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata in ``value`` as the hook of this name has left them, as plain JSON. Raises
        500 for metadata that cannot be stored.
        """
        metadata = value.get("metadata")
        if self.auth is None and isinstance(metadata, dict):
            return metadata
        try:
            plain = {} if metadata is None else plain_json(metadata)
        except (TypeError, ValueError) as error:
            raise hook_fault(hook, f"set metadata that are not JSON: {error}") from error
        if not isinstance(plain, dict):
            raise hook_fault(hook, f"set metadata to {metadata!r}; metadata are a dict")
        return plain

    def config(self) -> dict[str, Any]:
        """The user, for a run's configurable."""
        if self.user is None:
            return {}
        return {
            "langgraph_auth_user": self.user.to_json(),
            "langgraph_auth_user_id": self.user.identity,
            "langgraph_auth_permissions": list(self.user.permissions),
        }


def authenticate(auth: Auth | None) -> Callable[[Request], Awaitable[None]]:
    """A dependency that sets ``request.state.caller``. Raises what the hook raises."""

    async def dependency(request: Request) -> None:
        READER.set(tenant := tenant_of(request))
        request.state.caller = await caller_of(request, auth, tenant)

    return dependency


async def caller_of(request: Request, auth: Auth | None, tenant: str) -> Caller:
    """Who a request is from. Raises what the hook raises."""
    user, hook = None, authenticate_hook(auth)
    if hook is not None:
        user = User(await _asked(hook, **_arguments(hook, await _facts(request))))
    return Caller(tenant, user, auth)


async def _asked(hook: Any, **about: Any) -> Any:
    """What a hook says. What it refuses by the SDK's own exception is refused by FastAPI's."""
    try:
        return await hook(**about)
    except HookHTTPException as error:
        raise HTTPException(error.status_code, error.detail, dict(error.headers or {})) from error


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


CallerDep = Annotated[Caller, Depends(_caller)]
"""The parameter of a request handler that says who the request is from."""


def hook_fault(hook: str, fault: str) -> HTTPException:
    """A hook of this name, such as ``threads.read``, did something that cannot be carried out."""
    _log.error("the authorization hook for %s %s", hook, fault)
    return HTTPException(500, f"the authorization hook for {hook} {fault}")


async def _facts(request: Request) -> dict[str, Any]:
    """All that an authenticate hook may ask for, by name."""
    try:
        body = await request.json() if await request.body() else {}
    except ValueError:
        body = {}
    headers = request.headers.raw
    return {
        "request": request,
        "body": body,
        "path": request.url.path,
        "method": request.method,
        "path_params": dict(request.path_params),
        "query_params": dict(request.query_params),
        # Hooks look them up by bytes, as LangGraph's own server has them, or by texts.
        "headers": {**dict(headers), **{name.decode("latin-1"): value for name, value in headers}},
        "authorization": request.headers.get("authorization"),
    }


def _arguments(hook: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(hook).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return dict(facts)
    unknown = sorted(
        name
        for name, one in parameters.items()
        if name not in facts and one.default is one.empty and one.kind is not one.VAR_POSITIONAL
    )
    if unknown:
        raise ConfigError(
            f"the authenticate hook asks for {', '.join(unknown)}; there is {', '.join(facts)}"
        )
    return {name: facts[name] for name in parameters if name in facts}


# -- the hooks of a project ----------------------------------------------------------------


def load_auth(project: Path) -> Auth | None:
    """The `Auth` that a ``langgraph.json`` names, if it names one.

    Raises `ProgramLoadError` if that is something else, and for settings that we do not have.
    """
    section = read_json(project).get("auth")
    if section is None:
        return None
    if not isinstance(section, dict) or not isinstance(section.get("path"), str):
        raise ProgramLoadError(f"{project}: auth must be as {_FORM}")
    if more := sorted(section.keys() - _KEYS):
        raise ProgramLoadError(f"{project}: auth: {', '.join(more)}: not supported; see {_FORM}")
    file, colon, variable = section["path"].rpartition(":")
    path = project.parent / file
    if not (file and colon and variable and path.is_file()):
        raise ProgramLoadError(f"{project}: auth {section['path']!r}: no such file; see {_FORM}")
    found = getattr(_import(path), variable, None)
    if not isinstance(found, Auth):
        raise ProgramLoadError(f"{path}: {variable!r} is no langgraph_sdk.Auth")
    return found


def _import(path: Path) -> Any:
    name = f"agentrt_auth_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ProgramLoadError(f"{path}: it raised {type(error).__name__}: {error}") from error
    return module
