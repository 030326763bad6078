"""For each family, a stream gives the same as the whole output, wherever the output ends, and
whichever of its tokens come together.

How many tokens come together changes in turn from cut to cut. With ``AGENTRT_EXAMPLES`` set, each
cut is tried with all of these sizes (`make fuzz`).
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

pytest.importorskip("vllm")

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import ParserManager
from vllm.reasoning import ReasoningParserManager
from vllm.tokenizers.hf import get_cached_tokenizer
from vllm.tool_parsers import ToolParserManager

from agentrt.executors.vllm._compat import cut_off, held_calls
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.entrypoints import (
    families,
    tool_form,  # noqa: F401  # registers itself
)
from tests.executors.vllm.entrypoints.outputs import FAMILIES, MARKS, NAMESPACE, TOOLS, TWO

pytestmark = pytest.mark.engine

Read = tuple[str, str, list[tuple[str, str]]]
"""Reasoning, text, and each call's name and arguments."""

ASK = [{"role": "user", "content": "?"}]
CHAT: Any = ChatCompletionRequest.model_validate({"messages": ASK, "tools": TOOLS})
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
RESPONSE: Any = ResponsesRequest.model_validate({"input": "?", "tools": FLAT})

JOINED = (1, 2, 3, 7, 1000)
"""How many tokens of a stream come together."""
EVERY = "AGENTRT_EXAMPLES" in os.environ
PLAIN: Any = ChatCompletionRequest.model_validate({"messages": ASK})
NO_CALLS: Any = ChatCompletionRequest.model_validate(
    {"messages": ASK, "tools": TOOLS, "tool_choice": "none"}
)
STOPS: Any = ChatCompletionRequest.model_validate({"messages": ASK, "tools": TOOLS, "stop": ["⁂⁂"]})


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
    """Return the text that each token adds."""
    found, said = [], ""
    for end in range(1, len(ids) + 1):
        now = tokenizer().decode(ids[:end])
        if now.endswith("\ufffd"):
            now = said
        found.append(now[len(said) :])
        said = now
    return found


def joined(turn: int) -> Sequence[int]:
    """Return the next of the sizes in turn, or all of them."""
    return JOINED if EVERY else (JOINED[turn % len(JOINED)],)


def uneven(rng: random.Random, count: int) -> list[int]:
    """Return where the pieces of a stream of ``count`` tokens begin, and the end of the last
    one.
    """
    starts = [0]
    while starts[-1] < count:
        starts.append(min(count, starts[-1] + rng.choice((1, 1, 2, 3, 5, 8, 13, 40))))
    return starts


def streamed(family: str, request: Any, ids: list[int], texts: list[str], size: int = 1) -> Read:
    return read_stream(reader(family), request, ids, texts, size)


def read_stream(
    of: Any,
    request: Any,
    ids: list[int],
    texts: list[str],
    size: int = 1,
    starts: Sequence[int] | None = None,
) -> Read:
    parser = of(tokenizer(), request.tools)
    starts = starts or [*range(0, len(ids), size), len(ids)]
    reasoning, text = "", ""
    calls: dict[int, list[str]] = {}
    for at, end in itertools.pairwise(starts):
        delta = parser.parse_delta(
            "".join(texts[at:end]),
            ids[at:end],
            request,
            prompt_token_ids=[1],
            finished=end == len(ids),
        )
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
    calls = calls or parser.cut_calls
    made = [(call.name, plain(call.arguments)) for call in calls or ()]
    return reasoning or "", text or "", made


def plain(arguments: str) -> str:
    """Return arguments in one fixed way of writing JSON, if they are JSON, and else as they are."""
    try:
        return json.dumps(json.loads(arguments))
    except ValueError:
        return arguments


def tokens(said: str) -> tuple[list[int], list[str]]:
    """Return the tokens of a complete output, and the text that each adds."""
    ids = tokenizer().encode(said, add_special_tokens=False)
    texts = pieces(ids)
    assert "".join(texts) == said
    return [*ids, tokenizer().eos_token_id], [*texts, ""]


