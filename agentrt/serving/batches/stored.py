"""The records of files and batches, as they are stored and as clients see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LIVE = frozenset({"validating", "in_progress", "finalizing", "cancelling"})
"""The statuses of a batch that has not ended."""
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a tenant, without its content.

    Times are Unix times in seconds. A file whose ``expires_at`` is None does not expire.
    """

    id: str
    tenant: str
    number: int
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> StoredFile:
        """Return the record with these stored fields. Raises `TypeError` for unknown or missing
        fields.
        """
        return cls(**fields)

    def to_fields(self) -> Mapping[str, Any]:
        """Return all fields, as they are stored."""
        return asdict(self)

    def to_json(self) -> Mapping[str, Any]:
        """Return the file object of OpenAI's API."""
        shown = ("id", "bytes", "created_at", "filename", "purpose", "expires_at")
        values = {name: getattr(self, name) for name in shown}
        return {"object": "file", "status": "processed", "status_details": None, **values}


@dataclass(slots=True)
class StoredBatch:
    """A batch of a tenant. ``status`` is one of OpenAI's batch statuses.

    - ``output_id`` and ``error_id``: the ids of the output file and of the error file. They are
      chosen when the batch is created.
    - ``output_lifetime_s``: seconds until these two files expire; None if they do not expire.
    - ``entered_at``: by status, the Unix time in seconds at which the batch entered it.
    - ``final_status``: the status that follows ``finalizing``: ``completed``, ``expired``, or
      ``failed`` if the input file has vanished.
    - ``total``, ``completed`` and ``failed``: numbers of requests.
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
    output_lifetime_s: int | None = None
    status: str = "validating"
    final_status: str = ""
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: list[Mapping[str, Any]] = field(default_factory=list)
    usage: Mapping[str, Any] | None = None
    entered_at: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> StoredBatch:
        """Return the record with these stored fields. Raises `TypeError` for unknown or missing
        fields.
        """
        return cls(**fields)

    @property
    def is_live(self) -> bool:
        """Whether the batch has not ended."""
        return self.status in LIVE

    def enter(self, status: str, now: float) -> None:
        """Change the status at the Unix time ``now``."""
        self.status = status
        self.entered_at[status] = int(now)

    def to_fields(self) -> Mapping[str, Any]:
        """Return all fields, as they are stored."""
        return asdict(self)

    def to_json(self) -> Mapping[str, Any]:
        """Return the batch object of OpenAI's API."""
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
            **{f"{name}_at": self.entered_at.get(name) for name in _TIMES},
            "request_counts": counts,
            "usage": self.usage,
            "metadata": self.metadata,
        }
