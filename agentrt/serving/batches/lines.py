"""The lines of a batch's files: requests in the input file, answers in the output and error files.

The id of an answer contains the line number of its request. So the output and error files also
record which requests have been answered, and no other record of this is needed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from agentrt.serving.batches.storage import Content
from agentrt.serving.bodies import parse_json
from agentrt.serving.line_ends import escape_line_ends

MAX_REQUESTS = 50_000
"""Maximum number of requests of a batch. OpenAI has the same limit."""
MAX_ERRORS = 100
"""Maximum number of errors that a batch lists for its input file."""
_MAX_CUSTOM_ID = 512
_STREAM = "stream"
_BATCH_ID_PREFIX = "batch_"
ANSWER_ID_PREFIX = "batch_req_"
"""The beginning of the ids of answers. For a request to the model, the id of the answer is also the
name of the program that makes the calls.
"""


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A request of a batch. ``number`` is its line number in the input file, counted from 1."""

    number: int
    custom_id: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """The answer to a request.

    If ``retry_after_s`` is set, the server was busy: the request must be made again after that many
    seconds. ``error`` is the reason why a program that ran has no result.
    """

    status: int
    body: Any
    request_id: str
    retry_after_s: float | None = None
    error: Mapping[str, str] | None = None

    @property
    def failed(self) -> bool:
        """Whether the answer belongs in the error file."""
        return self.error is not None or not 200 <= self.status < 300


class LineError(ValueError):
    """A line of an input file is not a valid request. ``param`` names the field that is wrong."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


# -- the input -------------------------------------------------------------------------------


def numbered_lines(content: Content) -> Iterator[tuple[int, bytes]]:
    """Yield the line number and the text of each line that is not empty. Raises `OSError` if the
    content cannot be read.
    """
    for number, line in enumerate(content.lines(), 1):
        if line.strip():
            yield number, line


def read_request(number: int, line: bytes, endpoint: str) -> LineRequest:
    """Return the request in an input line. Raises `LineError` if the line is not a valid request.

    ``endpoint`` is the endpoint of the batch, which must be the request's ``url``.
    """
    try:
        value = parse_json(line)
    except ValueError as error:
        raise LineError("invalid_json_line", f"this line is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise LineError("invalid_json_line", "this line is not a JSON object")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_CUSTOM_ID:
        allowed = f"a string of 1 to {_MAX_CUSTOM_ID} characters"
        text = f"custom_id must be {allowed}, got {_short(custom_id)}"
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
            text = f"body.{name} must be false or left out in a batch"
            raise LineError("invalid_body", text, f"body.{name}")
    return LineRequest(number, custom_id, body)


@dataclass(slots=True)
class InputCheck:
    """The result of checking an input file.

    ``total`` is the number of requests that were checked. ``model`` is the model of the first
    request, or None if this request is invalid or names no model. ``errors`` are in the form of
    OpenAI's batch object; a valid file has none.
    """

    total: int = 0
    model: str | None = None
    errors: list[Mapping[str, Any]] = field(default_factory=list)


def check_input(content: Content, endpoint: str) -> InputCheck:
    """Check the lines of an input file. The check ends early when it has found `MAX_ERRORS` errors,
    or more than `MAX_REQUESTS` requests.

    Raises `FileNotFoundError` if the file does not exist any more, and another `OSError` if it
    cannot be read. The check of a long file takes a while, so call this function in a thread.
    """
    check, seen = InputCheck(), dict[str, int]()
    content.size()
    for number, line in numbered_lines(content):
        if check.total == MAX_REQUESTS:
            text = f"a batch has at most {MAX_REQUESTS} requests; split the file"
            check.errors.append(input_error("too_many_requests", text, number))
            break
        check.total += 1
        try:
            request = read_request(number, line, endpoint)
            if (first := seen.setdefault(request.custom_id, number)) != number:
                text = f"custom_id {_short(request.custom_id)} is already used in line {first}"
                raise LineError("duplicate_custom_id", text, "custom_id")
        except LineError as error:
            check.errors.append(input_error(error.code, str(error), number, error.param))
            if len(check.errors) == MAX_ERRORS:
                break
            continue
        if check.total == 1 and isinstance(request.body.get("model"), str):
            check.model = request.body["model"]
    if not check.total:
        check.errors.append(input_error("empty_file", "the input file has no requests"))
    return check


def input_error(
    code: str, message: str, line: int | None = None, param: str | None = None
) -> Mapping[str, Any]:
    """Return an error of an input file, in the form of OpenAI's batch object."""
    return {"code": code, "message": message, "param": param, "line": line}


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"