OUTPUTS = [(family, kind) for family, outputs in FAMILIES.items() for kind in outputs.items()]
MARKS_OF_TEXT = [mark for mark in MARKS if mark != NAMESPACE]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unusual_output_is_read_alike_whichever_tokens_come_together(family: str) -> None:
    """Text after the calls, calls in two places, two thoughts or none, and pieces of unequal
    sizes.
    """
    rng, outputs = random.Random(family), FAMILIES[family]
    for said in (
        f"{outputs.thought}{outputs.several}\nDone, 2 < 3.",
        outputs.thought + outputs.one + outputs.several,
        outputs.thought + outputs.answer + outputs.one,
        outputs.thought * 2 + outputs.several,
        outputs.one,
    ):
        ids, texts = tokens(said)
        for end in (*rng.sample(range(1, len(ids)), 8), len(ids)):
            read = whole(family, CHAT, ids[:end], texts[:end])
            for _ in range(3 if EVERY else 1):
                starts = uneven(rng, end)
                of = reader(family)
                again = read_stream(of, CHAT, ids[:end], texts[:end], starts=starts)
                assert again == read, (said, end, starts)


def test_an_answer_without_a_thought_streams_its_text_and_calls() -> None:
    ids, texts = tokens(FAMILIES["kimi_k3"].one)
    for size in JOINED:
        read = streamed("kimi_k3", CHAT, ids, texts, size)
        assert read == ("", "Look:", [("weather", plain(TWO))])


@pytest.mark.parametrize("size", JOINED)
def test_the_markup_of_an_answer_is_removed_whichever_tokens_it_has(size: int) -> None:
    """Here ``<answer>`` and ``</answer>`` are no tokens of their own, unlike the marks above."""
    ids, texts = tokens("<think>\nHm.\n</think>\n<answer>\nIt is 3 < 4.\n</answer>")
    assert not {"<answer>", "</answer>"} & {*texts}
    assert streamed("hunyuan_a13b", CHAT, ids, texts, size) == whole(
        "hunyuan_a13b", CHAT, ids, texts
    )


class Counting:
    """A pattern that counts the characters in which it is searched."""

    def __init__(self, pattern: Any) -> None:
        self.pattern, self.characters = pattern, 0

    def search(self, text: str, pos: int = 0, **options: Any) -> Any:
        self.characters += len(text) - pos
        return self.pattern.search(text, pos=pos, **options)


@pytest.mark.parametrize("family", ["llama", "olmo3", "granite4"])
def test_a_long_answer_is_not_searched_as_a_whole_with_each_token(family: str) -> None:
    counting = Counting(reader(family).mark)
    of = type("Counted", (reader(family),), {"mark": counting})
    said = FAMILIES[family].thought + "It is 3 < 4, so {x} is (y). " * 100
    ids, texts = tokens(said)
    _, text, _ = read_stream(of, CHAT, ids, texts)
    assert text.strip() == ("It is 3 < 4, so {x} is (y). " * 100).strip()
    assert counting.characters < 4 * len(said)


