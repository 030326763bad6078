"""The lines of a batch's files: requests in, answers and errors out.

The id of an answer contains the number of its request's line, so that the files themselves say
which requests have been answered.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from agentrt.batch.lines import LineFile

MOST_LINES = 50_000
"""Requests of a batch, as at OpenAI."""
MOST_ERRORS = 100
"""Faults of an input file that its batch names."""
_LONGEST_ID = 512
_STREAM = "stream"
_BATCH = "batch_"
ANSWER = "batch_req_"
"""How the ids of answers begin, which are also the names of their programs."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request in line ``number`` of the input, counted from 1."""

    number: int
    custom_id: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request was answered. With ``busy_s`` it was not: it is to be made again after so many
    seconds. ``fault`` says why a program has no result although its request was answered.
    """

    status: int
    body: Any
    request_id: str
    busy_s: float | None = None
    fault: Mapping[str, str] | None = None

    @property
    def failed(self) -> bool:
        """Whether it belongs into the file of errors."""
        return self.fault is not None or not 200 <= self.status < 300


class LineError(ValueError):
    """A line that is not a request. ``param`` is the field at fault."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


# -- the input -------------------------------------------------------------------------------


def requests_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of an input that are not empty, with their numbers. Raises `OSError`."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def read_request(number: int, line: bytes, endpoint: str) -> Request:
    """Read a line as a request to ``endpoint``. Raises `LineError`."""
    try:
        value = from_json(line.removeprefix(b"\xef\xbb\xbf"), allow_inf_nan=False)
    except ValueError as error:
        raise LineError("invalid_json_line", f"this line is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise LineError("invalid_json_line", "this line is not a JSON object")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _LONGEST_ID:
        text = f"custom_id must be a text of 1 to {_LONGEST_ID} characters, got {_short(custom_id)}"
        raise LineError("invalid_custom_id", text, "custom_id")
    if value.get("method") != "POST":
        text = f'method must be "POST", got {_short(value.get("method"))}'
        raise LineError("invalid_method", text, "method")
    if value.get("url") != endpoint:
        text = f"url must be the batch's endpoint {endpoint!r}, got {_short(value.get('url'))}"
        raise LineError("invalid_url", text, "url")
    if not isinstance(body, dict):
        text = f"body must be a JSON object, got {_short(body)}"
        raise LineError("invalid_body", text, "body")
    for name in (_STREAM, "background"):
        if body.get(name):
            text = f"body.{name} must be false or left out: a batch has one answer for a request"
            raise LineError("invalid_body", text, f"body.{name}")
    return Request(number, custom_id, body)


@dataclass(slots=True)
class Checked:
    """What an input file holds: the number of its requests and the model of the first one, or
    ``errors`` in OpenAI's form.
    """

    total: int = 0
    model: str | None = None
    errors: list[Mapping[str, Any]] = field(default_factory=list)


def check_input(path: Path, endpoint: str) -> Checked:
    """Read an input file. Takes a while for a long file: to be called in a thread. Raises
    `OSError`.
    """
    checked, seen = Checked(), dict[str, int]()
    for number, line in requests_of(path):
        if checked.total == MOST_LINES:
            text = f"a batch has at most {MOST_LINES} requests; split the file"
            checked.errors.append(file_error("too_many_requests", text, number))
            break
        checked.total += 1
        try:
            request = read_request(number, line, endpoint)
            if (first := seen.setdefault(request.custom_id, number)) != number:
                text = f"custom_id {_short(request.custom_id)} is in line {first} already"
                raise LineError("duplicate_custom_id", text, "custom_id")
        except LineError as error:
            checked.errors.append(file_error(error.code, str(error), number, error.param))
            if len(checked.errors) == MOST_ERRORS:
                break
            continue
        if checked.total == 1 and isinstance(request.body.get("model"), str):
            checked.model = request.body["model"]
    if not checked.total:
        checked.errors.append(file_error("empty_file", "the input file has no requests"))
    return checked


def file_error(
    code: str, message: str, line: int | None = None, param: str | None = None
) -> Mapping[str, Any]:
    """Return a fault of an input file in OpenAI's form."""
    return {"code": code, "message": message, "param": param, "line": line}


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"


# -- the output ------------------------------------------------------------------------------


def answer_id(batch_id: str, number: int) -> str:
    """Return the id of a line's answer."""
    return f"{ANSWER}{batch_id.removeprefix(_BATCH)}_{number}"


def batch_of(name: str) -> str:
    """Return the id of the batch that an answer belongs to, by the id of the answer."""
    return f"{_BATCH}{name.removeprefix(ANSWER).rpartition('_')[0]}"


def answer_line(batch_id: str, request: Request, outcome: Outcome) -> bytes:
    """Return the line of an answer, or of a request that failed."""
    response = {
        "status_code": outcome.status,
        "request_id": outcome.request_id,
        "body": outcome.body,
    }
    return _line(batch_id, request.number, request.custom_id, response, outcome.fault)


def expired_line(batch_id: str, request: Request) -> bytes:
    """Return the line of a request whose batch has expired."""
    text = "This request could not be executed before the completion window expired."
    error = {"code": "batch_expired", "message": text}
    return _line(batch_id, request.number, request.custom_id, None, error)


def _line(
    batch_id: str,
    number: int,
    custom_id: str,
    response: Mapping[str, Any] | None,
    error: Mapping[str, str] | None,
) -> bytes:
    line = {
        "id": answer_id(batch_id, number),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def repaired(file: LineFile) -> LineFile:
    """Remove what a kill has left of a half-written line."""
    if rest := file.incomplete():
        file.drop(len(rest))
    return file


def answered(path: Path) -> Iterator[int]:
    """Yield the numbers of the requests that a file has whole lines for."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                # The id comes first, and the rest may be long.
                yield int(line[: line.index(b'",')].rpartition(b"_")[2])


def usage_of(path: Path) -> Mapping[str, Any]:
    """Return the tokens of all answers in a file of answers, as a batch object has them."""
    tokens = dict.fromkeys(("input", "output", "cached", "reasoning"), 0)
    for _, line in requests_of(path) if path.exists() else ():
        usage = from_json(line)["response"]["body"].get("usage")
        if isinstance(usage, dict):
            read, written = (
                ("prompt", "completion") if "prompt_tokens" in usage else ("input", "output")
            )
            tokens["input"] += usage.get(f"{read}_tokens") or 0
            tokens["output"] += usage.get(f"{written}_tokens") or 0
            details = usage.get(f"{read}_tokens_details") or {}
            tokens["cached"] += details.get("cached_tokens") or 0
            details = usage.get(f"{written}_tokens_details") or {}
            tokens["reasoning"] += details.get("reasoning_tokens") or 0
    return {
        "input_tokens": tokens["input"],
        "input_tokens_details": {"cached_tokens": tokens["cached"]},
        "output_tokens": tokens["output"],
        "output_tokens_details": {"reasoning_tokens": tokens["reasoning"]},
        "total_tokens": tokens["input"] + tokens["output"],
    }


def unanswered(path: Path, endpoint: str, done: Collection[int]) -> Generator[Request, None, None]:
    """Yield the requests of a checked input that are not among those ``done``."""
    for number, line in requests_of(path):
        if number not in done:
            yield read_request(number, line, endpoint)
