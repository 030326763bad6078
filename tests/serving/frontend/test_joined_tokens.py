"""Outputs of several tokens at once, of each family, through a whole server: in all three APIs the
stream is the whole answer, and says that it was cut off.

With ``AGENTRT_EXAMPLES`` set, every combination is tried (`make fuzz`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from transformers import AutoTokenizer
from vllm.parser import ParserManager

from agentrt.executors.vllm._compat import cut_off
from agentrt.executors.vllm.default_model import embedded_model
from tests.doubles.joining_engine import Joining
from tests.executors.vllm.entrypoints.outputs import FAMILIES, MARKS
from tests.serving.frontend.reading import APIS
from tests.serving.local import engine_and_fronts, open_server

pytestmark = pytest.mark.engine

ENDS = {
    "chat": ("length", "tool_calls", "stop"),
    "responses": ("incomplete", "completed", "completed"),
    "messages": ("max_tokens", "tool_use", "end_turn"),
}
"""How an API says that an answer was cut off, calls a tool, and ends."""
KINDS = ("answer", "one", "several", "broken")
SIZES = (3, 1000)
"""How many tokens of a stream come together."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded model's configuration with a tokenizer that has the marks of all families."""
    folder: Path = tmp_path_factory.mktemp("marked")
    embedded = Path(embedded_model(lambda message: None))
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_bytes((embedded / name).read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(embedded)
    tokenizer.add_tokens(list(MARKS))
    tokenizer.save_pretrained(folder)
    return str(folder)


@contextlib.contextmanager
def parsers_of(state: Any, family: str) -> Iterator[None]:
    """The front end of ``state`` with the parsers of ``family``."""
    serving = state.openai_serving_chat, state.anthropic_serving_messages
    responses, kept = state.openai_serving_responses, state.openai_serving_chat.parser_cls
    outputs = FAMILIES[family]
    parser = ParserManager.get_parser(
        outputs.parser, outputs.reasoning_parser, enable_auto_tools=True
    )
    assert parser is not None
    reader = cut_off.reader_of(parser, kept.ends)
    for one in serving:
        one.parser_cls = reader
    responses.parser = reader
    try:
        yield
    finally:
        for one in serving:
            one.parser_cls = kept
        responses.parser = kept


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_stream_is_the_whole_answer(
    family: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = FAMILIES[family]
    said = outputs.thought
    _, fronts = await engine_and_fronts((), model)
    (front,) = fronts
    async with open_server(lambda call: said, kind=Joining, model=model) as server:
        with parsers_of(front.app.state, family):
            for kind, api, cut, size in combinations(list(FAMILIES).index(family)):
                said = outputs.items()[kind]
                full = len(server.engine.tokens(said))
                limit = (full // 2, full - 3, full)[cut]
                monkeypatch.setattr(Joining, "size", size)
                whole, streamed = APIS[api]
                read = await whole(server, limit)
                assert read.end == ENDS[api][0] if limit < full else read.end in ENDS[api][1:]
                again = await streamed(server, limit)
                assert again == read, (kind, api, limit, size)


def combinations(number: int) -> list[tuple[str, str, int, int]]:
    """Return the kinds of outputs, APIs, cuts and sizes of pieces that a family is tried with.

    Every two of these values meet in each family, and all combinations are tried over any six
    families.
    """
    if "AGENTRT_EXAMPLES" in os.environ:
        return list(itertools.product(KINDS, APIS, range(3), SIZES))
    return [
        (kind, api, (at + place + number) % 3, SIZES[(at + place + number // 3) % 2])
        for at, kind in enumerate(KINDS)
        for place, api in enumerate(APIS)
    ]


def test_six_families_are_tried_with_all_combinations() -> None:
    everything = set(itertools.product(KINDS, APIS, range(3), SIZES))
    assert {tried for number in range(6) for tried in combinations(number)} == everything
