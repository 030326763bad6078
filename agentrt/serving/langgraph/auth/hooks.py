"""Authentication and authorization hooks in LangGraph's form (`langgraph_sdk.Auth`).

    {"graphs": {"agent": "./agent.py:graph"}, "auth": {"path": "./auth.py:auth"}}

The authenticate hook identifies the user of a request. The most specific of the ``on`` hooks
decides whether the user may make the request, and which objects the user sees. Users never see
objects of a tenant other than the tenant of the request's API key.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
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
_DEEDS = {
    "threads.create_run": "start runs",
    "store.put": "write items of the store",
    "store.get": "read items of the store",
    "store.delete": "delete items of the store",
    "store.search": "search the store",
    "store.list_namespaces": "list namespaces of the store",
}
"""Descriptions of requests by the names of their hooks, for names that are not plain words."""
_log = logging.getLogger(__name__)


class User:
    """A user, made from the name, mapping or object that the authenticate hook returns.

    Raises `ConfigError` if the user has no identity, or permissions that are not a list.
    """

    is_authenticated = True

    def __init__(self, user: Any) -> None:
        self._user = {"identity": user} if isinstance(user, str) else user
        if not self._get("identity"):
            raise ConfigError(
                "the authenticate hook returned a user without identity; return a name, or a user "
                "whose identity is a text"
            )
        permissions = self._get("permissions") or ()
        if isinstance(permissions, str) or not isinstance(permissions, Iterable):
            raise ConfigError(
                f"the authenticate hook returned a user with the permissions {permissions!r}; use "
                "a list of texts"
            )

    def _get(self, key: str) -> Any:
        if isinstance(self._user, Mapping):
            return self._user.get(key)
        return getattr(self._user, key, None)

    @property
    def identity(self) -> str:
        """The user's id."""
        return str(self._get("identity"))

    @property
    def display_name(self) -> str:
        """The user's name as people see it; by default, the user's id."""
        return str(self._get("display_name") or self.identity)

    @property
    def permissions(self) -> Sequence[str]:
        """The user's permissions, as the project's hooks name them."""
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
        if isinstance(self._user, Mapping):
            return iter(self._user)
        names = [*getattr(self._user, "__dict__", ()), *getattr(self._user, "_fields", ())]
        for kind in type(self._user).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else slots
        return (name for name in dict.fromkeys(names) if not name.startswith("__"))

    def to_json(self) -> dict[str, Any]:
        """Return the user in the form that a graph gets in its config."""
        known = {key: self[key] for key in self if key in self}
        return {**known, "identity": self.identity, "permissions": list(self.permissions)}


