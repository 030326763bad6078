"""The numbers in the tables of docs/tenants.md are the code's."""

from __future__ import annotations

import re

import pytest

from agentrt.cli.serve import serve
from agentrt.executors.vllm import compiling
from agentrt.executors.vllm.entrypoints import model_frontend
from agentrt.serving import bodies
from agentrt.serving._compat import DROPPED_PER_S
from agentrt.serving.frontend import bounds, response_socket, responses
from agentrt.serving.langgraph import outages
from agentrt.serving.observability import routes
from agentrt.serving.observability.routes import MOST_READERS
from agentrt.serving.programs import client_programs, conversation
from agentrt.serving.server import Bounds
from agentrt.serving.tenants import fair
from agentrt.serving.tenants.limits import NAMES, Limits
from tests.pages import text_of

UNITS = {"KiB": 1024, "MiB": 1024**2, "hours": 3600, "seven eighths": 7 / 8, "one": 1}
_NUMBER = r"seven eighths|\bone\b|\d[\d,.]*\b"

ASYNCIOS_BUFFER = 64 * 1024
BOUNDS = Bounds()
DEFAULT = Limits()
OPTIONS = {one.name: one.default for one in serve.params}
LIMITS = {
    "values in a body's JSON": [bodies.MOST_VALUES],
    "objects and lists among these values": [bodies.MOST_OBJECTS],
    "values in a message to an agent": [bodies.MOST_VALUES_OF_AGENTS],
    "the body of a search or a count": [bodies._SEARCH_BYTES],
    "the rest of a body that was refused": [DROPPED_PER_S],
    "large requests": [bodies.LONG, bodies.MANY_OBJECTS, 1],
    "number of ids in a prompt of token ids": [],
    "a prompt's text": [],
    "prompts of more than 32,000 characters": [model_frontend.LONG_PROMPT, 1],
    "chats of more than 64 messages": [model_frontend.MANY_MESSAGES, 1],
    "starting the choices of one request": [1],
    "dispatched calls of all tenants together": [fair.RECENT_S, 1 - 1 / fair.KEPT_OF],
    "schemas that are checked at the same time": [1],
    "compiling one grammar": [compiling.SLOW_S],
    "the whole compilation of one grammar": [compiling.LONGEST_S],
    "processor time for the token masks": [compiling.MASKS_S],
    "processor time for one token mask": [compiling.MASKS_S],
    "readers of": [MOST_READERS],
    "a message over a WebSocket": [BOUNDS.message_bytes, 1],
    "messages over a WebSocket at": [
        response_socket.MOST_WAITING,
        response_socket.MOST_WAITING_BYTES,
    ],
    "data that waits for a WebSocket client": [ASYNCIOS_BUFFER, BOUNDS.reader_s],
    "a client's read of the database": [outages.READ_S],
}
TENANTS = {
    "a request's body": [BOUNDS.body_bytes],
    "a request's headers": [BOUNDS.header_bytes],
    "time until a request's headers and body": [BOUNDS.request_s],
    "time for which a client does not read": [BOUNDS.reader_s, routes._SEND_S],
    "open connections": [BOUNDS.connections],
    "calls of a client program": [client_programs.MOST_CALLS],
    "choices of a request": [bounds.MOST_CHOICES, bounds.MOST_CALLS],
    "messages of a chat": [bounds.MOST_MESSAGES, bounds.MOST_PARTS],
    "length of each stop string": [bounds._LONGEST_STOP],
    "`stop_token_ids`": [set(bounds._LISTS.values()).pop()],
    "all schemas of a request": [
        *(bounds.MOST_NODES, bounds.MOST_OPTIONAL, bounds.MOST_REPEATS),
        *(bounds.MOST_LENGTHS, bounds.MOST_ENUM_CHARACTERS),
    ],
    "length of a pattern": [bounds.LONGEST_PATTERN, bounds._GRAMMAR],
    "stored responses of a tenant": [*(responses.KEPT_S, responses.MOST, responses.MOST_BYTES)],
    "conversation prefixes of a tenant": [conversation.MOST],
}


def table(page: str, head: str) -> list[list[str]]:
    """The rows of a page's table that begins so."""
    rows = text_of(page).split(f"\n{head}")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def numbers(text: str) -> list[float]:
    """The numbers in a text, in bytes and seconds where it names a unit."""
    found: list[float] = []
    for one in re.finditer(rf"({_NUMBER})(?: (KiB|MiB|hours))?", text):
        digits = one[1].replace(",", "").rstrip(".")
        number = UNITS[one[1]] if one[1] in UNITS else float(digits)
        found.append(number * UNITS.get(one[2] or "", 1))
    return found


@pytest.mark.parametrize(
    ("page", "head", "limits"),
    [
        ("tenants.md", "| what | limit |", LIMITS),
        ("tenants.md", "| what | bound |", TENANTS),
    ],
    ids=["a client", "a request"],
)
def test_a_limit_on_the_page_is_the_codes(
    page: str, head: str, limits: dict[str, list[float]]
) -> None:
    rows = table(page, head)
    names = [next((name for name in limits if row[0].startswith(name)), row[0]) for row in rows]
    assert sorted(names) == sorted(limits)
    for name, row in zip(names, rows, strict=True):
        said = numbers(row[1])
        if name.startswith(("large requests", "prompts of", "chats of", "dispatched calls")):
            said = numbers(row[0]) + said
        assert said == limits[name], row


def test_a_tenants_default_on_the_page_is_the_codes() -> None:
    said: dict[str, str] = {}
    for names, _, default in table("tenants.md", "| limit | meaning |"):
        fields = re.findall(r"`(\w+)`", names)
        said |= zip(fields, default.split("; "), strict=True)
    assert set(said) == {name for name in NAMES if not name.startswith("submitted_")}
    for name, default in said.items():
        value = getattr(DEFAULT, name)
        assert numbers(default) == ([] if value is None else [value]), name
        option = re.match(r"`--([\w-]+)`", default)
        if option is not None:
            assert OPTIONS[option[1].replace("-", "_")] == value
