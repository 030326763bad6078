"""Authentication and authorization hooks, as LangGraph defines them: `langgraph_sdk.Auth`.

    {"graphs": {"agent": "./agent.py:graph"}, "auth": {"path": "./auth.py:auth"}}

The authenticate hook says who asks; the most specific of the ``on`` hooks says whether they may,
and which of the things there are they see. All this is inside the request's tenant.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends, HTTPException, Request
from langgraph_sdk import Auth
from langgraph_sdk.auth.types import AuthContext

from agentrt.errors import ConfigError
from agentrt.serving.langgraph.assistants import Filter
from agentrt.serving.middleware import tenant_of


class User:
    """Who asks, as the authenticate hook says it: a name, a mapping, or an object."""

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
        """Whose things these are."""
        return str(self._get("identity"))

    @property
    def display_name(self) -> str:
        """For people."""
        return str(self._get("display_name") or self.identity)

    @property
    def permissions(self) -> Sequence[str]:
        """What the hooks look at."""
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
        known: Mapping[str, Any] = (
            self._given if isinstance(self._given, Mapping) else vars(self._given)
        )
        return iter(known)

    def to_json(self) -> dict[str, Any]:
        """What a graph finds of its user in its config."""
        known = {key: self[key] for key in self if key in self}
        return {**known, "identity": self.identity, "permissions": list(self.permissions)}


class _Headers(dict[Any, bytes]):
    """A request's headers, by name as text or as bytes: hooks are written both ways."""

    def __init__(self, request: Request) -> None:
        super().__init__({name.lower(): value for name, value in request.headers.raw})

    def __missing__(self, key: Any) -> bytes:
        if isinstance(key, str):
            return self[key.lower().encode()]
        raise KeyError(key)

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a tenant, and a user of it where there are hooks."""

    tenant: str
    user: User | None
    gate: Gate

    async def may(self, resource: str, action: str, value: dict[str, Any]) -> Filter:
        """Ask the hooks; what is seen must contain what they return. Raises 403.

        A hook may change ``value``: metadata of what is created, a namespace of the store.
        """
        return await self.gate.decide(self, resource, action, value)

    def config(self) -> dict[str, Any]:
        """What a run's configurable says of its user."""
        if self.user is None:
            return {}
        return {
            "langgraph_auth_user": self.user.to_json(),
            "langgraph_auth_user_id": self.user.identity,
            "langgraph_auth_permissions": list(self.user.permissions),
        }


class Gate:
    """Lets requests in by the hooks of an `Auth`; without one, all of them."""

    def __init__(self, auth: Auth | None) -> None:
        self._auth = auth

    async def admit(self, request: Request) -> None:
        """Find out who asks. Raises what the authenticate hook raises."""
        hook: Any = None if self._auth is None else self._auth._authenticate_handler
        user = None
        if hook is not None:
            user = User(await hook(**_asked_for(hook, await _facts(request))))
        request.state.caller = Caller(tenant_of(request), user, self)

    async def decide(
        self, caller: Caller, resource: str, action: str, value: dict[str, Any]
    ) -> Filter:
        """What `Caller.may` says."""
        hook = self._hook(resource, action)
        if hook is None:
            return None
        user: Any = caller.user or User("anonymous")
        context = AuthContext(
            permissions=user.permissions,
            user=user,
            resource=cast("Any", resource),  # of the SDK's literals, which doors pass by name
            action=cast("Any", action),
        )
        verdict = await hook(ctx=context, value=value)
        if verdict is False:
            raise HTTPException(403, f"{user.identity} may not {action} {resource}")
        return containment(verdict) if isinstance(verdict, Mapping) else None

    def _hook(self, resource: str, action: str) -> Any:
        """The most specific hook that there is."""
        if self._auth is None:
            return None
        hooks = self._auth._handlers
        for key in ((resource, action), (resource, "*"), ("*", action)):
            if hooks.get(key):
                return hooks[key][-1]
        return self._auth._global_handlers[-1] if self._auth._global_handlers else None


def containment(given: Mapping[str, Any]) -> dict[str, Any]:
    """A hook's filter as what metadata must contain. Raises `ConfigError`."""
    needed: dict[str, Any] = {}
    for key, wanted in given.items():
        if not isinstance(wanted, Mapping):
            needed[key] = wanted
        elif set(wanted) == {"$eq"}:
            needed[key] = wanted["$eq"]
        elif set(wanted) == {"$contains"}:
            among = wanted["$contains"]
            needed[key] = list(among) if isinstance(among, list | tuple) else [among]
        else:
            raise ConfigError(f"an auth hook filters {key!r} by {wanted!r}; use $eq or $contains")
    return needed


async def _facts(request: Request) -> dict[str, Any]:
    """All that an authenticate hook may ask for, by name."""
    try:
        body = await request.json() if await request.body() else {}
    except ValueError:
        body = {}
    return {
        "request": request,
        "body": body,
        "path": request.url.path,
        "method": request.method,
        "path_params": dict(request.path_params),
        "query_params": dict(request.query_params),
        "headers": _Headers(request),
        "authorization": request.headers.get("authorization"),
    }


def _asked_for(hook: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
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


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


Asking = Annotated[Caller, Depends(_caller)]
"""The parameter of a route that says who asks."""
