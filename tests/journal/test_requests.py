"""RequestEncoder are recorded as what they add to earlier ones, and read whole."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context
from agentrt.errors import JournalError
from agentrt.journal import JournalOptions
from agentrt.journal.analysis.reading import History, ReadingStore, history
from agentrt.journal.codec import dumps
from agentrt.journal.requests import BEFORE, RecordedRequests, RequestEncoder
from agentrt.journal.schema import DONE, EndRow, StartRow
from agentrt.journal.sketch import digest_of, shown
from agentrt.request import CallSpec, Reply
from tests.doubles.scripted import ScriptedExecutor
from tests.journal.killing import World, lived

LONG = "word " * 300


def read(path: Path, name: str) -> History:
    with closing(ReadingStore(path)) as store:
        return history(store, name)


class Asked:
    """RequestEncoder of a program, as they are recorded one after the other."""

    def __init__(self) -> None:
        self.questions, self.number = RequestEncoder(), 0
        self.starts: list[StartRow] = []
        self.ends: list[EndRow] = []
        self.whole: list[Any] = []

    def ask(self, asked: Any, reply: Reply | None = None, task: str = "0") -> str:
        """What the journal gets of a question, which has this reply."""
        question, node = self.questions.encode(task, "llm", asked), f"0#{self.number}"
        text = shown(asked)
        assert question.digest == digest_of("call", "llm", text)
        self.number += 1
        self.whole.append(json.loads(text))
        recorded = question.recorded
        start = StartRow("p", node, 1, "call", "llm", "p", question.digest, recorded, "", 0.0)
        self.starts.append(start)
        self.questions.remember(task, question, node, 1)
        if reply is not None:
            self.ends.append(EndRow("p", node, 1, DONE, 1, dumps(reply), "", "", 1.0))
            question.add_reply(reply)
        return recorded

    def check(self) -> None:
        """All of them are read as they were asked, in whatever order."""
        order = list(range(len(self.starts)))
        for _ in range(2):
            rows = RecordedRequests(self.starts, self.ends)
            for index in order:
                assert rows.whole(self.starts[index]) == self.whole[index]
                assert json.loads(rows.text(self.starts[index])) == self.whole[index]
            random.Random(len(order)).shuffle(order)


def message(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def request(messages: list[Any], **more: Any) -> dict[str, Any]:
    return {"messages": tuple(messages), "max_tokens": 9, **more}


def test_a_chat_that_grows_costs_what_it_grows_by() -> None:
    asked, chat, said = Asked(), [message(LONG, "system")], 0
    recorded = 0
    for turn in range(40):
        chat.append(message(f"{turn} {LONG}"))
        reply = Reply(f"{turn} said {LONG}")
        recorded += len(asked.ask(request(chat), reply))
        chat.append(reply.message)
        said = len(json.dumps(chat))
    assert recorded < 0.6 * said  # the replies are in their own rows
    assert json.loads(asked.starts[9].request)[BEFORE] == [["0#8", 1, 0, 19]]
    asked.check()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_becomes_of_chats_they_are_read_as_they_were(seed: int) -> None:
    """They grow, branch, lose their beginning or their end, are changed in place and by copies, get
    another system prompt, and are asked again.
    """
    rng, asked = random.Random(seed), Asked()
    chats: list[list[dict[str, Any]]] = [[message(f"{seed} {LONG}", "system")]]
    for turn in range(60):
        chat, task = rng.choice(chats), rng.choice(("0", "0.1", "0.2"))
        match rng.randint(0, 9):
            case 0:
                chats.append(list(chat))
            case 1:
                del chat[1 : rng.randint(1, len(chat))]
            case 2 if len(chat) > 2:
                chat.pop()
            case 3:
                chat[0] = message(f"{turn} {LONG}", "system")
            case 4:
                rng.choice(chat)["content"] = f"changed {turn} {LONG}"
            case 5:
                chat.append(
                    {"role": "user", "content": [{"type": "text", "text": LONG, "n": turn}]}
                )
            case 6:
                chat[:] = json.loads(json.dumps(chat))
        chat.append(message(f"{turn} {LONG if rng.random() < 0.7 else 'short'}"))
        reply = Reply(f"{turn} {LONG}") if rng.random() < 0.8 else None
        asked.ask(request(chat, temperature=rng.choice((0.0, 0.5))), reply, task)
        if reply is not None and rng.random() < 0.8:
            chat.append(reply.message if rng.random() < 0.8 else message(reply.text, "assistant"))
    asked.check()
    assert sum(BEFORE in start.request for start in asked.starts) > 20


def test_a_window_over_a_chat_costs_what_is_new() -> None:
    """Its first messages are dropped, one by one; the system prompt has the time of day."""
    asked = Asked()
    every = [message(f"{number} {LONG}") for number in range(60)]
    sizes = [
        len(asked.ask(request([message(f"it is {at}"), *every[at : at + 20]]))) for at in range(40)
    ]
    assert max(sizes[1:]) < 2 * len(LONG) < sizes[0] / 5
    asked.check()


@pytest.mark.parametrize("count", [50])
def test_many_branches_of_one_chat(count: int) -> None:
    """Each task continues from its own, however many there are."""
    asked, common = Asked(), [message(f"{number} {LONG}") for number in range(10)]
    sizes = []
    for turn in range(3):
        for branch in range(count):
            chat = [*common, *(message(f"{branch}.{number} {LONG}") for number in range(turn + 1))]
            sizes.append(len(asked.ask(request(chat), None, f"0.{branch}")))
    assert max(sizes[1:]) < 1.5 * len(LONG)
    asked.check()


def test_what_is_changed_in_place_is_seen() -> None:
    asked, parts = Asked(), [{"type": "text", "text": LONG, "flag": 1}]
    chat: list[Any] = [{"role": "user", "content": parts}, message("a")]
    asked.ask(request(chat))
    for flag in (True, 1.0, 0.0, -0.0, "1", None, [1], (1,)):
        parts[0]["flag"] = flag
        chat.append(message("b"))
        asked.ask(request(chat))
    asked.check()


def test_what_json_does_not_know_is_recorded_whole() -> None:
    asked = Asked()
    for more in ("\ud800", 2**70, {1: 2}, {(1, 2): 3}, b"x", {1}):
        for _ in range(2):
            asked.ask(request([message(LONG), {"role": "user", "content": more}, message("a")]))
    asked.check()


def test_a_short_question_is_as_ever() -> None:
    asked = Asked()
    for text in ("a", "b"):
        assert asked.ask(request([message("one"), message(text)])) == shown(
            request([message("one"), message(text)])
        )


@pytest.mark.parametrize("seed", range(6))
def test_contexts_grow_too(seed: int) -> None:
    """Prompts of token ids, which fork and are cut off."""
    rng, asked = random.Random(seed), Asked()
    contexts = [[rng.randrange(50_000) for _ in range(400)]]
    for _ in range(40):
        ids = rng.choice(contexts)
        match rng.randint(0, 4):
            case 0:
                contexts.append(list(ids))
            case 1:
                del ids[rng.randint(1, len(ids)) :]
        ids += [rng.randrange(50_000) for _ in range(rng.randint(1, 200))]
        reply = Reply("said", token_ids=tuple(rng.randrange(50_000) for _ in range(90)))
        asked.ask(CallSpec(prompt_token_ids=tuple(ids)), reply, f"0.{contexts.index(ids)}")
        ids += reply.token_ids
    asked.check()
    assert sum(BEFORE in start.request for start in asked.starts) > 20


def test_a_question_whose_beginning_is_missing_is_refused() -> None:
    asked = Asked()
    for number in range(3):
        asked.ask(request([*[message(LONG)] * 3, message(str(number))]))
    rows = RecordedRequests(asked.starts[1:], ())
    with pytest.raises(JournalError, match="the journal has no node 0#0"):
        rows.whole(asked.starts[1])


# -- whole programs --------------------------------------------------------------------------------


async def grows(ctx: Context, turns: int, last: str = "") -> list[Any]:
    chat: list[Any] = [message(LONG, "system")]
    for turn in range(turns):
        end = last if turn == turns - 1 and last else str(turn)
        chat.append(message(f"{LONG}{end}"))
        chat.append((await ctx.llm(chat)).message)
    return chat


def engine() -> ScriptedExecutor:
    return ScriptedExecutor(lambda call: f"{len(call.spec.messages)} {LONG}")


def bytes_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as reader:
        found = reader.execute(
            """SELECT (SELECT SUM(LENGTH(asked)) FROM agentrt_starts)
                + (SELECT SUM(LENGTH(outcome) + LENGTH(account)) FROM agentrt_ends)"""
        ).fetchone()
    return int(found[0])


async def test_a_journal_is_about_as_large_as_what_was_said(tmp_path: Path) -> None:
    sizes = {}
    for turns in (10, 20, 40):
        path = tmp_path / str(turns)
        run = await lived(path, partial(grows, turns=turns), engine=engine())
        said = len(json.dumps(run.result))
        sizes[turns] = bytes_in(path) / said
    assert max(sizes.values()) < 2.2  # of which the program's result is 1
    assert sizes[40] < 1.05 * sizes[10]


async def test_a_program_goes_on_and_its_questions_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"

    async def fails(ctx: Context) -> None:
        await grows(ctx, 5)
        raise KeyError("x")

    first = engine()
    await lived(path, fails, engine=first)
    again = engine()
    await lived(path, fails, engine=again)
    assert (len(first.calls), len(again.calls)) == (5, 0)
    nodes = read(path, "main-1").nodes
    for number, call in enumerate(first.calls):
        assert nodes[f"0#{number}"].request["messages"] == [*call.spec.messages]
    run = await lived(path, lambda ctx: grows(ctx, 5, "other"), engine=engine())
    assert f"messages[9].content was '{LONG[:100]}" in str(run.error)
    assert "and is" in str(run.error)


async def test_what_was_run_anew_leaves_other_branches_whole(tmp_path: Path) -> None:
    """A branch's question continues from one that its program has left for good since."""
    path, tail = tmp_path / "j", ["old"]

    async def code(ctx: Context) -> list[str]:
        chat = [message(LONG), message(f"first {tail[-1]}")]
        said = await ctx.llm(chat)
        chat = [message(LONG), message("second")]

        async def branch() -> str:
            reply = await ctx.llm([*chat, message(LONG), message("branch")])
            return (await ctx.llm([*chat, message(LONG), reply.message, message("end")])).text

        made = asyncio.create_task(branch())
        await asyncio.sleep(0)
        return [said.text, (await ctx.llm([*chat, message(tail[-1])])).text, await made]

    await lived(path, code, engine=engine())
    tail.append("new")
    again = engine()
    rerun = JournalOptions(reruns=True)
    run = await lived(path, code, engine=again, options=rerun)
    assert run.error is None
    asked = [[*call.spec.messages] for call in again.calls]
    last = engine()
    assert (await lived(path, code, engine=last, options=rerun)).result == run.result
    assert last.calls == []
    found = [
        node.request["messages"] for node in read(path, "main-1").nodes.values() if node.request
    ]
    assert all(messages in found for messages in asked)


async def test_a_journal_that_has_questions_as_they_were_asked_goes_on(tmp_path: Path) -> None:
    """As that of an earlier version."""
    path = tmp_path / "j"

    async def fails(ctx: Context) -> None:
        await grows(ctx, 4)
        raise KeyError("x")

    await lived(path, fails, engine=engine())
    whole = {place: node.request_text for place, node in read(path, "main-1").nodes.items()}
    with closing(sqlite3.connect(path)) as writer:
        for place, text in whole.items():
            writer.execute("UPDATE agentrt_starts SET asked = ? WHERE node = ?", (text, place))
        writer.commit()
    world = World()
    run = await lived(path, lambda ctx: grows(ctx, 5), engine=(last := engine()), world=world)
    assert run.error is None
    assert len(last.calls) == 1
    assert BEFORE in read(path, "main-1").nodes["0#4"].start.request
    assert len(read(path, "main-1").nodes["0#4"].request["messages"]) == 10