@pytest.mark.parametrize(("family", "kind"), OUTPUTS)
def test_an_output_cut_off_at_any_token_is_read_as_its_stream(family: str, kind: str) -> None:
    ids, texts = tokens(FAMILIES[family].items()[kind])
    first = OUTPUTS.index((family, kind))  # so that a size meets other cuts in each output
    for end in range(1, len(ids) + 1):
        read = whole(family, CHAT, ids[:end], texts[:end])
        assert all(name for name, _ in read[2])
        for size in joined(first + end) if end < len(ids) else JOINED:
            assert streamed(family, CHAT, ids[:end], texts[:end], size) == read, (end, size)
        if end < len(ids):
            assert not any(mark in read[1] for mark in MARKS_OF_TEXT), "no markup in the answer"
    for end in (len(ids) // 2, len(ids) - 2, len(ids)):
        read = whole(family, RESPONSE, ids[:end], texts[:end])
        for size in JOINED:
            assert streamed(family, RESPONSE, ids[:end], texts[:end], size) == read, (end, size)


HOSTILE = ("a > b", "p>q>r>", "<br/>", "</x>", "2 < 3, [x] ; {y}")
"""Values with the characters by which parsers look for the ends of arguments."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_with_characters_of_marks_is_read_alike_wherever_it_ends(family: str) -> None:
    rng, outputs = random.Random(family), FAMILIES[family]
    for value in HOSTILE:
        ids, texts = tokens(outputs.one.replace("Malmö", value))
        cuts = rng.sample(range(len(ids) // 3, len(ids)), 8)
        for turn, end in enumerate((*cuts, len(ids))):
            read = whole(family, CHAT, ids[:end], texts[:end])
            assert not any("DSML" in arguments for _, arguments in read[2])
            for size in joined(turn):
                again = streamed(family, CHAT, ids[:end], texts[:end], size)
                assert again == read, (value, end, size)


@pytest.mark.parametrize("family", ["deepseek_v32", "deepseek_v4", "deepseek_v41"])
def test_a_value_that_was_cut_off_is_streamed_as_far_as_it_came(family: str) -> None:
    """It is streamed wherever its closing tag is cut off; vLLM streams it up to the last ">"."""
    ids, texts = tokens(FAMILIES[family].one.replace("Malmö", "a > b > c"))
    at = next(i for i in range(len(ids)) if "".join(texts[: i + 1]).endswith("a > b > c"))
    for end in range(at + 1, at + 4):
        for size in JOINED:
            ((name, arguments),) = streamed(family, CHAT, ids[:end], texts[:end], size)[2]
            assert (name, arguments) == ("weather", '{"city": "a > b > c')


@pytest.mark.parametrize("family", FAMILIES)
def test_an_output_of_a_request_that_takes_no_calls_is_read_as_its_stream(family: str) -> None:
    turns = itertools.count()
    for kind, said in FAMILIES[family].items().items():
        ids, texts = tokens(said)
        for request in (PLAIN, NO_CALLS):
            for end in (3, len(ids) // 2, len(ids) - 2, len(ids)):
                read = whole(family, request, ids[:end], texts[:end])
                assert read[2] == []
                for size in joined(next(turns)):
                    again = streamed(family, request, ids[:end], texts[:end], size)
                    assert again == read, (kind, end, size)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": TOOLS[0]["function"]}]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_forced_call_is_read_as_its_stream(family: str, choice: Any) -> None:
    outputs = FAMILIES[family]
    request: Any = ChatCompletionRequest.model_validate(
        {"messages": ASK, "tools": TOOLS, "tool_choice": choice}
    )
    said = outputs.one if choice != "required" else outputs.several
    expected = [name for name, _ in whole(family, CHAT, *tokens(outputs.thought + said))[2]]
    if reader(family).tool_parser_cls.supports_required_and_named:  # such a call is plain JSON
        said, expected = TWO, ["weather"]
        if choice == "required":
            calls = (
                f'{{"name": "{n}", "parameters": {p}}}'
                for n, p in (("weather", TWO), ("time", "{}"))
            )
            said = f"[{', '.join(calls)}]"
            expected = ["weather", "time"]
    ids, texts = tokens(outputs.thought + said)
    for end in range(3, len(ids) + 1, 4):
        read = whole(family, request, ids[:end], texts[:end])
        for size in joined(end):
            assert streamed(family, request, ids[:end], texts[:end], size) == read, (end, size)
    assert [name for name, _ in whole(family, request, ids, texts)[2]] == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_text_that_an_engine_holds_back_for_a_stop_string_changes_nothing(family: str) -> None:
    """With a stop string, the text of a token may come later than the token."""
    for kind, said in FAMILIES[family].items().items():
        ids, texts = tokens(said)
        late, shown = [], 0
        for end in range(1, len(ids)):
            now = max(shown, sum(map(len, texts[:end])) - 1)
            late.append(said[shown:now])
            shown = now
        late.append(said[shown:])
        expected = whole(family, CHAT, ids, texts)
        for size in JOINED:
            assert streamed(family, STOPS, ids, late, size) == expected, (kind, size)


LLAMAS = [
    '{"name": "time", "parameters": {}}',
    '{"name": "weather", "parameters": {"city": "Rome"}}',
]


@pytest.mark.parametrize("between", ["; ", ";", "\n", ";\n"])
@pytest.mark.parametrize("order", ["0", "00", "01", "10", "001", "110", "0101"])
def test_a_stream_of_llama_has_all_calls_with_their_arguments(order: str, between: str) -> None:
    """vLLM's own parser leaves out "{}", and all that follows a separator other than "; "."""
    said = between.join(LLAMAS[int(one)] for one in order)
    ids = tokenizer().encode(said, add_special_tokens=False)
    texts = [*pieces(ids), ""]
    ids.append(tokenizer().eos_token_id)
    names = [("time", "{}"), ("weather", '{"city": "Rome"}')]
    assert streamed("llama", CHAT, ids, texts) == ("", "", [names[int(one)] for one in order])


@pytest.mark.parametrize("order", ["0", "1", "01", "11"])
def test_a_stream_has_calls_of_which_its_parser_streams_nothing(order: str) -> None:
    """The parser is phi4_mini_json. A thought that looks like calls is not read as calls."""
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


def test_special_tokens_without_text_leave_the_texts_of_others_where_they_are() -> None:
    """By default, vLLM gives the special tokens of an output no text."""
    ids, texts = tokens("Hm.</think>It is 3.")
    ids, texts = [tokenizer().convert_tokens_to_ids("<|im_start|>"), *ids], ["", *texts]
    for size in JOINED:
        assert streamed("deepseek_r1", CHAT, ids, texts, size) == ("Hm.", "It is 3.", [])


def test_a_call_behind_an_answer_is_no_text_of_it() -> None:
    ids, texts = tokens(f"Look: {LLAMAS[1]}")
    expected = ("", "Look: ", [("weather", '{"city": "Rome"}')])
    for size in JOINED:
        assert streamed("llama", CHAT, ids, texts, size) == expected
    assert whole("llama", CHAT, ids, texts) == expected


def test_text_is_streamed_until_it_may_be_a_call() -> None:
    """Text that only looks like a call is not held back until the output ends."""
    ids, texts = tokens('Say {"a": 1} or <tool_cake>, and then {"b": 2}.')
    for family in ("llama", "jamba", "hermes", "granite4", "dots", "olmo3", "phi4_mini_json"):
        parser = reader(family)(tokenizer(), TOOLS and CHAT.tools)
        shown = ""
        for text, token in zip(texts[:-3], ids[:-3], strict=True):
            delta = parser.parse_delta(text, [token], CHAT, prompt_token_ids=[1], finished=False)
            if delta is not None:
                shown += (delta.content or "") + (delta.reasoning or "")
        assert shown.startswith('Say {"a": 1} or <tool_cake>, and then'), family


def test_a_parser_that_fails_leaves_the_output_as_text() -> None:
    said = FAMILIES["internlm"].broken
    ids, texts = tokens(said)
    assert whole("internlm", CHAT, ids, texts) == ("", said, [])
    assert streamed("internlm", CHAT, ids, texts, 3) == ("", said, [])


def test_an_output_behind_a_thought_that_the_prompt_ended_is_no_thought() -> None:
    ids, _ = tokens("It is 3 < 4.")
    prompt = tokenizer().encode("<think>\n\n</think>\n\n", add_special_tokens=False)
    for family in ("deepseek_r1", "qwq", "olmo3", "ernie45", "step3", "qwen3", "glm"):
        parser = reader(family)(tokenizer(), CHAT.tools)
        parser.set_prompt_token_ids(prompt)
        read = parser.parse("It is 3 < 4.", CHAT, True, ids)
        assert read[:2] == (None, "It is 3 < 4."), family


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_says_what_it_means(family: str) -> None:
    """Its outputs are read as meant, so the tests above compare real answers and calls."""
    meant = {kind: read_complete(family, kind) for kind in ("answer", "one", "several")}
    thought = FAMILIES[family].thought and "Hm."
    assert {reasoning.strip() for reasoning, _, _ in meant.values()} == {thought}
    assert meant["answer"][1:] == (meant["answer"][1], [])
    assert meant["answer"][1].strip() == "It is 3 < 4."
    city = "\\nMalmö\\n" if family == "mimo" else "Malmö"  # its values are verbatim
    assert meant["one"][2] == [("weather", plain(f'{{"city": "{city}", "days": 3}}'))]
    is_single = FAMILIES[family].parser in ("held", "internlm")
    assert len(meant["several"][2]) == (1 if is_single else 2)


def read_complete(family: str, kind: str) -> Read:
    said = FAMILIES[family].items()[kind]
    ids = [*tokenizer().encode(said, add_special_tokens=False), tokenizer().eos_token_id]
    return whole(family, CHAT, ids, [said])


def test_each_parser_that_is_read_whole_is_one_of_vllms() -> None:
    names = {
        ToolParserManager.get_tool_parser(name).__name__
        for name in ToolParserManager.list_registered()
    }
    assert held_calls.MARKS.keys() | held_calls.BEGINNINGS.keys() <= names
    thoughts = {
        ReasoningParserManager.get_reasoning_parser(name).__name__
        for name in ReasoningParserManager.list_registered()
    }
    assert held_calls.THOUGHTS.keys() <= thoughts


def test_the_table_of_families_is_tried() -> None:
    rows: list[Any] = [*families._CODED, *families._BY_TEMPLATE]
    pairs = {(row.tool_parser, row.reasoning_parser) for row in rows}
    tried = {(outputs.parser, outputs.reasoning_parser) for outputs in FAMILIES.values()}
    assert pairs - tried == {("openai", "openai_gptoss")}, "which tests/serving/frontend tries"
