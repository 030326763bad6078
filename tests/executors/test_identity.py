"""The identity of a call in its request: it can be read as it was written."""

from __future__ import annotations

import os
from dataclasses import asdict

from agentrt.executors.identity import (
    RequestIdentity,
    from_extra_args,
    to_extra_args,
    to_headers,
)
from agentrt.request import Identity

WHOSE = Identity(
    call_id="p/7",
    program_id="p",
    program_type="chat",
    tenant="acme",
    session="monday",
    node="plan",
    parents=(2, 5),
    path_s=1.5,
    service_s=4.0,
    program_path_s=2.0,
    waiting_s=3.0,
    size_hint=700.0,
)


def test_a_scheduler_reads_all_but_the_edges() -> None:
    found = from_extra_args("r", to_extra_args(WHOSE), None)
    told = asdict(WHOSE)
    del told["parents"]
    assert found == RequestIdentity(**told, report=True, lone=False)


def test_a_server_reads_whose_a_call_is_and_what_it_followed() -> None:
    headers = to_headers(WHOSE)
    program = headers.pop("x-agentrt-program")
    assert program.startswith("p@")
    assert headers == {
        "x-agentrt-type": "chat",
        "x-agentrt-tenant": "acme",
        "x-agentrt-session": "monday",
        "x-agentrt-call": "7",
        "x-agentrt-node": "plan",
        "x-agentrt-parents": "2,5",
        "x-session-id": program,
    }


def test_forked_processes_have_programs_of_their_own() -> None:
    """Both count their programs from the same number."""
    reading, writing = os.pipe()
    own = to_headers(WHOSE)
    child = os.fork()
    if not child:
        try:
            os.write(writing, to_headers(WHOSE)["x-agentrt-program"].encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    forked = os.read(reading, 1000).decode()
    assert forked.startswith("p@")
    assert forked != own["x-agentrt-program"]
    assert to_headers(WHOSE) == own
    for end in (reading, writing):
        os.close(end)


def test_a_request_without_a_word_is_a_program_of_its_own() -> None:
    found = from_extra_args("r", {}, None)
    assert (found.program_id, found.lone, found.report) == ("r", True, False)
    assert from_extra_args("r", {}, "thread") == RequestIdentity("", "thread")


def test_rank_and_service_before_a_call() -> None:
    assert WHOSE.level_service_s == 1.5
    assert Identity("p/0", "p", service_s=4.0).level_service_s == 4.0
