"""What is kept of a file and of a batch, and how clients see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LIVE = frozenset({"validating", "in_progress", "finalizing", "cancelling"})
"""The states of a batch that has not ended."""
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a tenant. Times are in seconds since 1970; ``expires_at`` None is never."""

    id: str
    tenant: str
    number: int
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> StoredFile:
        """Make it of what `dumped` returned. Raises `TypeError`."""
        return cls(**fields)

    def dumped(self) -> Mapping[str, Any]:
        """Return all fields, for the disk."""
        return asdict(self)

    def to_json(self) -> Mapping[str, Any]:
        """Return OpenAI's file object."""
        shown = ("id", "bytes", "created_at", "filename", "purpose", "expires_at")
        values = {name: getattr(self, name) for name in shown}
        return {"object": "file", "status": "processed", "status_details": None, **values}


@dataclass(slots=True)
class StoredBatch:
    """A batch of a tenant, in one of OpenAI's states.

    ``output_id`` and ``error_id`` are the ids that its two files will have, and ``output_seconds``
    how long these are kept. ``times`` says when the batch came into each of its states, and
    ``ends`` in which state it will end, once it is finalizing.
    """

    id: str
    tenant: str
    number: int
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_id: str
    error_id: str
    metadata: Mapping[str, str] | None = None
    output_seconds: int | None = None
    status: str = "validating"
    ends: str = ""
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: list[Mapping[str, Any]] = field(default_factory=list)
    usage: Mapping[str, Any] | None = None
    times: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> StoredBatch:
        """Make it of what `dumped` returned. Raises `TypeError`."""
        return cls(**fields)

    @property
    def is_live(self) -> bool:
        """Whether the batch has not ended."""
        return self.status in LIVE

    def come_to(self, status: str, now: float) -> None:
        """Enter a state."""
        self.status = status
        self.times[status] = int(now)

    def dumped(self) -> Mapping[str, Any]:
        """Return all fields, for the disk."""
        return asdict(self)

    def to_json(self) -> Mapping[str, Any]:
        """Return OpenAI's batch object."""
        ended, errors = not self.is_live, list(self.errors)
        counts = {"total": self.total, "completed": self.completed, "failed": self.failed}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_id if ended and self.completed else None,
            "error_file_id": self.error_id if ended and self.failed else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{name}_at": self.times.get(name) for name in _TIMES},
            "request_counts": counts,
            "usage": self.usage,
            "metadata": self.metadata,
        }


def content_of(folder: Path, file_id: str) -> Path:
    """Return the path of a file's content in its tenant's folder."""
    return folder / f"{file_id}.jsonl"
