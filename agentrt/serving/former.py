"""Former paths of routes, which still work until version 0.4 (docs/versions.md)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from starlette.requests import Request

_LOG = logging.getLogger(__name__)
_DEPRECATED_SINCE = "@1795824000"  # 2026-11-28, in the form of RFC 9745


@dataclass
class FormerPath:
    """The ``former`` path of routes that are now at the path ``now``."""

    former: str
    now: str
    _logged: bool = field(default=False, init=False)

    def is_used(self, request: Request) -> bool:
        """Return whether a request uses the former path."""
        return str(request.scope["route"].path).startswith(self.former)

    def headers(self, request: Request) -> dict[str, str]:
        """Return headers for the answer to a request that uses the former path: they tell the
        client the present path. The first such request of a server is logged. For a request that
        does not use the former path, return no headers.
        """
        if not self.is_used(request):
            return {}
        if not self._logged:
            self._logged = True
            text = "%s is now %s; the old path works until version 0.4"
            _LOG.warning(text, self.former, self.now)
        link = f'<{self.now}>; rel="successor-version"'
        return {"deprecation": _DEPRECATED_SINCE, "link": link}