@dataclass(frozen=True, slots=True)
class Requester:
    """The tenant of a request, and the request's user if there is an authenticate hook."""

    tenant: str
    user: User | None
    auth: Auth | None

    @classmethod
    def of_config(
        cls, tenant: str, config: Mapping[str, Any] | None, auth: Auth | None
    ) -> Requester:
        """Return the caller that started a run or created a cron.

        ``config`` is the stored result of `Requester.config`. If it is None or names no user, the
        caller has no user.
        """
        user = (config or {}).get("langgraph_auth_user")
        return cls(tenant, None if user is None else User(user), auth)

    @property
    def identity(self) -> str:
        """The user's id; "anonymous" if there is no user."""
        return "anonymous" if self.user is None else self.user.identity

    async def authorize(self, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Ask the hooks whether the user may do ``action``, and return the filter for the objects
        that the user sees, or None for all objects.

        ``value`` describes the request in the form of LangGraph's own server. A hook may change the
        metadata of an object that is created or changed (`metadata_after`), the kwargs and the
        ``if_not_exists`` of a run, and all fields of an operation of the store. Raises 403 if a
        hook refuses, 400 if it raises `ValueError`, and 500 if it returns an unknown filter. If a
        hook raises the SDK's `HTTPException`, raises an error with the same status and detail.
        """
        hook = authorize_hook(self.auth, resource, action)
        if hook is None:
            return None
        user: Any = self.user or User("anonymous")
        deed = _DEEDS.get(f"{resource}.{action}", f"{action} {resource}")
        refusal = f"{user.identity} may not {deed}"
        context = AuthContext(
            permissions=user.permissions,
            user=user,
            resource=cast("Any", resource),  # the SDK has literals as types, and routes pass texts
            action=cast("Any", action),
        )
        try:
            verdict = await _call(hook, ctx=context, value=value)
        except AssertionError as error:  # LangGraph's documentation refuses by ``assert``
            raise HTTPException(403, str(error) or refusal) from error
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        if verdict is False:
            raise HTTPException(403, refusal)
        try:
            return parse_filter(verdict)
        except FilterError as error:
            raise hook_fault(f"{resource}.{action}", str(error)) from error

    def metadata_after(self, hook: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata in ``value`` after the hook named ``hook`` has run, as plain JSON.
        Raises 500 for metadata that cannot be stored.
        """
        metadata = value.get("metadata")
        if self.auth is None and isinstance(metadata, dict):
            return metadata
        try:
            plain = {} if metadata is None else plain_json(metadata)
        except (TypeError, ValueError) as error:
            raise hook_fault(hook, f"set metadata that has no JSON form: {error}") from error
        if not isinstance(plain, dict):
            raise hook_fault(hook, f"set metadata to {metadata!r}; use a dict")
        return plain

    def config(self) -> dict[str, Any]:
        """Return the configurable keys that identify this user in the config of a run."""
        if self.user is None:
            return {}
        return {
            "langgraph_auth_user": self.user.to_json(),
            "langgraph_auth_user_id": self.user.identity,
            "langgraph_auth_permissions": list(self.user.permissions),
        }


def authenticate(auth: Auth | None) -> Callable[[Request], Awaitable[None]]:
    """Return a FastAPI dependency that calls the authenticate hook and sets
    ``request.state.caller``.

    The dependency raises the errors of `caller_of`.
    """

    async def dependency(request: Request) -> None:
        READER.set(tenant := tenant_of(request))
        request.state.caller = await caller_of(request, auth, tenant)

    return dependency


async def caller_of(request: Request, auth: Auth | None, tenant: str) -> Requester:
    """Return the caller of a request of ``tenant``. Raises the errors of the authenticate hook, and
    500 if the hook has unknown parameters or returns a user that `User` refuses.
    """
    user, hook = None, authenticate_hook(auth)
    if hook is not None:
        try:
            user = User(await _call(hook, **_arguments(hook, await _facts(request))))
        except ConfigError as error:
            _log.error("%s", error)
            raise HTTPException(500, str(error)) from error
    return Requester(tenant, user, auth)


async def _call(hook: Any, **arguments: Any) -> Any:
    """Call a hook, and convert the SDK's `HTTPException` to FastAPI's."""
    try:
        return await hook(**arguments)
    except HookHTTPException as error:
        raise HTTPException(error.status_code, error.detail, dict(error.headers or {})) from error


async def _caller(request: Request) -> Requester:
    # Async, because FastAPI would run a plain function in another thread.
    caller: Requester = request.state.caller
    return caller


CallerDep = Annotated[Requester, Depends(_caller)]
"""The parameter of a request handler that gets the caller of the request."""


def hook_fault(hook: str, fault: str) -> HTTPException:
    """Log and return the error for a hook whose result cannot be used. ``hook`` is the name of the
    hook, such as ``threads.read``, and ``fault`` completes a sentence that begins with the hook.
    """
    _log.error("the authorization hook for %s %s", hook, fault)
    return HTTPException(500, f"the authorization hook for {hook} {fault}")


async def _facts(request: Request) -> dict[str, Any]:
    """Return the values of all parameters that an authenticate hook may have, by the parameters'
    names.
    """
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
        # LangGraph's own server has header names as bytes; hooks may also look them up as texts.
        "headers": {**dict(headers), **{name.decode("latin-1"): value for name, value in headers}},
        "authorization": request.headers.get("authorization"),
    }


def _arguments(hook: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(hook).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(facts)
    unknown = sorted(
        name
        for name, parameter in parameters.items()
        if name not in facts
        and parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_POSITIONAL
    )
    if unknown:
        raise ConfigError(
            f"the authenticate hook has the unknown parameters {', '.join(unknown)}; allowed are "
            f"{', '.join(facts)}"
        )
    return {name: facts[name] for name in parameters if name in facts}


# -- the hooks of a project ----------------------------------------------------------------


def load_auth(project: Path) -> Auth | None:
    """Load the `Auth` object that the ``langgraph.json`` at ``project`` names; None if the file
    names no `Auth` object.

    Raises `ProgramLoadError` if the object cannot be loaded or is not an `Auth`, and for unknown or
    invalid settings.
    """
    section = read_json(project).get("auth")
    if section is None:
        return None
    if not isinstance(section, dict) or not isinstance(section.get("path"), str):
        raise ProgramLoadError(f"{project}: auth must have the form {_FORM}")
    if unknown := sorted(section.keys() - _KEYS):
        raise ProgramLoadError(
            f"{project}: auth: the keys {', '.join(unknown)} are not supported; use {_FORM}"
        )
    file, colon, variable = section["path"].rpartition(":")
    path = project.parent / file
    if not (file and colon and variable and path.is_file()):
        raise ProgramLoadError(
            f"{project}: auth {section['path']!r} does not name an existing file and a variable; "
            f"use {_FORM}"
        )
    auth = getattr(_import(path), variable, None)
    if not isinstance(auth, Auth):
        raise ProgramLoadError(f"{path}: {variable!r} is not a langgraph_sdk.Auth object")
    return auth


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
        raise ProgramLoadError(
            f"importing {path} raised {type(error).__name__}: {error}"
        ) from error
    return module
