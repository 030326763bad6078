"""Of each family: an output that is read whole gives what its stream gives, wherever it ends."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

pytest.importorskip("vllm")

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import ParserManager
from vllm.tokenizers.hf import get_cached_tokenizer

from agentrt.executors.vllm._compat import cut_off
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.frontend import held  # noqa: F401  # registers itself
from tests.executors.vllm.frontend.outputs import FAMILIES, MARKS, TOOLS

pytestmark = pytest.mark.engine

Read = tuple[str, str, list[tuple[str, str]]]
"""Reasoning, text, and each call's name and arguments."""

ASK = [{"role": "user", "content": "?"}]
CHAT: Any = ChatCompletionRequest.model_validate({"messages": ASK, "tools": TOOLS})
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
RESPONSE: Any = ResponsesRequest.model_validate({"input": "?", "tools": FLAT})

KNOWN = {
    ("hermes", "broken"): "whole, it is text; streamed, a call",
    ("llama", "broken"): "whole, it is text; streamed, a call",
    ("qwen3_coder", "one"): "whole, the text beside a call loses the blanks around it",
}
"""Where vLLM reads an output that is complete in two ways. Reading the whole one as a stream
would not be better, and not what vLLM's own server answers.
"""


@cache
def tokenizer() -> Any:
    found = AutoTokenizer.from_pretrained(embedded_model(lambda message: None))
    found.add_tokens(list(MARKS))
    return get_cached_tokenizer(found)


@cache
def reader(family: str) -> Any:
    outputs = FAMILIES[family]
    parser = ParserManager.get_parser(
        outputs.parser, outputs.reasoning_parser, enable_auto_tools=True
    )
    return cut_off.reader_of(parser, frozenset([tokenizer().eos_token_id]))


def pieces(ids: list[int]) -> list[str]:
    """The text that each token adds."""
    found, said = [], ""
    for end in range(1, len(ids) + 1):
        now = tokenizer().decode(ids[:end])
        if now.endswith("\ufffd"):
            now = said
        found.append(now[len(said) :])
        said = now
    return found


def streamed(family: str, request: Any, ids: list[int], texts: list[str]) -> Read:
    return read_stream(reader(family), request, ids, texts)


def read_stream(of: Any, request: Any, ids: list[int], texts: list[str]) -> Read:
    parser = of(tokenizer(), request.tools)
    reasoning, text = "", ""
    calls: dict[int, list[str]] = {}
    for index, (piece, token) in enumerate(zip(texts, ids, strict=True)):
        last = index == len(ids) - 1
        delta = parser.parse_delta(piece, [token], request, prompt_token_ids=[1], finished=last)
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        text += delta.content or ""
        for call in delta.tool_calls:
            made = calls.setdefault(call.index, ["", ""])
            made[0] += call.function.name or ""
            made[1] += call.function.arguments or ""
    return reasoning, text, [(calls[one][0], plain(calls[one][1])) for one in sorted(calls)]


def whole(family: str, request: Any, ids: list[int], texts: list[str]) -> Read:
    parser = reader(family)(tokenizer(), request.tools)
    parser.set_prompt_token_ids([1])
    said = "".join(texts)
    reasoning, text, calls = parser.parse(
        said, request, enable_auto_tools=True, model_output_token_ids=ids
    )
    if request is CHAT and calls is None:
        calls = parser.cut_calls
    made = [(call.name, plain(call.arguments)) for call in calls or ()]
    return reasoning or "", text or "", made


def plain(arguments: str) -> str:
    """Arguments in one way of writing JSON, if they are JSON."""
    try:
        return json.dumps(json.loads(arguments))
    except ValueError:
        return arguments


OUTPUTS = [(family, kind) for family, outputs in FAMILIES.items() for kind in outputs.items()]


