"""Notes that are sent without waiting for them: an error of one note does not lose the next
note.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Notification
from agentrt.executors.outbox import Outbox
from agentrt.graph import Frontier
from agentrt.tracking.scope import Scope


class Post:
    """A receiver of notes. For the notes in ``errors``, it raises an error."""

    def __init__(self, **errors: Exception) -> None:
        self.taken: list[list[str]] = []
        self.scopes: list[Scope | None] = []
        self._errors = errors
        self.outbox = Outbox(self._send)

    async def _send(self, sent: list[Notification]) -> None:
        notes = [note.program_id for note in sent]
        self.taken.append(notes)
        self.scopes.append(tracking.current_scope())
        await asyncio.sleep(0)
        for note in notes:
            if note in self._errors:
                raise self._errors[note]

    async def post(self, *notes: str) -> None:
        """Post notes, and let the event loop run some times."""
        for note in notes:
            self.outbox.post(Notification(note, "tool"))
        for _ in range(9):
            await asyncio.sleep(0)


async def test_notes_go_out_in_batches_one_at_a_time() -> None:
    post = Post()
    post.outbox.post(Notification("a", "tool"))
    await asyncio.sleep(0)
    await post.post("b", "c")
    assert post.taken == [["a"], ["b", "c"]]
    await post.outbox.close()


async def test_what_has_not_been_sent_is_dropped_at_the_end() -> None:
    post = Post()
    post.outbox.post(Notification("a", "tool"))
    await post.outbox.close()
    await post.outbox.close()
    assert post.taken == []


async def test_a_note_that_is_refused_is_a_warning_and_the_next_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next note was posted while the refused note was being sent."""
    post = Post(odd=ValueError("what is that?"))
    with caplog.at_level(logging.WARNING, logger="agentrt.executors.outbox"):
        post.outbox.post(Notification("odd", "tool"))
        await asyncio.sleep(0)
        await post.post("a")
    assert post.taken == [["odd"], ["a"]]
    assert "what is that?" in caplog.text


async def test_what_is_for_a_dead_engine_is_lost_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    post = Post(late=EngineDiedError("gone"))
    await post.post("late")
    assert not caplog.records


async def test_what_is_sent_belongs_to_no_program() -> None:
    """The program that posts first must not own the task, because the task sends the notes of all
    programs.
    """
    post = Post()
    tracking.install(asyncio.get_running_loop())
    try:
        tracking.enter(Scope(owner="p", frontier=Frontier(), path="p"))
        assert tracking.current_scope() is not None
        await post.post("a")
    finally:
        tracking.uninstall(asyncio.get_running_loop())
    assert post.scopes == [None]
