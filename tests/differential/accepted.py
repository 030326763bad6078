"""The differences that stand, from the table of docs/http-apis.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.differential.compare import Difference

PAGE = Path(__file__).parents[2] / "docs" / "http-apis.md"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A row: patterns of requests' names and of places in the answer, and why ours is better."""

    requests: tuple[str, ...]
    places: tuple[str, ...]
    why: str

    def excuses(self, name: str, found: Difference) -> bool:
        """Whether a difference in the answer to request ``name`` is meant."""
        return any(fnmatchcase(name, one) for one in self.requests) and any(
            fnmatchcase(found.where, one) for one in self.places
        )


def accepted() -> list[Accepted]:
    """The page's rows."""
    rows = re.findall(r"^\| (`.+`) \| (`.+`) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return [Accepted(_codes(requests), _codes(places), why) for requests, places, why in rows]


def _codes(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))
