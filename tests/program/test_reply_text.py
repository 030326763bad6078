"""A reply that a program puts into a prompt is its text, wherever it stands there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrt import Context, Reply, Runtime, ToolCall, program
from agentrt.contexts import Completion
from agentrt.errors import ConfigError
from tests.doubles.scripted import ScriptedExecutor

TEA, MILK = Reply("Tea\nis hot."), Reply("Milk isn't.", node=3)
SAID = Completion("Tea is hot.", (5, 6), "stop")
Say = Callable[[Reply, Reply], Any]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (f"{TEA}", "Tea\nis hot."),
        (str(TEA), "Tea\nis hot."),
        ("%s" % TEA, "Tea\nis hot."),  # noqa: UP031
        ("{}".format(TEA), "Tea\nis hot."),  # noqa: UP032
        (f"{MILK:>13}", "  Milk isn't."),
        (f"{MILK:.4}", "Milk"),
        (f"{[TEA, MILK]}", """['Tea\\nis hot.', "Milk isn't."]"""),
        (f"{(TEA,)}", "('Tea\\nis hot.',)"),
        (f"{ {'for': MILK} }", """{'for': "Milk isn't."}"""),
        (f"{[[MILK]]}", """[["Milk isn't."]]"""),
        ("\n".join(map(str, [TEA, MILK])), "Tea\nis hot.\nMilk isn't."),
        (f"{SAID}", "Tea is hot."),
        (f"{[SAID]}", "['Tea is hot.']"),
        (f"{SAID:>12}", " Tea is hot."),
        (f"{[Reply('')]}", "['']"),
    ],
)
def test_a_reply_in_an_f_string_is_its_text(shown: str, text: str) -> None:
    assert shown == text


def test_a_list_of_replies_reads_as_a_list_of_their_texts() -> None:
    replies = [TEA, MILK, Reply("a", tool_calls=(ToolCall("b", {}),), choices=(TEA,))]
    assert f"{replies}" == f"{[reply.text for reply in replies]}"


@pytest.mark.parametrize("value", [MILK, SAID])
def test_all_fields_can_be_seen(value: Reply | Completion) -> None:
    fields = value.to_dict()
    assert list(fields) == list(type(value).__dataclass_fields__)
    assert fields["text"] == value.text
    assert type(value)(**fields) == value


@pytest.mark.parametrize(
    "ask",
    [
        lambda one, other: one,
        lambda one, other: [{"role": "user", "content": one}],
        lambda one, other: f"{one}",
        lambda one, other: [{"role": "system", "content": "Be brief."}, one.message],
    ],
)
async def test_a_call_accepts_a_reply_as_text(ask: Say) -> None:
    @program
    async def asks(ctx: Context) -> str:
        one, other = [await ctx.llm(name) for name in ("one", "other")]
        return str(await ctx.llm(ask(one, other)))

    executor = ScriptedExecutor(lambda call: "said")
    async with Runtime(executor) as runtime:
        assert await runtime.start(asks).wait() == "said"
    content = executor.calls[-1].spec.messages[-1]["content"]
    assert (type(content), content) == (str, "said")


async def test_a_list_of_replies_is_not_a_chat() -> None:
    @program
    async def asks(ctx: Context) -> str:
        notes: Any = [await ctx.llm("one"), await ctx.llm("other")]
        return str(await ctx.llm(notes))

    async with Runtime(ScriptedExecutor(lambda call: "said")) as runtime:
        with pytest.raises(ConfigError, match=r"got 'said'; .* join them"):
            await runtime.start(asks).wait()


async def test_the_scripted_executor_refuses_a_prompt_with_an_object() -> None:
    """So a test of a page or a demo fails if a prompt contains the text of an object."""

    @program
    async def asks(ctx: Context, shown: str) -> str:
        return str(await ctx.llm(shown))

    async with Runtime(ScriptedExecutor()) as runtime:
        for shown in (f"Sum up: {[ToolCall('a', {})]}", f"Sum up: {object()}"):
            with pytest.raises(AssertionError, match="a Python object"):
                await runtime.start(asks, shown).wait()
