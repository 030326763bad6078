"""The differences from the reference that are meant to be: what, and why.

`docs/langgraph-reference.md` shows them. A place is the request, where in the answer, what is
there, and what is here; ``*`` stands for anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.serving.langgraph.corpus.differences import Difference

PAGE = Path(__file__).parents[4] / "docs/langgraph-reference.md"
Place = tuple[str, str, str, str]


class Allowed(NamedTuple):
    """A difference, the number of its occurrences in the corpus, and the places where it shows."""

    kind: str
    there: str
    here: str
    times: int
    places: tuple[Place, ...]

    def covers(self, one: Difference) -> bool:
        """Return whether this allowed difference explains a difference."""
        return any(_fits(place, one) for place in self.places)


def _each(
    places: Iterable[str], where: Iterable[str], there: str = "*", here: str = "*"
) -> tuple[Place, ...]:
    return tuple((asked, one, there, here) for asked in places for one in where)


_INNER = ("checkpoint_map", "checkpoint_ns", "langgraph_*")
_MOVED = ("body[].thread_id", "asked", "*location", "body.__error__", "body.steps")
_SELECTING = ("states_read POST */checkpoint", "states_past POST *", "states_read GET */state?*")
_VERSIONED = ("body.graph_id", "*context.who")
_IN_STREAM = ("events[][].checkpoint", "events[][].parent_checkpoint")
_OWN_GRAPH = ("body.metadata.assistant_id", "body.metadata.graph_id")
_ITEM = ("body.items[].key", "body.items[].namespace[]", "body.items[].value.n")

ALLOWED = (
    # -- refused here -----------------------------------------------------------------------
    Allowed("better", "fields that would have no effect are accepted", "422, which names the field",
            12, (("*", "status", "200", "422"),)),
    Allowed("better", "400 or 404 for a body that cannot be carried out; its own OpenAPI says 422",
            "422", 14, (("*", "status", "400", "422"), ("*", "status", "404", "422"))),
    Allowed("better", "a failure of the server: 500", "an answer, or 422",
            6, (("*", "status", "500", "200"), ("*", "status", "500", "422"))),
    Allowed("better", "a thread's id that is not a UUID: 201, but the body is an error", "422",
            1, (("* POST /threads", "status", "201", "422"),)),
    Allowed("better", "`POST /ok`: 404, where other paths say 405", "405",
            1, (("* POST /ok", "status", "404", "405"),)),
    # -- taken here -------------------------------------------------------------------------
    Allowed("better", "an assistant is named by its id only", "also by its graph's name",
            4, (("* GET /assistants/*", "status", "422", "200"),
                ("* POST /runs/crons/search", "status", "422", "200"))),
    Allowed("better", "`context` and `configurable` together are refused", "both have an effect",
            1, (("* POST *runs/wait", "status", "400", "200"),)),
    Allowed("better", "a search that finds nothing: 404; a search by metadata: 422", "a list",
            3, (("assistants_* POST *", "status", "404", "200"),
                ("states_past POST */history", "status", "422", "200"))),
    Allowed("better", "the in-memory server has no `keep_latest`", "the history is deleted",
            2, (("* POST /threads/prune", "status", "422", "200"),
                ("threads_pruned POST */history", "body", "*", "*"))),
    Allowed("better", "a run or a state that is not there: 200", "404",
            6, (("* GET /threads/{id}/*", "status", "200", "404"),
                ("* POST /threads/{id}/state/checkpoint", "status", "200", "404"))),
    Allowed("better", "`select` of a state has no effect", "only the selected keys",
            36, _each(_SELECTING, ("body.*", "body[].*"), "*", "absent")),
    # -- assistants -------------------------------------------------------------------------
    Allowed("better",
            "making a version the latest keeps the graph and the context of the previous version",
            "the assistant gets the graph and the context of the version that becomes the latest",
            8, _each(("assistants_changed *", "js_assistants *"), _VERSIONED)),
    # -- runs -------------------------------------------------------------------------------
    Allowed("better", "the `Location` of the stream of a run without a thread does not exist",
            "it can be joined, and shows how the run ended",
            66, (("* POST /runs/stream", "*location", '"/runs/*', '"/threads/*'),
                 ("* GET /threads/{id}/runs/{id}", "request", "not asked", "asked"))),
    Allowed("better", "a run without a thread streams no checkpoints", "they are streamed",
            4, (("* POST /runs/stream", "events", "*", "*checkpoint*"),)),
    Allowed("better",
            "events of mode `checkpoints` have the checkpoint's ids in their `config` only",
            "also in `checkpoint` and `parent_checkpoint`, as in the history",
            10, _each(("streams_of_several *",), _IN_STREAM, "absent")),
    Allowed("better", "the server's internal values are in the `config` of a checkpoint",
            "they are not",
            27, (("streams_of_several *", "events[][].*config.configurable.*", "*", "absent"),)),
    Allowed("better", "`thread_id` in a batch has no effect", "the run is in that thread",
            9, (*_each(("runs_in_batches *",), _MOVED),
                ("* POST /runs/batch", "body[].metadata.graph_id", "absent", "*"))),
    Allowed("better", "a thread and all its runs show the graph of its first run",
            "a run shows its own graph, and a thread that of its last run",
            8, _each(("runs_after_others *",), _OWN_GRAPH)),
    Allowed("better", "a run that waits for answers ends without the thread's values",
            "with the thread's values",
            2, (("interrupts_of_several POST *", "body.steps", "*", '["in"*'),)),
    Allowed("better", "an answer without a question fails in a new thread",
            "the graph starts, as in LangGraph",
            4, (("interrupts_commanded POST *", "body.__error__", "*TypeError*", "absent"),
                ("interrupts_commanded POST *", "body.steps", "absent", "*"))),
    Allowed("better", "`command` has no effect beside `input`", "422: give one",
            1, (("interrupts_commanded POST *", "body.steps", "*last\"]", "*last\"]"),)),
    Allowed("better", "a run does not show why it was stopped", "its `cancel_reason` does",
            82, (("*", "*cancel_reason", "absent", "*"),)),
    Allowed("better", "joining a stream with two modes gives nothing", "the events of both",
            1, (("js_streams GET *stream?*", "events", "[]", "*"),)),
    # -- threads and states -----------------------------------------------------------------
    Allowed("better", "a copy has no values, status or interrupts until its first run", "it has",
            8, (("threads_copied *", "body.values", "absent", "{*"),
                ("js_threads POST */copy", "body.values", "absent", "{*"),
                *_each(("threads_copied *",), ("body.interrupts.<>",)),
                ("threads_copied *", "body.interrupts", "absent", '{"*'),
                ("threads_copied *", "body.status", '"idle"', '"interrupted"'))),
    Allowed("better",
            "keys of a thread that have no value are missing, although clients' types require them",
            "they are null or empty",
            170, (("*", "body*.error", "absent", "null"),
                  ("*", "body*.interrupts", "absent", "{}"),
                  ("*", "body*.values", "absent", "null"))),
    Allowed("better", "an interrupt has its `response_schema` in a stream, but not in a state",
            "in both; it may be null",
            32, (("*", "*response_schema", "absent", "null"),)),
    Allowed("better", "`metadata` and `checkpoint` of a thread without a state are null",
            "objects, as `RemoteGraph` needs them",
            6, (("* GET */state?*", "body.metadata", "null", "{}"),
                ("* GET */state?*", "body.checkpoint", "null", '{"checkpoint_id": null*'))),
    Allowed("better", "a run that was rolled back leaves an error in its thread", "nothing",
            1, (("runs_cancelled GET *", "body.error", "*UserRollback*", "null"),)),
    Allowed("better",
            "a state's metadata repeat its checkpoint's ids, and have a `user_id` without a user",
            "the metadata of LangGraph's checkpointers; the ids are in `checkpoint`",
            98, (*_each(("*",), [f"*metadata.{one}" for one in _INNER], "*", "absent"),
                 ("*", "*metadata.user_id", '""', "absent"),
                 ("*", "*metadata.checkpoint_id", "*", "absent"))),
    Allowed("better", "a task's `checkpoint` is null if its state is shown", "it is given",
            1, (("states_inside GET *", "body.tasks[].checkpoint", "null", "{*"),)),
    Allowed("better", "a checkpoint by its id has no `checkpoint_ns`", "it has",
            2, (("*states* GET *", "body.checkpoint.checkpoint_ns", "absent", '""'),)),
    # -- the rest ---------------------------------------------------------------------------
    Allowed("better", "the in-memory store lists the oldest first",
            "the last changed first, as LangGraph's database stores do",
            18, _each(("store_searched *",), _ITEM)),
    Allowed("better", "errors of the store may be plain texts", "`detail`, as everywhere",
            3, (("store_items *", "body", '"<>"', '{"detail"*'),)),
    Allowed("different", "`/info` and `/ok` describe the reference", "this server",
            9, _each(("server_itself GET /info", "server_itself GET /ok"), ("body.*",))),
)  # fmt: skip


def allowed(one: Difference) -> Allowed | None:
    """Why a difference may be, or None: it may not."""
    return next((why for why in ALLOWED if why.covers(one)), None)


def table() -> str:
    """The differences as a table of the documentation."""
    rows = [f"| {one.there} | {one.here} | {one.times} |" for one in ALLOWED]
    return "\n".join(["| the reference | here | times |", "|---|---|---|", *rows]) + "\n"


def _fits(place: Place, one: Difference) -> bool:
    return all(_pattern(text).fullmatch(part) for text, part in zip(place, one, strict=True))


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