@pytest.mark.parametrize(("family", "kind"), OUTPUTS)
def test_an_output_cut_off_at_any_token_is_read_as_its_stream(family: str, kind: str) -> None:
    said = FAMILIES[family].items()[kind]
    ids = tokenizer().encode(said, add_special_tokens=False)
    texts = pieces(ids)
    assert "".join(texts) == said
    for end in range(1, len(ids)):
        expected = streamed(family, CHAT, ids[:end], texts[:end])
        assert whole(family, CHAT, ids[:end], texts[:end]) == expected
        text = expected[1]
        assert not any(mark in text for mark in MARKS), "no markup in the answer"
    for end in (len(ids) // 2, len(ids) - 2):
        expected = streamed(family, RESPONSE, ids[:end], texts[:end])
        assert whole(family, RESPONSE, ids[:end], texts[:end]) == expected


def test_a_complete_output_is_read_alike_but_for_what_is_known() -> None:
    differ = set()
    for family, kind in OUTPUTS:
        ids = tokenizer().encode(FAMILIES[family].items()[kind], add_special_tokens=False)
        texts = [*pieces(ids), ""]
        ids.append(tokenizer().eos_token_id)
        if streamed(family, CHAT, ids, texts) != whole(family, CHAT, ids, texts):
            differ.add((family, kind))
    assert differ == KNOWN.keys()


LLAMAS = [
    '{"name": "time", "parameters": {}}',
    '{"name": "weather", "parameters": {"city": "Rome"}}',
]


@pytest.mark.parametrize("between", ["; ", ";", "\n", ";\n"])
@pytest.mark.parametrize("order", ["0", "00", "01", "10", "001", "110", "0101"])
def test_a_stream_of_llama_has_all_calls_with_their_arguments(order: str, between: str) -> None:
    """vLLM's own parser leaves "{}" out, and what follows another separator than "; "."""
    said = between.join(LLAMAS[int(one)] for one in order)
    ids = tokenizer().encode(said, add_special_tokens=False)
    texts = [*pieces(ids), ""]
    ids.append(tokenizer().eos_token_id)
    names = [("time", "{}"), ("weather", '{"city": "Rome"}')]
    assert streamed("llama", CHAT, ids, texts) == ("", "", [names[int(one)] for one in order])


@pytest.mark.parametrize("order", ["0", "1", "01", "11"])
def test_a_stream_has_calls_of_which_its_parser_streams_nothing(order: str) -> None:
    """phi4_mini_json's; an answer and a thought that look like calls are none."""
    calls = [LLAMAS[int(one)] for one in order]
    said = f"functools[{', '.join(calls)}]"
    names = [("time", "{}"), ("weather", '{"city": "Rome"}')]
    parser = ParserManager.get_parser("phi4_mini_json", "qwen3", enable_auto_tools=True)
    completed = cut_off.reader_of(parser, frozenset([tokenizer().eos_token_id]))
    for text, expected in (
        (f"<think>\nHm.\n</think>\n\n{said}", [names[int(one)] for one in order]),
        (f"<think>\nHm. {said}", []),
    ):
        ids = tokenizer().encode(text, add_special_tokens=False)
        texts = [*pieces(ids), ""]
        ids.append(tokenizer().eos_token_id)
        assert read_stream(completed, CHAT, ids, texts)[2] == expected


def test_a_stream_that_did_not_end_by_itself_stays_as_it_is() -> None:
    ids = tokenizer().encode(LLAMAS[0], add_special_tokens=False)
    assert streamed("llama", CHAT, ids, pieces(ids))[2] == [("time", "")]


def test_a_streamed_answer_gets_no_calls() -> None:
    """Its text is out already: a call beside it would say the same twice."""
    said = f"Look: {LLAMAS[1]}"
    ids = tokenizer().encode(said, add_special_tokens=False)
    texts = [*pieces(ids), ""]
    ids.append(tokenizer().eos_token_id)
    assert streamed("llama", CHAT, ids, texts) == ("", said, [])
    assert whole("llama", CHAT, ids, texts)[2] == [("weather", '{"city": "Rome"}')]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_says_what_it_means(family: str) -> None:
    """Its outputs are read as they were meant, so that the tests above compare something."""
    meant = {kind: read_complete(family, kind) for kind in ("answer", "one", "several")}
    thought = bool(FAMILIES[family].thought)
    assert {bool(reasoning) for reasoning, _, _ in meant.values()} == {thought}
    assert meant["answer"][1:] == (meant["answer"][1], [])
    assert meant["answer"][1].strip() == "It is 3 < 4."
    assert meant["one"][2] == [("weather", plain('{"city": "Malmö", "days": 3}'))]
    assert len(meant["several"][2]) == (1 if family == "held" else 2)


def read_complete(family: str, kind: str) -> Read:
    said = FAMILIES[family].items()[kind]
    ids = [*tokenizer().encode(said, add_special_tokens=False), tokenizer().eos_token_id]
    return whole(family, CHAT, ids, [said])
