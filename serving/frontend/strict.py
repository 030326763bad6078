"""``--strict-requests``: fields that vLLM does not know are refused, where it would ignore them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from agentrt.serving.programs.errors import ApiError

_JSON = "application/json"
Schema = Mapping[str, Any]


class KnownFields:
    """The fields of the bodies that an application takes, as its own OpenAPI schema has them."""

    def __init__(self, app: FastAPI) -> None:
        described = app.openapi()
        self._schemas = described.get("components", {}).get("schemas", {})
        self._bodies = {
            path: operations["post"]["requestBody"]["content"][_JSON]["schema"]
            for path, operations in described["paths"].items()
            if _JSON in operations.get("post", {}).get("requestBody", {}).get("content", {})
        }

    def check(self, path: str, body: Mapping[str, Any]) -> None:
        """Raise `ApiError` for a field that is not known; it is named."""
        schema = self._bodies.get(path)
        field = None if schema is None else self._unknown(body, schema)
        if field is not None:
            raise ApiError(
                400,
                f"{field}: no such field; leave it out (this server has --strict-requests)",
                param=field,
                code="unknown_field",
            )

    def _unknown(self, value: Any, schema: Schema, at: str = "") -> str | None:
        """The first field in ``value`` that no reading of the schema knows."""
        found: list[str] = []
        for one in self._readings(schema):
            field = self._unknown_in(value, one, at)
            if field is None:
                return None
            found.append(field)
        return max(found, key=lambda field: field.count("."), default=None)

    def _readings(self, schema: Schema) -> Iterator[Schema]:
        """A schema's alternatives, without references."""
        if "$ref" in schema:
            yield from self._readings(self._schemas.get(schema["$ref"].rpartition("/")[2], {}))
            return
        several = [one for name in ("anyOf", "oneOf", "allOf") for one in schema.get(name, ())]
        for one in several:
            yield from self._readings(one)
        if not several:
            yield schema

    def _unknown_in(self, value: Any, schema: Schema, at: str) -> str | None:
        if isinstance(value, dict):
            known = schema.get("properties")
            if known is None:
                return None if schema.get("type", "object") == "object" else at or "body"
            for name, one in value.items():
                here = f"{at}.{name}".lstrip(".")
                if name not in known:
                    return here
                if (field := self._unknown(one, known[name], here)) is not None:
                    return field
        elif isinstance(value, list):
            items = schema.get("items")
            if items is None:
                return None if schema.get("type", "array") == "array" else at
            for index, one in enumerate(value):
                if (field := self._unknown(one, items, f"{at}.{index}")) is not None:
                    return field
        return None