# -- the output ------------------------------------------------------------------------------


def answer_id(batch_id: str, number: int) -> str:
    """Return the id of the answer to the request in line ``number``."""
    return f"{ANSWER_ID_PREFIX}{batch_id.removeprefix(_BATCH_ID_PREFIX)}_{number}"


def batch_id_of(answer: str) -> str:
    """Return the id of the batch to which the answer with this id belongs."""
    return f"{_BATCH_ID_PREFIX}{answer.removeprefix(ANSWER_ID_PREFIX).rpartition('_')[0]}"


def answer_line(batch_id: str, request: LineRequest, outcome: LineAnswer) -> bytes:
    """Return the line for the output file, or for the error file if the request failed."""
    response = {
        "status_code": outcome.status,
        "request_id": outcome.request_id,
        "body": outcome.body,
    }
    return _line(batch_id, request.number, request.custom_id, response, outcome.error)


def expired_line(batch_id: str, request: LineRequest) -> bytes:
    """Return the error line of a request that was not answered before its batch expired."""
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
    encoded = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace")
    return escape_line_ends(encoded) + b"\n"


def answered_numbers(content: Content) -> Iterator[int]:
    """Yield the line numbers of the requests that have a complete line in an output or error
    file.
    """
    for line in content.lines():
        if line.endswith(b"\n"):
            # The id is the first field. The whole line is not parsed, because it may be long.
            yield int(line[: line.index(b'",')].rpartition(b"_")[2])


def total_usage(content: Content) -> Mapping[str, Any] | None:
    """Return the tokens of all answers in an output file, as the ``usage`` of a batch object, or
    None if no answer has a ``usage``. The answers of programs have no such field.
    """
    tokens = dict.fromkeys(("input", "output", "cached", "reasoning"), 0)
    answers = counted = 0
    for _, line in numbered_lines(content):
        answers += 1
        usage = from_json(line)["response"]["body"].get("usage")
        if isinstance(usage, dict):
            counted += 1
            read, written = (
                ("prompt", "completion") if "prompt_tokens" in usage else ("input", "output")
            )
            tokens["input"] += usage.get(f"{read}_tokens") or 0
            tokens["output"] += usage.get(f"{written}_tokens") or 0
            details = usage.get(f"{read}_tokens_details") or {}
            tokens["cached"] += details.get("cached_tokens") or 0
            # Anthropic's API does not count these tokens among the input tokens.
            cached = usage.get("cache_read_input_tokens") or 0
            tokens["cached"] += cached
            tokens["input"] += cached + (usage.get("cache_creation_input_tokens") or 0)
            details = usage.get(f"{written}_tokens_details") or {}
            tokens["reasoning"] += details.get("reasoning_tokens") or 0
    if answers and not counted:
        return None
    return {
        "input_tokens": tokens["input"],
        "input_tokens_details": {"cached_tokens": tokens["cached"]},
        "output_tokens": tokens["output"],
        "output_tokens_details": {"reasoning_tokens": tokens["reasoning"]},
        "total_tokens": tokens["input"] + tokens["output"],
    }


def unanswered_requests(
    content: Content, endpoint: str, done: Collection[int]
) -> Generator[LineRequest, None, None]:
    """Yield the requests of a valid input file whose line numbers are not in ``done``."""
    for number, line in numbered_lines(content):
        if number not in done:
            yield read_request(number, line, endpoint)
