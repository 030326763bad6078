"""Token ids of recorded texts: as many as were recorded, and the same as far as the text is."""

from __future__ import annotations

from itertools import chain, takewhile

from agentrt.lab.workloads.texts import Texts, message_text, prompt_text


def ids(texts: Texts, text: str, count: int, root: str = "") -> list[int]:
    found = list(chain.from_iterable(texts.ids(root, text, count)))
    assert len(found) == count
    return found


def shared(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_prompts_share_as_many_ids_as_text() -> None:
    """1. Half of a text of ten tokens comes again. 2. All of it, and more. 3. Of another model."""
    texts = Texts()
    first = ids(texts, "a" * 50 + "b" * 50, 10)
    assert shared(first, ids(texts, "a" * 50 + "c" * 50, 20)) == 5
    longer = ids(texts, "a" * 50 + "b" * 50 + "d", 11)
    assert longer[:10] == first
    assert ids(texts, "a" * 50 + "b" * 50, 10) == first
    assert shared(first, ids(texts, "a" * 100, 10, "another model")) == 0


def test_an_output_has_its_tokens_in_later_prompts_too() -> None:
    texts = Texts()
    prompt = ids(texts, "tell me", 3)
    grown = ids(texts, "tell me" + " all", 3 + 9)
    later = ids(texts, "tell me" + " all" + " and more", 15)
    assert grown[:3] == prompt
    assert later[:12] == grown


def test_what_the_text_does_not_show_is_shared_with_nobody() -> None:
    texts = Texts()
    first, other = ids(texts, "an image", 4), ids(texts, "an image", 40)
    assert shared(first, other) == 4
    assert shared(other, ids(texts, "an image", 40)) == 4


def test_shorter_than_what_is_known_of_it() -> None:
    texts = Texts()
    first = ids(texts, "abcdef", 6)
    assert ids(texts, "abcdef", 4) == first[:4]


def test_an_answer_reads_as_in_the_prompt_that_it_is_a_part_of() -> None:
    """Text and tool calls, whose arguments come as a value or as text, without their ids."""
    function = {"name": "price", "arguments": '{"item": "tea"}'}
    message = {"role": "assistant", "content": "I look.", "tool_calls": [{"function": function}]}
    chat = [{"role": "user", "content": "How much?"}]
    answer = message_text({"content": "I look."}, [{"name": "price", "arguments": {"item": "tea"}}])
    assert prompt_text({"messages": [*chat, message]}).startswith(
        prompt_text({"messages": chat}) + answer
    )
